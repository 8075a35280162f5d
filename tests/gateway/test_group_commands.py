"""`millrace produce`, `consume` and `groups` against a running broker, and the same by the clients' calls."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from core_log.wall_clock import wall_clock_ms
from gateway.cli import main
from millrace import BlockingClient, BlockingProducer, Client, Consumer, MillraceError, NotFound, OffsetOutOfRange
from protocols.native.clients.partitioner import partition_of_key
from tests.gateway.test_commands import Commands
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("groups")
    config = directory / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    arguments = ["--config", str(config)]
    with broker_process(directory / "data", doors=["native"], arguments=arguments) as process:
        yield process


@pytest.fixture
def millrace(broker: BrokerProcess) -> Commands:
    return Commands(broker)


def fill(broker: BrokerProcess, topic: str, partitions: int, each: int, *, at_ms: int | None = None) -> None:
    server = f"127.0.0.1:{broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic(topic, partitions=partitions, config={"retention.ms": "-1"})  # some records are from 1970
    with BlockingProducer(server) as producer:
        for number in range(each):
            for partition in range(partitions):
                when = None if at_ms is None else at_ms + number * 1000
                producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=when)


def test_lines_go_in_and_come_out(millrace: Commands) -> None:
    assert millrace("produce", "lines", text="one\ntwo\nthree") == ""
    assert millrace("consume", "lines", "--from-beginning", "--max-messages", "3") == "one\ntwo\nthree\n"
    assert millrace("consume", "lines", "--offset", "-2", "--timeout-ms", "100") == "two\nthree\n"
    assert millrace("consume", "lines", "--offset", "1", "--max-messages", "1") == "two\n"
    assert millrace("consume", "lines", "--timeout-ms", "50") == ""


def test_records_are_found_by_their_key(millrace: Commands) -> None:
    millrace("topics", "create", "sought", "--partitions", "3")
    for compressed in ((), ("--compression", "zstd")):
        text = "a:1\nb:23\né:4\na:none\n"
        millrace("produce", "sought", "--key-separator", ":", "--null", "none", *compressed, text=text)
    found = millrace.rows("topics", "find", "sought", "--key", "a")
    assert [row["value_bytes"] for row in found] == [1, None, 1, None]
    assert {row["partition"] for row in found} == {partition_of_key(b"a", 3)}
    assert [row["offset"] for row in found] == sorted(row["offset"] for row in found)
    assert all(abs(row["timestamp_ms"] / 1000 - time.time()) < 60 for row in found)
    assert len(millrace.rows("topics", "find", "sought", "--key", "é", "--limit", "1")) == 1
    elsewhere = str((partition_of_key(b"a", 3) + 1) % 3)
    assert millrace.rows("topics", "find", "sought", "--key", "a", "--partition", elsewhere) == []
    title, *rows = millrace("topics", "find", "sought", "--key", "b").splitlines()
    assert (title.split(), len(rows)) == (["partition", "offset", "time", "value", "bytes"], 2)
    assert "has no partition 3" in millrace.refused("topics", "find", "sought", "--key", "b", "--partition", "3")
    assert "nowhere" in millrace.refused("topics", "find", "nowhere", "--key", "b")


def test_keys_headers_and_formats(millrace: Commands) -> None:
    millrace("topics", "create", "keyed", "--partitions", "3")
    text = "a:1\nb:2\nc:none\n"
    millrace(
        "produce", "keyed", "--key-separator", ":", "--header", "from=test", "--header", "empty=", "--null", "none",
        "--acks", "1", "--compression", "zstd", text=text,
    )  # fmt: skip
    shown = millrace("consume", "keyed", "--from-beginning", "--max-messages", "3", "--format", "%k=%v %h%%\\n")
    assert sorted(shown.splitlines()) == ["a=1 from=test,empty=%", "b=2 from=test,empty=%", "c= from=test,empty=%"]
    lines = millrace("consume", "keyed", "--from-beginning", "--max-messages", "3", "--json").splitlines()
    found = {record["key"]: record for record in map(json.loads, lines)}
    assert found["a"]["value"] == "1"
    assert found["c"]["value"] is None
    assert found["b"]["headers"] == [{"name": "from", "value": "test"}, {"name": "empty", "value": ""}]
    assert set(found["a"]) == {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
    bytes_too = json.dumps({"key": "k", "value_base64": "/w==", "headers": [{"name": "h", "value": None}]})
    millrace("produce", "again", "--json", text="\n".join([*lines, bytes_too]))
    again = millrace("consume", "again", "--from-beginning", "--max-messages", "4", "--json").splitlines()
    for before, after in zip(lines, again):
        same = {"key", "value", "headers", "timestamp_ms"}
        assert {k: v for k, v in json.loads(before).items() if k in same} == {
            k: v for k, v in json.loads(after).items() if k in same
        }
    assert json.loads(again[3])["value_base64"] == "/w=="


def test_names_of_headers_that_are_no_text(broker: BrokerProcess, millrace: Commands) -> None:
    with BlockingProducer(millrace.server) as producer:
        producer.send("named", b"v", headers=[("\udcff", b"1"), ("a", b"2")])
    line = millrace("consume", "named", "--from-beginning", "--timeout-ms", "100", "--json")
    assert json.loads(line)["headers"] == [{"name_base64": "/w==", "value": "1"}, {"name": "a", "value": "2"}]
    millrace("produce", "named", "--json", text=line)
    shown = ("consume", "named", "--from-beginning", "--timeout-ms", "100", "--format", "%h\\n")
    done = CliRunner().invoke(main, [*shown, "--server", millrace.server])
    assert done.stdout_bytes == b"\xff=1,a=2\n" * 2


def test_a_backslash_is_read_once(millrace: Commands) -> None:
    millrace("produce", "slashes", text="v\n")
    shown = ("consume", "slashes", "--from-beginning", "--timeout-ms", "100", "--format")
    assert millrace(*shown, r"%v\\n\n") == "v\\n\n"


def test_lines_that_come_slowly_are_not_kept_until_there_are_many(millrace: Commands) -> None:
    millrace("topics", "create", "slow")
    command = [sys.executable, "-m", "gateway", "produce", "slow", "--server", millrace.server]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        for text, count in ((b"one\r\ntwo\nthr", 2), (b"ee\n", 3)):
            producing.stdin.write(text)
            producing.stdin.flush()
            millrace("consume", "slow", "--from-beginning", "--max-messages", str(count))  # waits for them
        producing.stdin.write(bytes(300_000).replace(b"\0", b"x") + b"\n\nend")
        producing.stdin.close()
        assert producing.wait(30) == 0
    lines = millrace("consume", "slow", "--from-beginning", "--max-messages", "6").split("\n")
    assert [*lines[:3], len(lines[3]), *lines[4:]] == ["one", "two", "three", 300_000, "", "end", ""]


def test_standard_streams_that_are_closed(millrace: Commands) -> None:
    for command, closed in (("produce t", "<&-"), ("consume t --from-beginning", ">&-")):
        line = f"exec {sys.executable} -m gateway {command} --server {millrace.server} {closed}"
        done = subprocess.run(["sh", "-c", line], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (
            1,
            f"Error: standard {'input' if '<' in closed else 'output'} is closed\n",
        )


def test_wrong_lines_and_arguments(millrace: Commands) -> None:
    def wrong(*arguments: str, text: str = "", code: int = 2) -> str:
        done = CliRunner().invoke(main, [*arguments, "--server", millrace.server], input=text)
        assert done.exit_code == code, done.output
        return done.stderr

    assert "line 2: no ':' in it" in wrong("produce", "x", "--key-separator", ":", text="a:1\nb\n", code=1)
    none = wrong("produce", "x", "--json", text='{"vlaue": "a"}\n', code=1)
    assert "line 1: it has neither 'value' nor 'value_base64'" in none
    assert millrace("consume", "x", "--from-beginning", "--timeout-ms", "100", "--format", "%k=%v\\n") == "a=1\n"
    assert "line 1" in wrong("produce", "x", "--json", text="[]\n", code=1)
    assert "line 1: too much is nested" in wrong("produce", "x", "--json", text="[" * 100_000 + "\n", code=1)
    assert "a header is a JSON" in wrong("produce", "x", "--json", text='{"value": "a", "headers": ["b"]}\n', code=1)
    late = '{"value": null}\n{"value": null, "timestamp_ms": -5}\n{"value": null}\n'
    assert "line 2: a timestamp is" in wrong("produce", "x", "--json", text=late, code=1)
    no_time = '{"value": null, "timestamp_ms": true}\n'
    assert "line 1: a timestamp is in ms since 1970, not true" in wrong("produce", "x", "--json", text=no_time, code=1)
    assert "is not NAME=VALUE" in wrong("produce", "x", "--header", "x")
    assert "%z means nothing" in wrong("consume", "x", "--format", "%z")
    assert "a group has its own offsets" in wrong("consume", "x", "--group", "g", "--offset", "3")
    assert "say where to" in wrong("groups", "reset-offsets", "g")
    assert millrace.refused("consume", "nowhere") == "no topic 'nowhere'"
    assert "there is no group 'nobody'" in millrace.refused("groups", "describe", "nobody")
    assert "there is no group 'nobody'" in millrace.refused("groups", "delete", "nobody")
    assert "has come nowhere" in millrace.refused("groups", "reset-offsets", "nobody", "--to-latest")


def test_a_group_goes_on_where_it_was(broker: BrokerProcess, millrace: Commands) -> None:
    fill(broker, "shared", 2, 10)
    got = millrace("consume", "shared", "--group", "ours", "--from-beginning", "--max-messages", "8").splitlines()
    got += millrace("consume", "shared", "--group", "ours", "--from-beginning", "--max-messages", "12").splitlines()
    assert sorted(got) == sorted([str(number) for number in range(10)] * 2)
    assert {"group": "ours", "state": "Empty", "members": 0, "type": "consumer"} in millrace.rows("groups", "list")
    found = json.loads(millrace("groups", "describe", "ours", "--json"))
    assert [(one["offset"], one["end_offset"], one["lag"], one["lag_s"]) for one in found["partitions"]] == [
        (10, 10, 0, 0.0), (10, 10, 0, 0.0),
    ]  # fmt: skip


def test_lag_in_records_and_seconds(broker: BrokerProcess, millrace: Commands) -> None:
    began_ms = wall_clock_ms() - 100_000
    fill(broker, "late", 2, 10, at_ms=began_ms)
    server = f"127.0.0.1:{broker.native_port}"
    with BlockingClient(server) as client:
        client.set_offsets("behind", {("late", 0): 4})
        (one,) = client.lag("behind")
        assert (one.topic, one.partition, one.offset, one.end_offset, one.lag, one.member_id) == (
            "late", 0, 4, 10, 6, None,
        )  # fmt: skip
        assert 95_000 < one.lag_ms < 130_000, "the first that was not read is from then"
        with pytest.raises(OffsetOutOfRange):
            client.set_offsets("behind", {("late", 0): 11})
    shown = json.loads(millrace("groups", "describe", "behind", "--json"))
    assert (shown["lag"], shown["lag_s"]) == (6, shown["partitions"][0]["lag_s"])
    assert 95 < shown["lag_s"] < 130
    table = millrace("groups", "describe", "behind")
    assert "topic  partition  offset  end offset  lag" in table

    async def by_trio() -> None:
        async with Client(server) as found:
            assert [(lag.lag, lag.offset) for lag in await found.lag("behind")] == [(6, 4)]
            assert "behind" in [listed.group for listed in await found.list_groups()]
            assert await found.reset_offsets("behind", "latest", dry_run=True) == {("late", 0): 10}
            assert (await found.describe_group("behind")).members == []
            await found.set_offsets("behind", {("late", 1): 2})
            await found.forget_offsets("behind", [("late", 0)])
            assert [lag.partition for lag in await found.lag("behind")] == [1]
            await found.delete_group("behind")
            with pytest.raises(NotFound):
                await found.describe_group("behind")

    trio.run(by_trio)


def test_offsets_are_reset(broker: BrokerProcess, millrace: Commands) -> None:
    fill(broker, "moved", 2, 10, at_ms=1_000_000)
    server = f"127.0.0.1:{broker.native_port}"

    def reset(*arguments: str) -> list[int]:
        return [row["offset"] for row in millrace.rows("groups", "reset-offsets", "mover", *arguments)]

    assert reset("--to-offset", "4", "--topic", "moved") == [4, 4]
    assert reset("--shift-by", "3", "--topic", "moved:1") == [7]
    assert reset("--to-time", "1002500") == [3, 3]
    assert reset("--to-time", "1970-01-01T00:16:44+00:00") == [4, 4]
    assert reset("--ago", "0") == [10, 10]
    assert reset("--shift-by", "-100") == [0, 0]
    assert reset("--to-latest", "--dry-run") == [10, 10]
    with BlockingClient(server) as client:
        assert client.committed_offsets("mover") == {("moved", 0): 0, ("moved", 1): 0}

    async def with_a_member() -> None:
        async with Consumer(server, "mover", topics="moved") as consumer:
            await consumer.poll(5000, 1)
            refused = await trio.to_thread.run_sync(
                lambda: millrace.refused("groups", "reset-offsets", "mover", "--to-latest")
            )
            assert "mover" in refused
            refused = await trio.to_thread.run_sync(lambda: millrace.refused("groups", "delete", "mover"))
            assert refused == "group 'mover' has 1 members"
            described = json.loads(
                await trio.to_thread.run_sync(lambda: millrace("groups", "describe", "mover", "--json"))
            )
            assert described["state"] == "Stable"
            assert [one["member_id"] for one in described["partitions"]] == [described["members"][0]["member_id"]] * 2
            assert "millrace" in await trio.to_thread.run_sync(lambda: millrace("groups", "describe", "mover"))

    trio.run(with_a_member)
    millrace("groups", "delete", "mover")
    assert "mover" not in [row["group"] for row in millrace.rows("groups", "list")]


def test_a_signal_ends_reading_and_commits(broker: BrokerProcess, millrace: Commands) -> None:
    fill(broker, "signalled", 1, 5)
    command = [sys.executable, "-m", "gateway", "consume", "signalled", "--group", "told", "--from-beginning"]
    with subprocess.Popen(
        [*command, "--server", millrace.server], stdout=subprocess.PIPE, cwd=CHECKOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(5)] == [f"{number}\n" for number in range(5)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with BlockingClient(millrace.server) as client:
        assert client.committed_offsets("told") == {("signalled", 0): 5}


def test_time_runs_from_when_a_group_has_begun(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 1000\n")
    arguments = ["--config", str(config)]
    with broker_process(tmp_path / "data", doors=["native"], arguments=arguments) as process:
        fill(process, "slow", 2, 3)
        said = Commands(process)("consume", "slow", "--group", "late", "--from-beginning", "--timeout-ms", "900")
    assert sorted(said.split()) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("command", ["list", "describe", "delete", "reset-offsets"])
def test_errors_are_those_of_the_broker(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("protocols.native.clients.blocking_admin.time.sleep")  # nobody who is not there is waited for
    words = {"list": [], "reset-offsets": ["g", "--to-latest"]}.get(command, ["g"])
    done: Any = CliRunner().invoke(main, ["groups", command, *words, "--server", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert "cannot connect" in done.stderr
    assert not isinstance(done.exception, MillraceError)
