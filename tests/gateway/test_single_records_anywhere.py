"""Records with a time of their own, and without a key or value, that another broker appends."""

from __future__ import annotations

from pathlib import Path

from core_log.record_batch import BatchBuilder, Record, encode_headers, iterate_records
from gateway.etcd_process import EtcdProcess
from routing.topics.single_records import append_anywhere, packed, unpacked
from tests.gateway.test_member import three, until

RECORDS = [
    Record(0, 1_000, b"k", None, [("h", b"v"), ("none", None)]),
    Record(1, 2_000, None, b"v", []),
    Record(2, 0, b"", b"", [("millrace.as-produced", b"an application's")]),
]


def single(record: Record) -> bytes:
    builder = BatchBuilder(0, 0, 5_000)
    builder.add(0, record.key, record.value, record.headers, record.timestamp_ms)
    return builder.build()


def test_others_are_left_as_they_are() -> None:
    key, block, value = packed(single(RECORDS[0]))
    assert unpacked(key, block, [value]) is not None
    assert unpacked(key, block, [value, value]) is unpacked([key], block, [value]) is None
    for headers in ([], [("h", b"millrace.as-produced")], RECORDS[2].headers, [("millrace.as-produced", None)]):
        assert unpacked(b"", encode_headers(headers), [b""]) is None


async def test_they_are_what_they_were_wherever_the_partition_is_led(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "single-records") as (_, running):
        brokers = [one.server.broker for one in running.values()]
        await brokers[0].create_topic("t", assignment=[[1]], config={"retention.ms": "-1"})
        await until(lambda: all("t" in broker.topics for broker in brokers))
        parts = [broker.topics["t"].partitions[0] for broker in brokers]
        await until(lambda: parts[0].leadership.refusal() is None and parts[1].forward is not None)  # type: ignore[union-attr]
        for broker, partition in zip(brokers[:2], parts):
            for record in RECORDS:
                await broker.commits.committed([append_anywhere(partition, single(record))])
        found = [record for batch in parts[0].log.read_blocking(0, 1 << 20) for record in iterate_records(batch)]
        assert [record[1:] for record in found] == [record[1:] for record in RECORDS] * 2
