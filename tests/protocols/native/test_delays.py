"""Records of native producers that wait for their time, or their turn, in topics that say so."""

from __future__ import annotations

import pytest
import trio

from millrace import Client, Consumer, MillraceError, Producer, TransactionalProducer
from tests.protocols.native.broker import Running, native_broker

DELAYS = {"millrace.delay.enable": "true"}


async def values(running: Running, count: int) -> list[bytes | None]:
    """What there is from the beginning on, until there are so many."""
    found: list[bytes | None] = []
    async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
        await consumer.assign("t")
        with trio.fail_after(20):
            while len(found) < count:
                found += [record.value for record in await consumer.poll(100)]
    return found


async def test_a_record_is_there_when_it_is_due() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", config=DELAYS)
        async with Producer(running.server) as producer:
            began = trio.current_time()
            for value, delay_ms in ((b"some day", b"3600000"), (b"late", b"300"), (b"now", b"0")):
                await (await producer.send("t", value, headers=[("x-delay", delay_ms)]))
            assert sorted(await values(running, 2)) == [b"late", b"now"]  # type: ignore[type-var]
            assert trio.current_time() - began >= 0.3


async def test_a_time_that_is_none_is_refused() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", config=DELAYS)
        async with Producer(running.server) as producer:
            with pytest.raises(MillraceError, match=r"x-delay='soon' is not a number of milliseconds"):
                await (await producer.send("t", b"v", headers=[("x-delay", b"soon")]))


async def test_what_is_urgent_goes_first_where_priorities_count() -> None:
    async with native_broker() as running, Client(running.server) as client:
        config = {"millrace.priority.group": "g", "millrace.priority.ahead": "1"}
        await client.create_topic("t", config=config)
        async with Producer(running.server) as producer:
            for number in range(4):
                await (await producer.send("t", b"%d" % number, headers=[("x-priority", b"%d" % number)]))
        found: list[bytes | None] = []
        async with Consumer(running.server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            with trio.fail_after(20):
                while len(found) < 4:
                    found += [record.value for record in await consumer.poll(100)]
                    await consumer.commit()
        assert found == [b"0", b"3", b"2", b"1"]


async def test_what_is_in_a_transaction_is_there_with_it() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", config=DELAYS)
        async with TransactionalProducer(running.server, "etl") as producer, producer.transaction():
            await producer.send("t", b"v", headers=[("x-delay", b"600000")])
        assert await values(running, 1) == [b"v"]
