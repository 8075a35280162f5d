"""Single messages: published as a user may, and looked at where they wait."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from core_log.files import FaultyFiles, MemoryFiles
from routing.access.grants import Permission, TopicPermission
from routing.administration import administer
from routing.errors import (
    AccessRefused,
    BrokerError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    StorageUnavailable,
)
from routing.facts import pack
from routing.message import Properties
from tests.routing.harness import PROTOCOL, Engine, engine, with_headers


async def ask(running: Engine, operation: str, user: str = "guest", **arguments: Any) -> Any:
    return await administer(running.broker, user, operation, arguments)


async def peek(running: Engine, name: str = "q", **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await ask(running, "queues.peek", name=name, **arguments)
    return found


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [one["body"]["text"] for one in found]


async def test_a_message_is_published_with_all_that_was_said_of_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        properties = {
            "content_type": "text/plain", "correlation_id": "c1", "priority": 3, "expiration_ms": 60_000,
            "message_id": "m", "timestamp_s": 5, "type": "t", "app_id": "a", "reply_to": "r", "content_encoding": "e",
        }  # fmt: skip
        given = {"routing_key": "q", "properties": properties, "headers": {"a": 1, "b": ["x", {"y": None}]}}
        assert await ask(running, "messages.publish", body="grün", **given) == {"routed": True}
        (shown,) = await peek(running)
        assert shown == {
            "exchange": "", "key": "q", "bytes": 5, "redelivered": False, "returns": None, "protocol": "neutral",
            "persistent": True, "properties": properties | {"correlation_id": {"text": "c1"}},
            "headers": {"a": 1, "b": ["x", {"y": None}]}, "body": {"text": "grün"},
        }  # fmt: skip
        await ask(running, "messages.publish", routing_key="q", body={"base64": "/wA="})
        assert (await peek(running))[1]["body"] == {"base64": "/wA="}
        assert await ask(running, "messages.publish", routing_key="nobody") == {"routed": False}


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (NotFound, {"exchange": "missing"}),
        (InvalidArgument, {"routing_key": "q", "body": {"base64": "?"}}),
        (InvalidArgument, {"routing_key": "q", "properties": {"delivery_mode": 2}}),
        (InvalidArgument, {"routing_key": "q", "properties": {"priority": 256}}),
        (InvalidArgument, {"routing_key": "q", "retain": True}),
        (InvalidArgument, {"exchange": "amq.fanout", "routing_key": "k" * 256}),
        (InvalidArgument, {"routing_key": "q", "body": 5}),
        (InvalidArgument, {"routing_key": "q", "headers": {"a": 1 << 64}}),
        (InvalidArgument, {"mqtt_topic": "q", "headers": {"a": 1 << 64}}),
        (InvalidArgument, {"exchange": "amq.fanout", "routing_key": "ü" * 128}),
        (BrokerError, {"exchange": "amq.rabbitmq.trace"}),
    ],
)
async def test_what_cannot_be_published_is_refused(error: type[Exception], given: dict[str, Any]) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        with pytest.raises(error):
            await ask(running, "messages.publish", **given)
        assert await peek(running) == []


async def test_who_publishes_and_looks_needs_the_rights_for_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        rights = running.broker.rights
        await rights.add_user("ada", b"secret")
        await rights.set_permission("/", "ada", Permission("", "^amq\\.topic$", "^mine$"))
        await rights.set_topic_permission("/", "ada", "amq.topic", TopicPermission("^mine\\.", ""))
        for given in ({"routing_key": "q"}, {"exchange": "amq.topic", "routing_key": "others.a"}):
            with pytest.raises(AccessRefused):
                await ask(running, "messages.publish", "ada", **given)
        mine = {"exchange": "amq.topic", "routing_key": "mine.a"}
        assert await ask(running, "messages.publish", "ada", **mine) == {"routed": False}
        with pytest.raises(AccessRefused):
            await ask(running, "queues.peek", "ada", name="q")


async def test_the_queue_of_a_connection_is_not_shown_to_other_clients() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.declare_queue("own", exclusive=True, owner=running)
        await ask(running, "messages.publish", routing_key="own", body="secret")
        rights = running.broker.rights
        for name, tags in (("eve", ()), ("mona", ("monitoring",))):
            await rights.add_user(name, b"secret", tags)
            await rights.set_permission("/", name, Permission("", "", ".*"))
        with pytest.raises(ResourceLocked):
            await ask(running, "queues.peek", "eve", name="own")
        for user in ("mona", "guest"):
            assert bodies(await ask(running, "queues.peek", user, name="own")) == ["secret"]


async def test_nothing_is_said_to_be_safe_that_is_not() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        await running.queue("q")
        files.failing["write"] = errno.EIO
        with pytest.raises(StorageUnavailable):
            await ask(running, "messages.publish", routing_key="q")
        del files.failing["write"]


async def test_what_is_looked_at_stays_as_it_was() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-delivery-limit": 5})
        client = running.client()
        await client.publish_safely("q", *range(5))
        await client.consume("q")
        client.take()
        client.ack(2)
        client.requeue(1)
        client.requeue(3)
        client.take()
        client.session.close()
        running.turn()
        found = await peek(running)
        assert bodies(found) == ["0", "2", "3", "4"]
        assert [(one["returns"], one["redelivered"]) for one in found] == [(2, True), (2, True), (1, True), (1, True)]
        assert bodies(await peek(running, limit=2)) == ["0", "2"]
        assert await peek(running, limit=-1) == []
        again = await peek(running)
        assert again == found
        assert running.count("q") == 4


async def test_the_order_is_that_in_which_messages_go_out() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 9})
        client = running.client()
        for priority in (1, 9, 5):
            facts = pack(persistent=True, priority=priority)
            properties = Properties(PROTOCOL, b"", persistent=True, facts=facts)
            client.publish("q", f"{priority}a", f"{priority}b", properties=properties)
            running.turn()
        found = bodies(await peek(running))
        assert found == [body for body, _ in await running.drain("q")]


async def test_what_waits_for_its_time_is_told_apart() -> None:
    async with engine(MemoryFiles(), stripe_cache_bytes=0) as running:
        await running.queue("q", arguments={"x-delayed": True})
        for number, delay_ms in enumerate((9000, 7000, 8000, 0)):
            await ask(running, "messages.publish", routing_key="q", body=str(number), headers={"x-delay": delay_ms})
        assert bodies(await peek(running)) == ["3"]
        found = await peek(running, delayed=True)
        assert bodies(found) == ["1", "2", "0"]
        listed = await ask(running, "delayed.list", queue="q")
        assert [[one["id"], one["due_at_ms"], 0] for one in found] == listed["rows"]
        assert bodies(await peek(running, delayed=True, limit=1)) == ["1"]
        await ask(running, "delayed.cancel", queue="q", id=found[1]["id"])
        assert bodies(await peek(running, delayed=True)) == ["1", "0"]


async def test_messages_that_left_memory_are_read_back() -> None:
    async with engine(MemoryFiles(), stripe_cache_bytes=0) as running:
        await running.queue("q")
        client = running.client()
        for start in range(0, 300, 50):
            await client.publish_safely("q", *(f"{number:04}" * 100 for number in range(start, start + 50)))
        found = await peek(running, limit=1000, bytes_max=4)
        assert [one["body"] for one in found] == [{"text": f"{number:04}", "bytes": 400} for number in range(100)]
        client.publish("q", "last", properties=with_headers({"a": "b"}))


async def test_what_is_no_queue_of_its_own_says_where_to_read() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("s", arguments={"x-queue-type": "stream"})
        await running.broker.create_topic("t", partitions=1, config={})
        await running.queue("v", arguments={"x-queue-type": "view", "x-view-topic": "t"})
        for name, topic in (("s", "s"), ("v", "t")):
            with pytest.raises(PreconditionFailed, match=f"read its topic '{topic}'"):
                await peek(running, name)
        with pytest.raises(NotFound, match="no queue 'missing'"):
            await peek(running, "missing")
