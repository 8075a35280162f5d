"""Records are found by their key: all of them, whatever lies between, and nothing that only looks like them."""

from __future__ import annotations

import random

import pytest
import trio

from core_log.batch_header import encode_batch, parse_header
from core_log.compression import Compression
from core_log.record_batch import BatchBuilder
from millrace import (
    BlockingClient,
    Client,
    ConsumerRecord,
    Producer,
    TransactionalProducer,
    UnknownPartition,
    UnknownTopic,
)
from protocols.native.clients import finding
from protocols.native.clients.group_bytes import Partition
from protocols.native.errors import ProtocolError
from protocols.native.wire_base import CONTAINING_BYTES_MAX
from tests.protocols.native.broker import Running, native_broker

LONG = b"k" * CONTAINING_BYTES_MAX
KEYS = (None, b"", b"a", b"ab", b"\0a", b"\x02a", b"b" * 70, LONG)
CODECS = (Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD)


def places(records: list[ConsumerRecord]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


async def fill(running: Running, rng: random.Random, partitions: int) -> dict[bytes, list[tuple[int, int]]]:
    """Batches of all kinds; where each key lies."""
    topic = await running.broker.create_topic("t", partitions=partitions, config={"retention.ms": "-1"})
    there: dict[bytes, list[tuple[int, int]]] = {key: [] for key in KEYS if key is not None}
    for partition in topic.partitions:
        for _ in range(30):
            builder, base = BatchBuilder(0, -1, 1000, compression=rng.choice(CODECS)), partition.log.log_end_offset
            for number in range(rng.randrange(1, 5)):
                key = rng.choice(KEYS)
                builder.add(number, key, rng.choice([b"", b"a", b"\x02a\0a", None]), [("a", b"a")])
                if key is not None:
                    there[key].append((partition.index, base + number))
            partition.append(builder.build())
        partition.log.request_sync()
        await partition.log.wait_committed(partition.log.log_end_offset)
    return there


@pytest.mark.parametrize("seed", range(2))
async def test_every_record_with_a_key_and_no_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    async with native_broker() as running, Client(running.server) as client:
        there = await fill(running, rng, 3)
        for size in (1, 2000, 16 << 20):
            monkeypatch.setattr(finding, "LOOKED_BYTES_MAX", size)
            for key, expected in there.items():
                if size == 1 and rng.random() < 0.7:
                    continue
                found = await client.find_records("t", key)
                assert places(found) == expected
                assert {record.key for record in found} <= {key}
        key, expected = next((key, each) for key, each in there.items() if len(each) > 8)
        assert places(await client.find_records("t", key, limit=5)) == expected[:5]
        assert places(await client.find_records("t", key, partition=1)) == [one for one in expected if one[0] == 1]
        assert await client.find_records("t", b"nobody's") == []

        def blocking() -> list[ConsumerRecord]:
            with BlockingClient(running.server) as other:
                with pytest.raises(UnknownPartition, match="no partition 3"):
                    other.find_records("t", key, partition=3)
                with pytest.raises(UnknownTopic):
                    other.find_records("none", key)
                return other.find_records("t", key)

        assert places(await trio.to_thread.run_sync(blocking)) == expected
        assert running.broker.left_out_bytes > 0


async def test_what_is_not_committed_is_not_found() -> None:
    async with (
        native_broker() as running,
        Client(running.server) as client,
        TransactionalProducer(running.server, "one") as producer,
    ):
        for number in range(4):
            await producer.begin()
            await producer.send("t", b"%d" % number, key=b"k", partition=0)
            await (producer.abort() if number % 2 else producer.commit())
        await producer.begin()
        await producer.send("t", b"open", key=b"k", partition=0)
        await producer.flush()
        assert [record.value for record in await client.find_records("t", b"k")] == [b"0", b"2"]
        await producer.abort()


async def test_what_is_deleted_meanwhile_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with native_broker() as running:
        async with Producer(running.server, batch_bytes=200) as producer:
            for number in range(100):
                await producer.send("t", b"%d" % number, key=b"k")
        monkeypatch.setattr(finding, "LOOKED_BYTES_MAX", 1)
        async with Client(running.server) as client:
            asker = client._asker()
            batches, asked = asker.batches, []

            async def deleting(place: Partition, offset: int, *arguments: int, **named: object) -> list[memoryview]:
                asked.append(offset)
                if len(asked) == 3:
                    await client.delete_records("t", 0, 60)
                return await batches(place, offset, *arguments, **named)  # type: ignore[arg-type]

            asker.batches = deleting  # type: ignore[method-assign, assignment]
            found = await finding.find_records(asker, "t", b"k")
        offsets = [record.offset for record in found]
        assert offsets == [*range(asked[2]), *range(60, 100)]
        assert 0 < asked[2] < 60


async def test_what_nobody_can_decode_hides_nothing_else() -> None:
    """A producer may compress something else than records: that is told to who reads on there, and to nobody else."""
    async with native_broker() as running, Client(running.server) as client:
        topic = await running.broker.create_topic("t", partitions=1, config={})
        builder = BatchBuilder(0, -1, 1000)
        builder.add(0, b"a", b"", [])
        good = builder.build()
        garbage = encode_batch(parse_header(good)._replace(attributes=Compression.GZIP), b"no gzip")
        (partition,) = topic.partitions
        for batch in (good, good, garbage, good):
            partition.append(batch)
        partition.log.request_sync()
        await partition.log.wait_committed(4)
        assert places(await client.find_records("t", b"a")) == [(0, 0), (0, 1), (0, 3)]
        records, behind = await client.read_records("t", 0, 0, 4, limit=50, bytes_max=1000)
        assert (places(records), behind) == ([(0, 0), (0, 1)], 2)
        with pytest.raises(ProtocolError, match="corrupt batch, offsets 2 to 2"):
            await client.read_records("t", 0, 2, 4, limit=50, bytes_max=1000)
        records, behind = await client.read_records("t", 0, 3, 4, limit=50, bytes_max=1000)
        assert (places(records), behind) == ([(0, 3)], 4)
