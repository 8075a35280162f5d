"""When to commit: what is lost or done twice by who ends between the work and the commit, as README.md says."""

from __future__ import annotations

import pytest
import trio

from millrace import Consumer, ConsumerRecord, Producer, TransactionalProducer
from routing.config import BrokerConfig
from tests.protocols.native.broker import Running, native_broker

TIMEOUT_S, RECORDS, FATAL = 20, 6, 3


class Ended(Exception):
    """The application is no more."""


async def copy(running: Running, order: str, done: list[int], *, fails: bool) -> None:
    """Work on records, until all are worked on, or until it ends between two steps of the fourth."""

    async def work(record: ConsumerRecord, producer: TransactionalProducer) -> None:
        if order == "with the result":
            await producer.send("results", record.value)
        else:
            done.append(record.offset)

    async def commit(record: ConsumerRecord, producer: TransactionalProducer) -> None:
        place = {("work", 0): record.offset + 1}
        if order == "with the result":
            await producer.send_offsets(place, consumer.group_metadata())
        else:
            await consumer.commit(place)

    steps = [commit, work] if order == "before the work" else [work, commit]
    async with (
        TransactionalProducer(running.server, "copies") as producer,
        Consumer(running.server, group="g", topics=["work"], auto_offset_reset="earliest") as consumer,
    ):
        async for record in consumer:
            async with producer.transaction():
                await steps[0](record, producer)
                if fails and record.offset == FATAL:
                    raise Ended
                await steps[1](record, producer)
            if record.offset == RECORDS - 1:
                return


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("before the work", [0, 1, 2, 4, 5]),
        ("after the work", [0, 1, 2, 3, 3, 4, 5]),
        ("with the result", [0, 1, 2, 3, 4, 5]),
    ],
)
async def test_an_application_ends_between_its_work_and_the_commit(order: str, found: list[int]) -> None:
    done: list[int] = []
    async with native_broker(engine=BrokerConfig(group_initial_delay_ms=0)) as running:
        with trio.fail_after(TIMEOUT_S):
            async with Producer(running.server) as producer:
                for number in range(RECORDS):
                    await producer.send("work", b"%d" % number)
            with pytest.raises(Ended):
                await copy(running, order, done, fails=True)
            await copy(running, order, done, fails=False)
            if order == "with the result":
                async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
                    await consumer.assign("results")
                    while len(done) < RECORDS:
                        done += [int(record.value or b"") for record in await consumer.poll(1000)]
                    done += [int(record.value or b"") for record in await consumer.poll(50)]
    assert done == found
