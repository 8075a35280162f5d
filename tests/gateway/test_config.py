"""Settings: which source wins, and one clear line for everything that cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.config import Config, ConfigError, default_data_dir, load_config, parse_address, settings_of
from protocols.mqtt.topics import AutoSubscription


def load(tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, **flags: Any) -> Config:
    file = tmp_path / "millrace.toml"
    file.write_text(toml)
    return load_config(file, environment or {}, flags)


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    toml = """
        [limits]
        connections_max = 1
        outbox_bytes_max = 1
        outbox_stalled_ms = 1
        [listen]
        amqp = "127.0.0.1:1"
        mqtt = "127.0.0.1:1"
    """
    environment = {
        "MILLRACE_LIMITS_CONNECTIONS_MAX": "2",
        "MILLRACE_LIMITS_OUTBOX_BYTES_MAX": "2",
        "MILLRACE_LISTEN_MQTT": "off",
        "HOME": "ignored",
    }
    config = load(tmp_path, toml, environment, limits={"connections_max": 3}, listen={"native": "[::1]:3"})
    assert config.limits.connections_max == 3
    assert config.limits.outbox_bytes_max == 2
    assert config.limits.outbox_stalled_ms == 1
    assert config.limits.close_linger_ms == Config().limits.close_linger_ms
    assert (config.listen.amqp, config.listen.mqtt, config.listen.native) == ("127.0.0.1:1", "off", "[::1]:3")


def test_the_settings_of_every_part_can_be_given(tmp_path: Path) -> None:
    toml = '[engine]\nstripes = 2\n[amqp]\nheartbeat_s = 7\n[mqtt]\nanonymous = "never"\n[native]\nnode_id = 9\n'
    config = load(tmp_path, toml, {"MILLRACE_ENGINE_FSYNC": "never"})
    assert (config.engine.stripes, config.engine.fsync, config.amqp.heartbeat_s) == (2, "never", 7)
    assert (config.mqtt.anonymous, config.native.node_id) == ("never", 9)


def test_lists_of_settings_are_json_in_the_environment(tmp_path: Path) -> None:
    toml = '[[mqtt.auto_subscriptions]]\ntopic = "in/%c"\nqos = 1\n'
    told = {"MILLRACE_MQTT_AUTO_SUBSCRIPTIONS": '[{"topic": "in/%c", "qos": 1}]'}
    assert load(tmp_path, toml).mqtt.auto_subscriptions == (AutoSubscription("in/%c", 1),)
    assert load(tmp_path, "", told).mqtt == load(tmp_path, toml).mqtt


def test_users_are_one_setting(tmp_path: Path) -> None:
    assert load(tmp_path).users == {"guest": "guest"}
    assert load(tmp_path, '[users]\nada = "x"\n').users == {"ada": "x"}
    assert load(tmp_path, '[users]\nada = "x"\n', {"MILLRACE_USERS": '{"bob": "y"}'}).users == {"bob": "y"}


EMPTY = "expected str of length >= 1 in one of its entries"
LEVELS = "not one of debug, info, warning, error"
NO_ADDRESS = "is not HOST:PORT (such as 127.0.0.1:5672 or [::1]:5672) or 'off'"
LIMITS_MAX = "MILLRACE_LIMITS_CONNECTIONS_MAX"


@pytest.mark.parametrize(
    ("toml", "environment", "flags", "message"),
    [
        ("[log]\nlevl = 1", {}, {}, "FILE: there is no setting log.levl; did you mean log.level?"),
        ("[zebra]\nx = 1", {}, {}, "FILE: there is no setting zebra"),
        ("[amqp]\nno_such_thing_here = 1", {}, {}, "FILE: there is no setting amqp.no_such_thing_here"),
        ("limits = 3", {}, {}, "FILE: limits: expected a table of settings"),
        ('[limits]\nconnections_max = "many"', {}, {}, "FILE: limits.connections_max: expected int, got str"),
        ("[limits]\nconnections_max = 0", {}, {}, "FILE: limits.connections_max: expected int >= 1"),
        ("[users]\nada = 1", {}, {}, "FILE: users: expected str, got int in one of its entries"),
        ('[log]\nlevel = "loud"', {}, {}, f"FILE: log.level: invalid enum value 'loud', {LEVELS}"),
        ("[limits", {}, {}, "FILE: is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        (f"x = {5000 * '['}", {}, {}, "FILE: too many arrays or tables within each other"),
        ("[cluster]\nname = 'c'\netcd_ca = \"a\\u0000b\"", {}, {},
         r"FILE: cluster.etcd_ca: expected str matching regex '^[^\\0]*$'"),
        ("", {"MILLRACE_USERS": 100_000 * "["}, {},
         "environment: MILLRACE_USERS: maximum recursion depth exceeded while deserializing an object"),
        ("", {LIMITS_MAX: "many"}, {}, f"environment: {LIMITS_MAX}: Expected int, got str"),
        ("", {"MILLRACE_USERS": "\udcff"}, {},
         r"environment: MILLRACE_USERS: 'utf-8' codec can't encode character '\udcff' in position 0: "
         "surrogates not allowed"),
        ("", {LIMITS_MAX: "0"}, {}, f"environment: {LIMITS_MAX}: Expected int >= 1"),
        ("", {f"{LIMITS_MAX}S": ""}, {}, f"environment: there is no setting {LIMITS_MAX}S; did you mean {LIMITS_MAX}?"),
        ("", {"MILLRACE_USERS": "[]"}, {}, "environment: MILLRACE_USERS: Expected object, got array"),
        ("", {}, {"log": {"level": "loud"}}, f"command line: log.level: invalid enum value 'loud', {LEVELS}"),
        ('[users]\nada = ""', {}, {}, f"FILE: users: {EMPTY}"),
        ("", {"MILLRACE_USERS": '{"ada": ""}'}, {}, f"environment: MILLRACE_USERS: {EMPTY}"),
        ("", {}, {"listen": {"amqp": "1"}}, f"listen.amqp: '1' {NO_ADDRESS}"),
        ('[websocket]\norigins = "https://a.example,b.example:1"', {}, {},
         "websocket.origins: 'b.example:1' is no origin of pages, such as https://one.example:8443"),
        ('[http]\norigins = "https://a.example/page"', {}, {},
         "http.origins: 'https://a.example/page' is no origin of pages, such as https://one.example:8443"),
        ("[kafka]\nstatic_client_ids = '('", {}, {},
         "kafka.static_client_ids: is no regular expression: missing ): ^(?:()$"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_that_names_setting_and_source(
    tmp_path: Path, toml: str, environment: dict[str, str], flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, toml, environment, **flags)
    assert str(error.value) == message.replace("FILE", str(tmp_path / "millrace.toml"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.toml: cannot be read: No such file"):
        load_config(tmp_path / "absent.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: is not TOML"):
        load_config(tmp_path / "binary", {})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("off", None),
        ("127.0.0.1:5672", ("127.0.0.1", 5672)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int] | None) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        ":1",
        "host",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "::1:5672",
        "[host]:1",
        "host:²",
        "[]:1",
        "..:1",
        "a..b:1",
        ".host:1",
        "a\0b:1",
        "a" * 64 + ":1",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_address(address)


def test_data_lies_in_a_durable_place_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_data_dir({}) == Path("/home/ada/.local/share/millrace")
    assert default_data_dir({"XDG_DATA_HOME": "relative"}) == Path("/home/ada/.local/share/millrace")
    assert default_data_dir({"XDG_DATA_HOME": "/data"}) == Path("/data/millrace")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert load(tmp_path).data_dir == "/data/millrace"
    assert load(tmp_path, data_dir="~/here").data_dir == "/home/ada/here"
    assert load(tmp_path, data_dir="here").data_dir == os.path.abspath("here")


def numbers() -> Iterator[tuple[str, Any, Any]]:
    """The settings that are numbers, and what they may be: at least, at most."""
    for name, kind in settings_of(Config):
        for type_ in (kind, *get_args(kind)):
            metadata = getattr(type_, "__metadata__", ())
            if type_ in (int, float) and not getattr(kind, "__metadata__", ()):
                pytest.fail(f"{name} may be any number")
            if metadata and type_.__origin__ in (int, float):
                (meta,) = metadata
                step = type_.__origin__(1)
                low = meta.ge if meta.ge is not None else meta.gt + step
                high = meta.le if meta.le is not None else meta.lt - step
                yield name, low, high


def test_every_number_has_a_range_and_what_is_outside_is_refused_by_name(tmp_path: Path) -> None:
    ranges = list(numbers())
    assert len(ranges) > 120
    for name, low, high in ranges:
        default = attrgetter(name)(Config())
        assert default is None or low <= default <= high, name
        table, _, key = name.rpartition(".")
        for wrong in (low - 1, high + 1, -(10**30), 10**30, "nan"):
            with pytest.raises(ConfigError) as error:
                load(tmp_path, f"[{table}]\n{key} = {wrong}\n")
            assert str(error.value).startswith(f"{tmp_path / 'millrace.toml'}: {name}: expected "), error.value
    variable = {"MILLRACE_ENGINE_DISK_FREE_BYTES_MIN": "-1"}
    with pytest.raises(ConfigError, match="MILLRACE_ENGINE_DISK_FREE_BYTES_MIN: Expected int >= 0"):
        load(tmp_path, "", variable)


MEMBER = '[cluster]\nname = "tests"\nbroker_id = 1\netcd = "127.0.0.1:2379"\n'


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            "[engine]\ngroup_session_timeout_ms_min = 2000000",
            "engine.group_session_timeout_ms_min: 2000000 is more than engine.group_session_timeout_ms_max, 1800000",
        ),
        ("[peer]\nredial_ms_max = 10", "peer.redial_ms_min: 50 is more than peer.redial_ms_max, 10"),
        ("[peer]\nheartbeat_ms = 5000", "peer.heartbeat_ms: 5000 is more than peer.silence_ms_max, 1600"),
        (
            "[engine]\npartitions_max = 2\nauto_create_partitions = 3",
            "engine.auto_create_partitions: 3 is more than engine.partitions_max, 2",
        ),
        (
            "[engine]\nconsumer_session_timeout_ms = 3000",
            "engine.consumer_heartbeat_interval_ms: 5000 is more than engine.consumer_session_timeout_ms, 3000",
        ),
        (
            f"{MEMBER}[engine]\nmessage_bytes_max = 400000000",
            "engine.message_bytes_max: 400000000 is more than peer.frame_bytes_max, 301989888",
        ),
        (
            f"{MEMBER}[peer]\nframe_bytes_max = 200000000",
            "engine.transaction_bytes_max: 268435456 is more than peer.frame_bytes_max, 200000000",
        ),
    ],
)
def test_the_least_is_not_more_than_the_most(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, toml)
    assert str(error.value) == message
    load(tmp_path, "[peer]\nframe_bytes_max = 200000000")  # nobody has replicas


def test_every_limit_has_a_unit_and_every_setting_a_variable_of_its_own() -> None:
    names = [name for name, _ in settings_of(Config)]
    variables = {name.upper().replace(".", "_") for name in names}
    assert len(variables) == len(names)
    for name in names:
        if name.startswith("limits."):
            assert name.rpartition(".")[2].startswith("connections_") or "_bytes_" in name or name.endswith("_ms")
