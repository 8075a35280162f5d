"""`millrace consume --data` on what a broker that was killed has left, and on a copy of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from millrace import BlockingClient, BlockingProducer, BlockingTransactionalProducer
from tests.support import BrokerProcess, broker_process

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
TOPIC = "all.sorts-1"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def consumed(directory: Path, topic: str, *arguments: str) -> list[dict[str, Any]]:
    done = run("consume", topic, "--data", str(directory), "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def state_of(directory: Path) -> dict[str, tuple[str, int, int]]:
    """All that there is, with the time of its last change."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_size,
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
    }


def fill(server: str) -> None:
    with BlockingClient(server) as client:
        client.create_topic(TOPIC, partitions=2)
        client.create_topic("compacted", config={"cleanup.policy": "compact", "segment.bytes": "1024"})
        client.create_topic("open")
    for codec in CODECS:
        with BlockingProducer(server, compression=codec) as producer:
            for number in range(3):
                producer.send(
                    TOPIC, b"%d" % number, key=str(codec).encode(), headers=[("h", b"x"), ("n", None)], partition=0
                )
    with BlockingProducer(server) as producer:
        producer.send(TOPIC, None, key=b"gone", partition=1)
        producer.send(TOPIC, b"\xff", key=None, partition=1)
        for number in range(60):
            producer.send("compacted", b"%d" % number + bytes(100), key=b"%d" % (number % 3), partition=0)
            producer.flush()
    with BlockingTransactionalProducer(server, "ends") as producer:
        for text in ("aborted", "committed"):
            producer.begin()
            producer.send(TOPIC, text.encode(), partition=1)
            producer.flush()
            producer.abort() if text == "aborted" else producer.commit()
    with BlockingProducer(server) as producer:
        producer.send("open", b"before")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("stored")
    settings = directory / "settings.toml"
    settings.write_text("[engine]\ncompaction_check_interval_ms = 50\n")
    with broker_process(directory / "data", doors=["native"], arguments=["--config", str(settings)]) as process:
        server = f"127.0.0.1:{process.native_port}"
        fill(server)
        until = time.monotonic() + 20
        while not any(is_compacted(name) for name in log_names(process.data_dir, "compacted-0")):
            assert time.monotonic() < until, "nothing was compacted"
            time.sleep(0.05)
        told = run("consume", "open", "--data", str(process.data_dir))
        assert (told.exit_code, told.stdout) == (1, "")
        assert f"in use by process {process.pid}" in told.stderr
        producer = BlockingTransactionalProducer(server, "never ends")
        producer.begin()
        producer.send("open", b"unseen", partition=0)
        producer.flush()
        process.kill9()
        producer.client.close()
        yield process


def is_compacted(name: str) -> bool:
    """It stands for what it was made of, all of it: its end is behind its base."""
    base, _, rest = name.removesuffix(".log").partition("-")
    return bool(rest) and not rest.startswith(base)


def log_names(directory: Path, log: str) -> list[str]:
    return [name for name in os.listdir(directory / "topics" / log) if name.endswith(".log")]


def test_what_a_killed_broker_had_is_printed_and_nothing_changes(broker: BrokerProcess, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(broker.data_dir, directory)
    (torn,) = log_names(directory, f"{TOPIC}-0")
    with (directory / "topics" / f"{TOPIC}-0" / torn).open("ab") as file:
        file.write(b"torn" * 50)
    before = state_of(directory)
    first = consumed(directory, TOPIC, "--partition", "0")
    assert [(one["key"], one["value"]) for one in first] == [(str(codec), str(i)) for codec in CODECS for i in range(3)]
    assert [one["offset"] for one in first] == list(range(15))
    assert first[0]["headers"] == [{"name": "h", "value": "x"}, {"name": "n", "value": None}]
    second = [one for one in consumed(directory, TOPIC, "--from-beginning") if one["partition"] == 1]
    assert [(one["key"], one["value"] if "value" in one else one["value_base64"]) for one in second] == [
        ("gone", None), (None, "/w=="), (None, "committed"),
    ]  # fmt: skip
    assert second[-1]["offset"] > 3  # behind what was aborted, and its marker
    compacted = consumed(directory, "compacted")
    offsets = [one["offset"] for one in compacted]
    assert offsets == sorted(offsets)
    assert len(offsets) < 60 == offsets[-1] + 1
    assert {one["key"]: one["value"][:2] for one in compacted} == {"0": "57", "1": "58", "2": "59"}
    done = run("consume", "open", "--data", str(directory))
    assert done.stdout == "before\n"
    assert "topic 'open' partition 0: 1 offsets from 1 on are not shown, a transaction is open there" in done.stderr
    assert state_of(directory) == before


def test_where_it_begins_and_ends(broker: BrokerProcess) -> None:
    def offsets(*arguments: str) -> list[int]:
        return [one["offset"] for one in consumed(broker.data_dir, TOPIC, "--partition", "0", *arguments)]

    assert offsets("--offset", "13") == offsets("--offset", "-2") == [13, 14]
    assert offsets("--offset", "4", "--max-messages", "5") == [4, 5, 6, 7, 8]
    assert (offsets("--offset", "99"), offsets("--offset", "-99")) == ([], list(range(15)))
    done = run("consume", TOPIC, "--data", str(broker.data_dir), "--max-messages", "1", "--format", "%p %o %k=%v\\n")
    assert done.stdout == "0 0 None=0\n"


def test_what_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    data = ("--data", str(broker.data_dir))
    for more in (["--group", "g"], ["--timeout-ms", "1"], ["--server", "h:1"], ["--tls"]):
        done = run("consume", TOPIC, *data, *more)
        assert done.exit_code == 2
        assert f"without a broker: {more[0]} is for who asks one" in done.stderr
    assert run("topics", "list", *data, "--server", "h:1").exit_code == 2
    for arguments, told in (
        (("consume", "none", *data), "there is no topic 'none' in the directory"),
        (("consume", TOPIC, "--partition", "2", *data), f"partition 2 of topic '{TOPIC}' is not in the directory"),
        (("consume", TOPIC, "--data", str(tmp_path)), f"{tmp_path} is no data directory: there is no catalog in it"),
        (("topics", "list", "--data", str(tmp_path)), f"{tmp_path} is no data directory: there is no catalog in it"),
    ):
        done = run(*arguments)
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"millrace: {told}\n")


def test_the_topics_of_a_directory(broker: BrokerProcess) -> None:
    rows = json.loads(run("topics", "list", "--data", str(broker.data_dir), "--json").stdout)
    assert rows == [
        {"name": TOPIC, "partitions": 2}, {"name": "compacted", "partitions": 1}, {"name": "open", "partitions": 1},
    ]  # fmt: skip


def test_a_damaged_batch_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(broker.data_dir, directory)
    # A broker that is killed while it compacts leaves two for the same offsets, of which one is read.
    for name in log_names(directory, "compacted-0"):
        path = directory / "topics" / "compacted-0" / name
        data = bytearray(path.read_bytes())
        if len(data) > 70:
            data[70] ^= 1
            path.write_bytes(data)
    done = run("consume", "compacted", "--data", str(directory))
    assert done.exit_code == 1
    found = re.search(r"topics/compacted-0/(\S+) at position 0: wrong CRC", done.stderr)
    assert found is not None, done.stderr
    assert is_compacted(found[1])
