"""Deliveries held for too long, where a queue, a policy or a consumer says how long that is."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.consumer_timeouts import ConsumerTimeouts
from routing.errors import BrokerError, PreconditionFailed
from tests.routing.harness import engine


async def seconds(clock: MockClock, count: int) -> None:
    for _ in range(count):
        clock.jump(1)
        await wait_all_tasks_blocked()


async def test_only_who_holds_the_oldest_delivery_for_too_long_is_ended(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:
        await running.queue("q", durable=False, arguments={"x-consumer-timeout": 10_000})
        await running.queue("patient", durable=False)
        ended: list[BrokerError] = []
        slow, patient = running.client(), running.client()
        slow.session.on_overdue = patient.session.on_overdue = ended.append
        await slow.consume("q")
        await patient.consume("patient")
        for key in ("q", "patient"):
            slow.publish(key, 1, 2)
        assert slow.take_bodies() == patient.take_bodies() == ["1", "2"]
        await seconds(clock, 8)
        slow.ack(1, 2)
        slow.publish("q", 3)
        assert slow.take_bodies() == ["3"]
        await seconds(clock, 9)
        assert not ended
        await seconds(clock, 3)
        assert str(ended[0]).startswith("delivery acknowledgement timed out. Timeout value used: 10000 ms.")
        slow.session.close()
        ended.clear()
        await seconds(clock, 100)
        assert not ended
        assert running.count("q") == 1

        assert await patient.session.get("q", no_ack=False) is not None
        await seconds(clock, 8)
        assert not ended
        await seconds(clock, 4)
        assert len(ended) > 0, "who got it without a consumer holds it all the same"


@pytest.mark.parametrize(
    ("queue_ms", "policy_ms", "consumer_ms", "least_ms"),
    [
        (None, None, 5000, 5000),
        (9000, None, 5000, 5000),
        (5000, None, 9000, 5000),
        (9000, 5000, 7000, 5000),
        (0, 5000, None, 5000),
        (5000, 0, 0, 5000),
        (0, 0, 0, None),
    ],
)
async def test_the_least_of_all_limits_counts(
    clock: MockClock, queue_ms: int | None, policy_ms: int | None, consumer_ms: int | None, least_ms: int | None
) -> None:
    def argument(value_ms: int | None) -> dict[str, int]:
        return {} if value_ms is None else {"x-consumer-timeout": value_ms}

    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:
        if policy_ms is not None:
            await running.broker.set_policy("p", "", {"consumer-timeout": policy_ms})
        await running.queue("q", durable=False, arguments=argument(queue_ms))
        client, ended = running.client(), list[BrokerError]()
        client.session.on_overdue = ended.append
        await client.consume("q", arguments=argument(consumer_ms))
        client.publish("q", 1)
        assert client.take_bodies() == ["1"]
        await seconds(clock, 5)
        assert not ended
        await seconds(clock, 3)
        assert [f"used: {least_ms} ms" in str(error) for error in ended[:1]] == ([True] if least_ms else [])


async def test_a_consumers_limit_is_for_what_it_was_given(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:
        await running.queue("q", durable=False)
        client, ended = running.client(), list[BrokerError]()
        client.session.on_overdue = ended.append
        await client.consume("q", arguments={})
        client.publish("q", 1)
        assert client.take_bodies() == ["1"]
        hurried = await client.consume("q", tag="hurried", arguments={"x-consumer-timeout": 5000, "x-priority": 1})
        await seconds(clock, 20)
        assert not ended, "the other holds it"
        client.publish("q", 2)
        assert client.take_bodies() == ["2"]
        client.session.cancel(hurried)
        await seconds(clock, 8)
        assert "used: 5000 ms" in str(ended[0]), "it was cancelled, and holds it all the same"

        for wrong in ("5s", -1, 1.5, True):
            with pytest.raises(PreconditionFailed, match="invalid arg 'x-consumer-timeout' for queue 'q'"):
                await client.consume("q", arguments={"x-consumer-timeout": wrong})


async def test_what_is_settled_in_a_transaction_is_held_until_that_is_committed(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:
        await running.queue("q", durable=False, arguments={"x-consumer-timeout": 10_000})
        client, ended = running.client(), list[BrokerError]()
        client.session.on_overdue = ended.append
        await client.consume("q")
        client.session.begin()
        for number in (1, 2):
            client.publish("q", number)
            await client.session.commit()
            assert client.take_bodies() == [str(number)]
            client.ack(number)
            await seconds(clock, 8)
            await client.session.commit()
        await seconds(clock, 20)
        assert not ended
        client.publish("q", 3)
        await client.session.commit()
        assert client.take_bodies() == ["3"]
        client.ack(3)
        await seconds(clock, 12)
        assert "used: 10000 ms" in str(ended[0])


async def test_what_no_limit_is_for_may_be_held_for_ever_and_costs_nothing(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:
        await running.queue("job", durable=False)
        await running.queue("q", durable=False, arguments={"x-consumer-timeout": 60_000})
        client = running.client()
        await client.consume("job", tag="job")
        await client.consume("q")
        client.publish("job", "takes days")
        client.publish("q", 0)
        assert client.take_bodies() == ["takes days", "0"]
        timeouts = ConsumerTimeouts()
        queues = list(running.broker.topology.all_queues())
        for number in range(1, 500):
            client.publish("q", number)
            assert client.take_bodies() == [str(number)]
            client.ack(number + 1)
            timeouts.look(queues, running.broker.sessions, number * 1000)
        (marks,) = timeouts._marks.values()
        assert len(marks) < 5
