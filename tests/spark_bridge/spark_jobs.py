"""Export and replay. `test_spark.py` runs these: all that needs a Spark session belongs to one file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from core_log.wall_clock import wall_clock_ms
from gateway.cli import main
from millrace import BlockingClient, BlockingProducer
from spark_bridge.jobs.export import export
from spark_bridge.jobs.replay import replay_files, replay_topics
from spark_bridge.jobs.session import JobError
from tests.spark_bridge.conftest import CHECKOUT
from tests.spark_bridge.test_queues import channel_of
from tests.spark_bridge.test_sink import made, numbers, records
from tests.support import BrokerProcess

HOUR_MS = 3_600_000
BEGIN_MS = (wall_clock_ms() // HOUR_MS - 30) * HOUR_MS
"""Some hours that retention keeps."""


def fill(server: str, topic: str, first: int, last: int, per_hour: int = 500) -> None:
    """Numbers with a key, every third with a header, `per_hour` of them in each hour."""
    with BlockingProducer(server) as producer:
        for number in range(first, last):
            time_ms = BEGIN_MS + number * HOUR_MS // per_hour
            headers = [("n", b"%d" % number)] if number % 3 == 0 else None
            producer.send(topic, b"%d" % number, b"k%d" % (number % 7), headers, timestamp_ms=time_ms)


def exported(directory: Path) -> list[int]:
    """The numbers in the Parquet files, as any tool sees them, and each where it belongs."""
    found = []
    for path in directory.glob("date=*/hour=*/*.parquet"):
        table = pq.ParquetFile(path).read()
        hours = {int(one.timestamp()) // 3600 for one in table["timestamp"].to_pylist()}
        day, hour = (part.partition("=")[2] for part in path.parent.parts[-2:])
        named = time.strptime(f"{day} {hour} UTC", "%Y-%m-%d %H %Z")
        assert hours == {int(time.mktime(named) - time.timezone) // 3600}
        found += [int(value) for value in table["value"].to_pylist()]
    return sorted(found)


def test_an_export_takes_what_came_since_the_last_one(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    topic, directory = made(server, "export-all"), tmp_path / "lake"
    source = {"millrace.servers": server, "subscribe": topic, "includeHeaders": "true", "maxOffsetsPerTrigger": "1200"}
    fill(server, topic, 0, 2000)
    half = directory / "_checkpoint" / "offsets" / ".0.c0ffee.tmp"  # killed while it noted its first micro-batch
    half.parent.mkdir(parents=True)
    half.write_text("v1")
    last = time.gmtime((BEGIN_MS + 3 * HOUR_MS) / 1000)
    blocked = directory / f"date={time.strftime('%F', last)}" / f"hour={last.tm_hour:02}"
    blocked.parent.mkdir(parents=True)
    blocked.touch()  # so the run ends while files of its micro-batch are in their places and others are not
    with pytest.raises(JobError):
        export(spark, source, str(directory))
    blocked.unlink()
    assert 1200 <= len(exported(directory)) < 2000
    said: list[tuple[int, int]] = []
    done = export(spark, source, str(directory), progress=lambda now: said.append((now.records, now.waiting)))
    assert (done.records, done.batches, len(done.hours)) == (800, 1, 2), "the second micro-batch comes again"
    assert said[0] == (800, 0)
    assert exported(directory) == list(range(2000))
    fill(server, topic, 2000, 2050)
    plain = {name: value for name, value in source.items() if name != "includeHeaders"}
    assert export(spark, plain, str(directory)).records == 50
    fill(server, topic, 2050, 2100)
    assert export(spark, source, str(directory)).records == 50
    assert exported(directory) == list(range(2100))
    table = spark.read.parquet(str(directory))
    second = time.gmtime((BEGIN_MS + HOUR_MS) / 1000)
    assert table.where(f"date = '{time.strftime('%F', second)}' and hour = {second.tm_hour}").count() == 500

    target = made(server, "export-back")
    again = replay_files(
        spark, str(directory), {"millrace.servers": server, "topic": target}, since_ms=BEGIN_MS + HOUR_MS,
        checkpoint=str(tmp_path / "replay"),
    )  # fmt: skip
    assert (again.records, again.steps) == (1600, 4)
    found = records(server, target)
    assert sorted(int(one.value or b"") for one in found) == list(range(500, 2100))
    for one in found:
        number = int(one.value or b"")
        assert (one.key, list(one.headers)) == (
            b"k%d" % (number % 7),
            [("n", b"%d" % number)] if number % 3 == 0 and not 2000 <= number < 2050 else [],
        )  # fmt: skip
    for key in range(7):
        of_key = [int(one.value or b"") for one in found if one.key == b"k%d" % key]
        assert of_key == sorted(of_key)


def test_a_replay_that_is_done_again_writes_nothing_twice(
    spark: Any, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    topic, target, notes = made(server, "replay-from"), made(server, "replay-to"), tmp_path / "notes"
    fill(server, topic, 0, 1000)
    source = {"millrace.servers": server, "subscribe": topic}
    sink = {"millrace.servers": server, "topic": target}

    def run() -> Any:
        return replay_topics(
            spark, source, sink, since_ms=BEGIN_MS + HOUR_MS // 2, checkpoint=str(notes), keep_partitions=True,
            offsets_per_step=300,
        )  # fmt: skip

    assert (run().records, numbers(server, target)) == (750, list(range(250, 1000)))
    for note in notes.glob("*done-1*"):  # as if it had been killed between the last row of a step and its note
        note.unlink()
    fill(server, topic, 1000, 1010)  # is not part of the plan
    again = run()
    assert (again.steps, again.steps_before) == (3, 2)
    assert numbers(server, target) == list(range(250, 1000))
    assert {one.partition: 0 for one in records(server, target)} == dict.fromkeys(range(3), 0)
    with pytest.raises(JobError, match="the checkpoint is of another replay, from topics"):
        replay_files(spark, str(tmp_path), sink, checkpoint=str(notes))
    with pytest.raises(JobError, match="the checkpoint is of another replay, to replay-to"):
        replay_topics(spark, source, sink | {"topic": topic}, checkpoint=str(notes))
    for note in notes.glob("*done-2*"):
        note.unlink()
    with BlockingClient(server) as client:
        client.delete_topic(topic)
        client.create_topic(topic, partitions=3)
    fill(server, topic, 0, 2000)
    with pytest.raises(JobError, match=f"{topic} was deleted and made again since the replay was planned"):
        run()
    assert numbers(server, target) == list(range(250, 1000))


def test_a_replay_of_any_files_goes_on_with_other_cores(
    spark: Any, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Spark shares out files among its cores, of which there may be others when a step comes again."""
    server, files = f"127.0.0.1:{shared_broker.native_port}", tmp_path / "files"
    files.mkdir()
    for first in range(0, 40, 10):
        values = [b"%d" % number for number in range(first, first + 10)]
        pq.write_table(pa.table({"value": values, "_metadata": values}), files / f"{first}.parquet")
    for earlier in (False, True):
        target, notes = made(server, f"cores-{earlier}"), tmp_path / f"notes-{earlier}"
        sink = {"millrace.servers": server, "topic": target}
        if earlier:  # what an earlier version planned has the tasks that it had
            plan = {"name": "planned", "what": f"from file:{files}", "steps": [[str(one) for one in files.iterdir()]]}
            notes.mkdir()
            (notes / "plan.json").write_text(f"{json.dumps(plan)}\n")
        for cores in ("1", "1" if earlier else "4"):
            spark.conf.set("spark.sql.files.minPartitionNum", cores)
            try:
                assert replay_files(spark, str(files), sink, checkpoint=str(notes)).records == 40
            finally:
                spark.conf.unset("spark.sql.files.minPartitionNum")
            for note in notes.glob("*done-0*"):  # as if it had been killed right before
                note.unlink()
        assert numbers(server, target) == list(range(40))


def test_a_filter_of_a_virtual_host_is_replayed(spark: Any, shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        client.administer("vhosts.add", name="replayed")
        topic = client.look("topics.of_filter", pattern="replayed.+", vhost="replayed")
    fill(server, topic, 0, 10)
    source = {"millrace.servers": server, "mqtt.filter": "replayed/+", "millrace.vhost": "replayed"}
    target = made(server, "replay-of-vhost")
    assert replay_topics(spark, source, {"millrace.servers": server, "topic": target}).records == 10
    assert numbers(server, target) == list(range(10))


def test_what_lies_behind_younger_records_is_replayed(spark: Any, shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    topic, target = made(server, "replay-late", 1), made(server, "replay-of-late")
    with BlockingProducer(server) as producer:
        for number in (0, 3, 1, 9, 2, 1):
            producer.send(topic, b"%d" % number, timestamp_ms=BEGIN_MS + number)
    sink = {"millrace.servers": server, "topic": target}
    source = {"millrace.servers": server, "subscribe": topic}
    assert replay_topics(spark, source, sink, until_ms=BEGIN_MS + 3).records == 4
    assert replay_topics(spark, source | {"timestampDisorderMs": "2"}, sink, until_ms=BEGIN_MS + 3).records == 2
    assert numbers(server, target) == [0, 0, 1, 1, 1, 2]


@pytest.mark.soak
def test_queues_and_filters_are_exported(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    """A queue as it is looked into, one that is emptied, and what a filter matches."""
    ways = {
        "seen": ["--queue", "export-seen"],
        "taken": ["--queue", "export-taken", "--option", "queue.mode=consume"],
        "kept": ["--mqtt-filter", "export/+/v", "--text"],
    }

    def export_by(name: str) -> tuple[int, list[int]]:
        arguments = ["spark", "export", str(tmp_path / name), *ways[name], "--json", "--quiet"]
        arguments += ["--server", f"127.0.0.1:{shared_broker.native_port}"]
        done = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])["records"], exported(tmp_path / name)

    with BlockingClient(f"127.0.0.1:{shared_broker.native_port}") as client:
        client.look("topics.of_filter", pattern="export.+.v")
    with channel_of(shared_broker) as channel:
        for queue in ("export-seen", "export-taken"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", "export.#")
        for number in range(80):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("amq.topic", "export.1.v", b"%d" % number, properties)
            if number == 69:
                assert [export_by(name) for name in ways] == [(70, list(range(70)))] * 3
        assert export_by("taken") == (10, list(range(80)))
        found = [channel.queue_declare(queue, passive=True) for queue in ("export-seen", "export-taken")]
        assert [one.method.message_count for one in found] == [80, 0]
    server = f"127.0.0.1:{shared_broker.native_port}"
    arguments = ["spark", "replay", made(server, "filter-replay"), "--mqtt-filter", "export/+/v", "--server", server]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.stdout.startswith("80 records")


@pytest.mark.soak  # starts another Java
def test_an_export_that_is_killed_is_gone_on_with(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    topic, directory = made(server, "export-killed"), tmp_path / "lake"
    fill(server, topic, 0, 9000, per_hour=4500)
    command = ["spark", "export", str(directory), "--server", server, "--topic", topic, "--batch", "3000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *command, "--master", "local[1]"],
        cwd=CHECKOUT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if "records, " in line), "")
        assert "3,000 records, 6,000 left" in line, process.stderr.read()
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the command, Java and its workers
        process.communicate()
    assert len(exported(directory)) < 9000
    del command[-2:]
    done = CliRunner().invoke(main, [*command, "--json", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert exported(directory) == list(range(9000))
    assert 0 < summary["records"] <= 6000
    assert len(list(directory.glob("_export/*"))) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "DIR", "--topic", "nowhere"], "millrace: there is no topic 'nowhere'"),
        (["export", "DIR", "--topic", "t", "--option", "best=1"], "millrace: unknown option 'best'; the options"),
        (["replay", "t", "--topic", "t", "--option", "best=1"], "millrace: unknown option 'best'; the options"),
        (["export", "DIR"], "say what is read: one of --topic, --pattern, --queue and --mqtt-filter"),
        (["replay", "t", "--from", "DIR"], "millrace: there are no Parquet files in "),
        (["replay", "t", "--from", "DIR", "--since", "noon"], "'noon' is neither a time like 2026-01-31T09:00"),
        (["replay", "t", "--topic", "t", "--since", "2", "--until", "1"], "--since is not before --until"),
        (["export", "DIR", "--queue", "nowhere"], "millrace: there is no queue 'nowhere'"),
    ],
)
def test_the_commands_say_what_is_wrong(
    spark: Any, shared_broker: BrokerProcess, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    given = [str(tmp_path) if one == "DIR" else one for one in arguments]
    server = f"127.0.0.1:{shared_broker.native_port}"
    done = CliRunner().invoke(main, ["spark", *given, "--server", server], catch_exceptions=False)
    assert done.exit_code in (1, 2)
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == [], "no query was begun, of whose end Spark writes at length"


@pytest.mark.soak
def test_a_spark_that_does_not_start_is_a_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gateway",
        "spark",
        "export",
        str(tmp_path),
        "--topic",
        "t",
        "--master",
        "local[x]",
    ]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "millrace: Spark does not start with master local[x]: Could not parse Master URL: 'local[x]'" in done.stderr
    assert "Traceback" not in done.stderr
