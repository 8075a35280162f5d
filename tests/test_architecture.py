"""The layers of docs/architecture.md, enforced by reading the import statements of every module.

    gateway -> protocols -> routing -> {core_log, delay}        spark_bridge -> protocols.native

Imports under `if TYPE_CHECKING` and inside functions count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "core_log": {"core_log"},
    "delay": {"delay"},
    "routing": {"routing", "core_log", "delay"},
    "protocols": {"protocols", "routing", "core_log", "delay"},
    "gateway": {"gateway", "protocols", "routing", "core_log", "delay"},
    "spark_bridge": {"spark_bridge", "protocols", "core_log"},
    "millrace": {"protocols"},
    "pyspark_millrace": {"spark_bridge"},
}
"""Which of our packages each of them may import. `routing` below `protocols` is for adapters only, see there."""

ROOMS = {
    "queues": {"queues"},
    "topics": {"topics"},
    "topology": {"topology", "queues", "topics"},
}
"""The folders of `routing`, and which of them each may import, types apart. The modules above them see them all; those
a room may use as well are in `ROUTING_BASE`."""

INNER_ROOMS = {
    "routing/queues/homes": set(),
    "routing/cluster/clients": {"homes"},
    "routing/cluster/metadata": {"cluster", "homes", "topic_logs"},
    "protocols/native/clients": {"adapter_groups"},
}
"""Folders within a folder, and which of the modules beside one know it; types apart."""

ROUTING_BASE = {
    "bites", "commits", "config", "errors", "facts", "key_patterns", "message", "name_rules", "property_editors",
    "runs", "seen_ids",
}  # fmt: skip

THE_BROKER = {("millrace/__main__.py", "gateway.cli.main"), ("millrace/testing.py", "gateway.embedded.Broker")}
"""`python -m millrace` is the command, which is the gateway's, as is the broker for tests; what else programs import of
this package is its clients.
"""

DEMO_MAY_IMPORT = MAY_IMPORT["gateway"] | {"millrace", "pyspark_millrace", "spark_bridge"}
"""The demo is a user of everything."""

NATIVE_CLIENTS = tuple(
    f"protocols/native/clients/{name}.py"
    for name in (
        "asyncio_host", "client", "client_admin", "client_tls", "consumer", "coordinators", "either_loop", "fetcher",
        "leaders", "link", "listed_offsets", "membership", "parallel", "producer", "producer_batches",
        "served_membership", "transactional",
        "blocking", "blocking_admin", "blocking_consumer", "blocking_group", "blocking_leaders", "blocking_link",
        "blocking_producer", "blocking_transactional", "blocking_user", "silence",
    )
)  # fmt: skip

TRIO = {
    "gateway/": "it runs the loop",
    "core_log/log_flusher.py": "waits for its threads",
    "core_log/cold_reader.py": "reads in a thread",
    "core_log/threads.py": "waits for a thread",
    "core_log/metadata/": "waits for what others changed",
    "delay/timer_service.py": "sleeps",
    "routing/": "awaits what is durable",
    **dict.fromkeys(NATIVE_CLIENTS, "is a client"),
}

SOCKETS = {"gateway/": "the only sockets", **dict.fromkeys(NATIVE_CLIENTS, "is a client")}

NETWORK_MODULES = {"socket", "select", "selectors", "socketserver", "ssl", "asyncio"}


def sources() -> list[str]:
    """Every module of ours, as a path from the root with "/"."""
    return sorted(
        path.relative_to(ROOT).as_posix() for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")
    )


def for_types_only(tree: ast.AST) -> set[ast.AST]:
    """The statements under `if TYPE_CHECKING`."""
    return {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }


@cache
def all_imports(path: str) -> list[tuple[int, str, bool]]:
    """Line and absolute dotted name of everything a module imports, and whether only types need it."""
    package = path.removesuffix(".py").split("/")[:-1]
    tree = ast.parse((ROOT / path).read_text(), path)
    typed = for_types_only(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, node in typed) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            for alias in node.names:
                found.append(
                    (node.lineno, ".".join([*base, *([node.module] if node.module else []), alias.name]), node in typed)
                )
    return found


def imports(path: str, *, types: bool = True) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of what a module imports, with or without what only types need."""
    return ((line, name) for line, name, typed in all_imports(path) if types or not typed)


def offences(wrong: Callable[[str, str], bool], *, types: bool = True) -> list[str]:
    """Every import of every module that `wrong(path, imported)` finds wrong, as "file:line imports name"."""
    return [
        f"{path}:{line} imports {imported}"
        for path in sources()
        for line, imported in imports(path, types=types)
        if wrong(path, imported)
    ]


def allowed(path: str, table: dict[str, str]) -> bool:
    """Whether a module is in a table of files and folders (which end in "/")."""
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in table)


def is_adapter(path: str) -> bool:
    """`adapter.py`, and the files it is divided into where it would be too long: `adapter_channel.py`."""
    name = path.rpartition("/")[2]
    return name == "adapter.py" or name.startswith("adapter_")


def test_there_is_something_to_check() -> None:
    found = sources()
    for package in MAY_IMPORT:
        assert f"{package}/__init__.py" in found
    assert any(imported == "delay.timing_wheel.TimingWheel" for _, imported in imports("delay/timer_service.py"))


def test_packages_import_only_what_lies_below() -> None:
    def wrong(path: str, imported: str) -> bool:
        target = imported.partition(".")[0]
        uses_spark = path.startswith("gateway/demo/") or path == "gateway/spark_cli.py"
        mine = DEMO_MAY_IMPORT if uses_spark else MAY_IMPORT[path.partition("/")[0]]
        return target in MAY_IMPORT and target not in mine and (path, imported) not in THE_BROKER

    assert offences(wrong) == []


def test_the_rooms_of_routing_import_one_way() -> None:
    def wrong(path: str, imported: str) -> bool:
        mine, target = path.removesuffix(".py").split("/"), imported.split(".")
        if mine[0] != "routing" or target[0] != "routing":
            return False
        if mine[1] in ROOMS:
            return target[1] not in ROOMS[mine[1]] | ROUTING_BASE
        return mine[1] in ROUTING_BASE and target[1] not in ROUTING_BASE

    assert offences(wrong, types=False) == []


def test_inner_rooms_are_known_to_few_beside_them() -> None:
    def wrong(path: str, imported: str) -> bool:
        folder, _, name = path.removesuffix(".py").rpartition("/")
        return any(
            folder == room.rpartition("/")[0]
            and imported.startswith(room.replace("/", ".") + ".")
            and name not in known
            for room, known in INNER_ROOMS.items()
        )

    assert offences(wrong, types=False) == []


def test_who_has_which_log_is_decided_without_clients() -> None:
    def wrong(path: str, imported: str) -> bool:
        return path.startswith("routing/cluster/metadata/") and imported.startswith("routing.cluster.clients.")

    assert offences(wrong, types=False) == []


def test_only_adapters_know_the_engine() -> None:
    def wrong(path: str, imported: str) -> bool:
        return path.startswith("protocols/") and imported.startswith("routing") and not is_adapter(path)

    assert offences(wrong) == []


def test_protocols_do_not_know_each_other() -> None:
    def wrong(path: str, imported: str) -> bool:
        mine, other = path.split("/"), imported.split(".")
        shared = (
            "sansio",
            "convert",
            "peers",
            "buffers",
            "fetching",
            "log_waits",
            "deadlines",
            "adapter_topics",
            "adapter_record_headers",
            "scram",
        )
        return mine[0] == other[0] == "protocols" and other[1] not in shared and other[1] != mine[1]

    assert offences(wrong) == []


def test_spark_and_the_public_names_use_the_native_client_only() -> None:
    def wrong(path: str, imported: str) -> bool:
        clients = ("spark_bridge/", "millrace/", "pyspark_millrace/")
        return path.startswith(clients) and (
            (imported.startswith("protocols.") and not imported.startswith("protocols.native."))
            or imported.startswith("protocols.native.adapter")
        )

    assert offences(wrong) == []


def test_clients_do_not_import_the_server() -> None:
    def wrong(path: str, imported: str) -> bool:
        return path in NATIVE_CLIENTS and imported.startswith(("protocols.native.adapter", "routing", "gateway"))

    assert offences(wrong) == []


def test_only_the_gateway_touches_sockets() -> None:
    def wrong(path: str, imported: str) -> bool:
        return imported.partition(".")[0] in NETWORK_MODULES and not allowed(path, SOCKETS)

    assert offences(wrong) == []


def test_only_the_gateway_speaks_http() -> None:
    def wrong(path: str, imported: str) -> bool:
        return imported.partition(".")[0] in ("httpx", "httpcore") and not path.startswith("gateway/")

    assert offences(wrong) == []


def test_trio_only_where_somebody_waits() -> None:
    def wrong(path: str, imported: str) -> bool:
        return imported.partition(".")[0] == "trio" and not allowed(path, TRIO)

    assert offences(wrong) == []


def test_codecs_do_no_io_and_ask_no_clock() -> None:
    def wrong(path: str, imported: str) -> bool:
        codec = path.startswith("protocols/") and path.endswith(("/wire.py", "/connection.py", "/packets.py"))
        return codec and imported.partition(".")[0] in ("time", "threading", "os", "trio", "logging")

    assert offences(wrong) == []


def test_the_roles_of_replicas_are_pure() -> None:
    impure = NETWORK_MODULES | {"time", "datetime", "trio", "threading", "random", "secrets", "os", "queue"}

    def wrong(path: str, imported: str) -> bool:
        return path.startswith("core_log/replication/") and imported.partition(".")[0] in impure

    assert offences(wrong) == []
