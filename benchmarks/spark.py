"""Spark reads and writes topics: this package's source beside Spark's own Kafka connector, in one session.

    python -m benchmarks.spark_jars
    python -m benchmarks.spark fill --millrace 127.0.0.1:9094 --door 127.0.0.1:9092 --kafka 127.0.0.1:9192
    python -m benchmarks.spark queries --millrace 127.0.0.1:9094 --kafka 127.0.0.1:9192
    python -m benchmarks.spark sink|triggers|memory --millrace 127.0.0.1:9094 --kafka 127.0.0.1:9192
    python -m benchmarks.spark filters --millrace 127.0.0.1:9094 --door 127.0.0.1:9092 --broker-pid PID

`fill` makes the topics, over Kafka's protocol on both sides (--door is Millrace's Kafka door), so that the batches are
the same: 4 partitions, keys of two letters, a dash and a number, values of 100 to 300 bytes. --kafka is an Apache
Kafka, or whatever the connector is to read; without it there is one column. All run on `local[2]`; the median of the
runs counts. Sources take turns, after a warm-up of each. Answers are compared.

`triggers` measures micro-batches of 1,000 records: how long one takes beside what Spark takes with a source of its own
(`own`: rate-micro-batch) and with its connector, and how many come in time at ten a second.

`filters` makes topics of its own where they are not there (with --door): each device writes 5,000 records in a row, and
one record of every 500 has the key `everywhere`. Of queries by key and by header it says how many bytes of batches a
reader gets, how much CPU it and the broker take for that, and how long Spark takes (the median), with filters pushed
down and without.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import descendants
from benchmarks.spark_jars import jars
from core_log.batch_header import HEADER_BYTES
from core_log.compression import Compression, decompress
from core_log.containing import containing
from core_log.record_batch import BatchBuilder
from spark_bridge.looked_for import strings_for

PARTITIONS = 4
TOPICS = {"plain": ("none", False), "headers": ("none", True), "lz4": ("lz4", False), "zstd": ("zstd", False)}
"""By the ends of their names: how they are compressed, and whether records have headers."""
SHARE = {"plain": 1.0, "headers": 0.5, "lz4": 0.5, "zstd": 0.5}
QUERIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "count": ("plain", lambda rows: rows.count()),
    "sum of value length": ("plain", lambda rows: rows.selectExpr("sum(length(value))").first()[0]),
    "group by key prefix": (
        "plain",
        lambda rows: len(rows.selectExpr("substring(key, 1, 2) p").groupBy("p").count().collect()),
    ),
    "headers": ("headers", lambda rows: rows.selectExpr("sum(length(value) + size(headers))").first()[0]),
    "lz4": ("lz4", lambda rows: rows.selectExpr("sum(length(value))").first()[0]),
    "zstd": ("zstd", lambda rows: rows.selectExpr("sum(length(value))").first()[0]),
}


def _records(count: int) -> Iterator[tuple[bytes, bytes]]:
    """The same on each call. Values are texts of fields, so that they can be compressed."""
    rng = random.Random(7)
    pool = b"".join(b'{"id": %d, "room": "%d", "degrees": %f}, ' % (i, i % 50, rng.random()) for i in range(50_000))
    letters = [a + b for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for b in "ABCDEFGHIJ"]
    for number in range(count):
        at = rng.randrange(len(pool) - 300)
        yield f"{rng.choice(letters)}-{number}".encode(), pool[at : at + rng.randint(100, 300)]


def _fill(server: str, topic: str, count: int, compression: str, *, headers: bool) -> None:
    given: Any = [("trace", b"0123456789abcdef")] if headers else None
    _produce(server, topic, ((key, value, given) for key, value in _records(count)), compression)


def _produce(server: str, topic: str, records: Iterable[tuple[bytes, bytes, Any]], compression: str) -> None:
    """Keys, values and headers, in batches of 500."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": server})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()
    settings = {"compression.type": compression, "linger.ms": 50, "batch.num.messages": 500, "acks": "all"}
    producer = Producer({"bootstrap.servers": server, "queue.buffering.max.messages": 500_000, **settings})
    for number, (key, value, given) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, partition=number // 500 % PARTITIONS, headers=given)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(60)
    if left:
        sys.exit(f"{left} records were not written to {server}")


def _session(directory: str, conf: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    from pyspark_millrace import ensure_java

    ensure_java()
    warnings.simplefilter("ignore", FutureWarning)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4", "spark.local.dir": directory, "spark.sql.warehouse.dir": directory,
        "spark.jars": ",".join(jars()), "spark.sql.streaming.numRecentProgressUpdates": "2000",
    }  # fmt: skip
    for name, value in (settings | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


Source = tuple[str, dict[str, str]]
"""A format and how it finds its broker."""


def _sources(options: argparse.Namespace) -> dict[str, Source]:
    found: dict[str, Source] = {}
    if options.kafka:
        if not jars():
            sys.exit("the connector is not here: python -m benchmarks.spark_jars")
        found["connector"] = ("kafka", {"kafka.bootstrap.servers": options.kafka})
    found["millrace"] = ("millrace", {"millrace.servers": options.millrace})
    return found


def _load(spark: Any, source: Source, topic: str, *, headers: bool) -> Any:
    kind, where = source
    rows = spark.read.format(kind).options(**where).option("subscribe", topic).option("startingOffsets", "earliest")
    return rows.option("includeHeaders", str(headers).lower()).load()


def queries(spark: Any, options: argparse.Namespace) -> None:
    """The table of reads."""
    sources = _sources(options)
    chosen = {name: query for name, query in QUERIES.items() if not options.only or name in options.only}
    print(f"{'query':22}" + "".join(f"{label:>24}" for label in sources) + f"{'ratio':>8}", flush=True)
    for number, (name, (topic, query)) in enumerate(chosen.items()):
        taken: dict[str, list[float]] = {label: [] for label in sources}
        answers = set()
        for run in range(0 if number else -1, options.runs):  # the first of all is the warm-up
            for label, source in list(sources.items())[:: 1 if run % 2 else -1]:
                began = time.perf_counter()
                answers.add(query(_load(spark, source, f"{options.topic}-{topic}", headers=TOPICS[topic][1])))
                if run >= 0:
                    taken[label].append(time.perf_counter() - began)
        if len(answers) > 1:
            sys.exit(f"{name}: the sources do not agree: {answers}")
        rates = [options.records * SHARE[topic] / statistics.median(times) for times in taken.values()]
        cells = "".join(f"{rate:14,.0f} records/s" for rate in rates)
        print(f"{name:22}{cells}{rates[-1] / rates[0]:8.2f}", flush=True)


def sink(spark: Any, options: argparse.Namespace) -> None:
    """Rows of about 200 bytes into a topic, with keys."""
    count = int(options.records * 0.5)
    value = "repeat(substr(sha2(string(id), 256), 1, 40), 5)"
    rows = spark.range(0, count, 1, 4).selectExpr("string(id) key", f"{value} value")
    rows.write.format("noop").mode("overwrite").save()
    for run in range(-1, options.runs):
        for label, (kind, where) in _sources(options).items():
            topic = f"{options.topic}-sink"
            began = time.perf_counter()
            rows.write.format(kind).options(**where).option("topic", topic).mode("append").save()
            if run >= 0:
                print(f"sink {label:12} {count / (time.perf_counter() - began):12,.0f} records/s", flush=True)
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    print(f"making the rows takes {time.perf_counter() - began:.2f} s of that")


def triggers(spark: Any, options: argparse.Namespace) -> None:
    """Micro-batches of 1,000 records."""
    sources: dict[str, Source] = {"own": ("rate-micro-batch", {}), **_sources(options)}
    for label, (kind, where) in sources.items():
        if options.source and label not in options.source:
            continue
        rows = spark.readStream.format(kind).options(**where)
        if kind == "rate-micro-batch":
            rows = rows.option("rowsPerBatch", "1000").option("numPartitions", str(PARTITIONS)).load()
        else:
            rows = rows.option("subscribe", f"{options.topic}-plain").option("startingOffsets", "earliest")
            rows = rows.option("maxOffsetsPerTrigger", "1000").load()
        for pause in options.every or ["0 seconds", "100 milliseconds"]:
            with tempfile.TemporaryDirectory(dir=options.checkpoints) as directory:
                query = rows.writeStream.format("noop").option("checkpointLocation", directory)
                query = query.trigger(processingTime=pause).start()
                while not query.lastProgress or query.lastProgress["batchId"] < options.warm_up:
                    time.sleep(0.1)
                first = query.lastProgress["batchId"] + 1
                time.sleep(options.seconds)
                query.stop()
                done = [one for one in query.recentProgress if one["numInputRows"] and one["batchId"] >= first]
                _print_triggers(label, pause, done)


def _print_triggers(label: str, pause: str, done: list[Any]) -> None:
    took = sorted(one["durationMs"]["triggerExecution"] for one in done)
    late = sum(1 for one in took if one > 100)
    names = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "commitBatch")
    parts = {name: statistics.median(one["durationMs"].get(name, 0) for one in done) for name in names}
    starts = [_seconds(one["timestamp"]) for one in done]
    rate = (len(starts) - 1) / max(starts[-1] - starts[0], 0.001)
    shown = ", ".join(f"{name} {value:.0f}" for name, value in parts.items() if value)
    print(
        f"{label:10} every {pause:17} {len(done):5} in all, {rate:6.1f} a second, "
        f"{statistics.median(took):5.0f} ms each (99 %: {took[int(len(took) * 0.99)]} ms, {late} over 100): {shown}",
        flush=True,
    )


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def memory(spark: Any, options: argparse.Namespace) -> None:
    """The most that Spark's Python processes have of their own, while a whole partition is read by each task."""
    import threading

    over = threading.Event()
    most: dict[int, int] = {}

    def watch() -> None:
        while not over.wait(0.02):
            for pid in descendants(os.getpid()):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"pyspark" in command and b"java" not in command.partition(b"\0")[0]:
                        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                        own = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))
                        most[pid] = max(most.get(pid, 0), own)
                except OSError:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    for part in (0.25, 1):
        most.clear()
        end = {str(number): int(options.records / PARTITIONS * part) for number in range(PARTITIONS)}
        rows = spark.read.format("millrace").option("millrace.servers", options.millrace)
        topic = f"{options.topic}-plain"
        text = str({topic: end}).replace("'", '"')
        rows.option("subscribe", topic).option("endingOffsets", text).load().selectExpr("sum(length(value))").first()
        print(f"{sum(end.values()):12,} records: {max(most.values()) / 1024:.0f} MiB in the largest Python process")
    over.set()
    thread.join()


DEVICE_RECORDS = 5_000
SPREAD = "everywhere"


def _device_records(count: int) -> Iterator[tuple[bytes, bytes]]:
    for number, (_, value) in enumerate(_records(count)):
        yield SPREAD.encode() if number % 500 == 250 else b"device-%d" % (number // DEVICE_RECORDS), value


def _fill_devices(options: argparse.Namespace, topic: str, compression: str) -> None:
    from millrace import BlockingClient

    with BlockingClient(options.millrace) as client:
        if topic in client.metadata() or not options.door:
            return
    records = _device_records(options.records)
    with_headers = ((key, value, [("site", b"site of " + key)]) for key, value in records)
    _produce(options.door, topic, with_headers, compression)


def _read_here(source: Source, topic: str, where: dict[str, str], filters: list[Any]) -> tuple[int, int, float]:
    """Rows, bytes of batches, and seconds of CPU, of a reader in this process."""
    from millrace import BlockingClient
    from spark_bridge.data_source import MillraceDataSource

    count = size = 0
    fetch = BlockingClient.fetch

    def counted(client: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal size
        result = fetch(client, *arguments, **named)
        size += sum(map(len, result.batches))
        return result

    BlockingClient.fetch = counted  # type: ignore[assignment, method-assign]
    try:
        found = MillraceDataSource({**source[1], "subscribe": topic, **where, "filterPushdown": "true"})
        reader: Any = found.reader(found.schema())
        reader.pushFilters(filters)
        began = time.process_time()
        for part in reader.partitions():
            for rows in reader.read(part):
                count += rows.num_rows
    finally:
        BlockingClient.fetch = fetch  # type: ignore[method-assign]
    return count, size, time.process_time() - began


def looking() -> None:
    """What it takes to look for a key in a batch of 500 records, and to decompress one; the best of many times."""
    records = list(_device_records(500))
    for compression in Compression:
        builder = BatchBuilder(0, 0, 0, compression=compression)
        for offset, (key, value) in enumerate(records):
            builder.add(offset, key, value)
        batch = builder.build()
        best: list[float] = []
        for work in (
            partial(containing, [batch], strings_for([("key", [b"device-999"])], [], [])),
            partial(decompress, compression, batch[HEADER_BYTES:]),
        ):
            times = []
            for _ in range(50):
                began = time.process_time()
                work()
                times.append(time.process_time() - began)
            best.append(min(times) * 1e6)
        print(f"{compression.name.lower():8}{len(batch):8,} bytes: looked at {best[0]:4.0f} us, read {best[1]:4.0f} us")


def filters(spark: Any, options: argparse.Namespace) -> None:
    """Queries that want few of the rows."""
    from pyspark.sql.datasource import EqualTo

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    device = f"device-{options.records // DEVICE_RECORDS // 2}"
    where = {"headers.where": f'{{"site": "site of {device}"}}'}
    cases: list[tuple[str, str, dict[str, str], str | None, bool]] = [
        ("none", "all", {}, None, False),
        ("none", "key, in Spark", {}, device, False),
        ("none", "key", {}, device, True),
        ("none", "key in all batches", {}, SPREAD, True),
        ("none", "header", where, None, False),
        ("zstd", "key, in Spark", {}, device, False),
        ("zstd", "key", {}, device, True),
    ]
    looking()
    print(f"{'':30}{'rows':>10}{'bytes':>14}{'reader CPU':>12}{'broker CPU':>12}{'Spark':>8}", flush=True)
    for compression, name, given, key, is_pushed in cases:
        if options.only_filters and name not in options.only_filters:
            continue
        topic = f"{options.topic}-devices-{compression}"
        _fill_devices(options, topic, compression)
        found = [EqualTo(("key",), key.encode())] if is_pushed and key is not None else []
        before = _cpu_s(options.broker_pid)
        count, size, reader_s = _read_here(_sources(options)["millrace"], topic, given, found)
        broker_s = _cpu_s(options.broker_pid) - before
        print(f"{compression:8}{name:22}{count:10,}{size:14,}{reader_s:10.2f} s{broker_s:10.2f} s", end="", flush=True)
        times = []
        for run in range(-1, options.runs):
            rows = spark.read.format("millrace").option("millrace.servers", options.millrace)
            pushed = {"subscribe": topic, "filterPushdown": str(is_pushed).lower(), **given}
            rows = rows.options(**pushed).load()
            rows = rows if key is None else rows.where(f"key = binary('{key}')")
            began = time.perf_counter()
            rows.selectExpr("count(*)", "sum(length(value))").first()
            if run >= 0:
                times.append(time.perf_counter() - began)
        print(f"{statistics.median(times):6.2f} s", flush=True)


def _cpu_s(pid: int | None) -> float:
    """What a process has used."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fill", "queries", "sink", "triggers", "memory", "filters"])
    parser.add_argument("--millrace", metavar="HOST:PORT", default="127.0.0.1:9094", help="its native door")
    parser.add_argument("--door", metavar="HOST:PORT", help="its Kafka door, to fill it")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="what the connector reads")
    parser.add_argument("--topic", default="spark", help="how topics' names begin")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement of triggers")
    parser.add_argument("--warm-up", type=int, default=10, help="micro-batches before each measurement of triggers")
    parser.add_argument("--checkpoints", help="directory for checkpoints of triggers")
    parser.add_argument(
        "--every", action="append", help="how often, of triggers; default: at once, and 100 milliseconds"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark")
    parser.add_argument(
        "--source", action="append", choices=["own", "connector", "millrace"], help="of triggers; default: all"
    )
    parser.add_argument("--broker-pid", type=int, help="of filters: whose CPU is counted")
    parser.add_argument("--only-filters", action="append", default=[], help="of filters; default: all")
    parser.add_argument("--only", action="append", default=[], choices=list(QUERIES))
    options = parser.parse_args()
    if options.what == "fill":
        for server, (name, (compression, headers)) in itertools.product(
            filter(None, (options.door, options.kafka)), TOPICS.items()
        ):
            began = time.monotonic()
            count = int(options.records * SHARE[name])
            _fill(server, f"{options.topic}-{name}", count, compression, headers=headers)
            print(f"{server} {name}: {count / (time.monotonic() - began):,.0f} records/s", flush=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        spark = _session(directory, dict(one.split("=", 1) for one in options.conf))
        modes = {"queries": queries, "sink": sink, "triggers": triggers, "memory": memory, "filters": filters}
        modes[options.what](spark, options)
        spark.stop()


if __name__ == "__main__":
    main()
