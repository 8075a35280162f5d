"""Virtual hosts: namespaces that know nothing of each other, made and deleted while the broker runs."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.access.grants import EVERYTHING, TopicPermission
from routing.clients import Client as ConnectedClient
from routing.errors import (
    AccessRefused,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    StorageUnavailable,
)
from routing.message import Slab
from routing.tracing import trace
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed


def client_in(running: Engine, vhost: str) -> Client:
    """A client of a virtual host."""
    client = running.client()
    client.session.close()
    client.session = running.broker.session(client, protocol="test", owner=object(), vhost=vhost)
    return client


def connected(vhost: str, close: Callable[[str], None] = print) -> ConnectedClient:
    return ConnectedClient("test", "guest", vhost, "127.0.0.1:1", close)


async def drain(running: Engine, vhost: str, queue: str) -> list[str]:
    client, bodies = client_in(running, vhost), []
    while (got := await client.session.get(queue, no_ack=True)) is not None:
        bodies.append(body_of(got))
    client.session.close()
    return bodies


async def test_the_same_names_in_two_virtual_hosts_through_restarts() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await broker.set_vhost("other", description="for the others")
        for vhost, kind in (("/", "topic"), ("other", "direct")):
            await broker.declare_exchange("x", kind, durable=True, vhost=vhost)
            await broker.declare_queue("q", durable=True, vhost=vhost)
            await broker.bind("queue", "q", "x", "a.#", vhost=vhost)
            await broker.bind("queue", "q", "amq.fanout", "", vhost=vhost)
        await broker.declare_queue("only here", durable=True, vhost="other")
        with pytest.raises(NotFound, match=r"^no queue 'only here' in vhost '/'$"):
            await broker.check_queue("only here")
        with pytest.raises(NotFound, match=r"^no exchange 'no' in vhost 'other'$"):
            await broker.bind("queue", "q", "no", "", vhost="other")
        with pytest.raises(PreconditionFailed, match="for exchange 'x' in vhost 'other'"):
            await broker.declare_exchange("x", "topic", durable=True, vhost="other")
        assert len({queue.id for queue in broker.topology.all_queues()}) == 3
        for number, vhost in enumerate(("/", "other")):
            client = client_in(running, vhost)
            client.publish("", f"fan {number}", exchange="amq.fanout", confirm=True)
            client.publish("q", f"default {number}", confirm=True)
            client.publish("a.b", f"topic {number}", exchange="x", confirm=True)
            running.turn()
            await running.until(lambda client=client: client.confirmed == 3)
        found = files.crash()
    for disk in (found, files):
        async with engine(disk) as running:
            assert running.broker.topology.vhosts["other"].description == "for the others"
            assert await drain(running, "/", "q") == ["fan 0", "default 0", "topic 0"]
            assert await drain(running, "other", "q") == ["fan 1", "default 1"]


async def test_a_catalog_of_before_there_were_virtual_hosts_and_one_of_now() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await broker.set_vhost("v")
        for vhost in ("/", "v"):
            await broker.declare_exchange("x", "fanout", durable=True, vhost=vhost)
            await broker.declare_queue("q", durable=True, vhost=vhost)
            await broker.bind("queue", "q", "x", "k", vhost=vhost)
        keys = [msgpack.unpackb(key) for key, _ in broker.topology.catalog._store.items()]
        assert [key for key in keys if "v" not in key] == [
            ["exchange", "x"], ["next-queue-id"], ["queue", "q"], ["binding", "x", "queue", "q", "k", "amqp", ""],
        ]  # fmt: skip
        assert [key for key in keys if "v" in key] == [
            ["vhost", "v"], ["exchange", "v", "x"], ["queue", "v", "q"],
            ["binding", "v", "x", "queue", "q", "k", "amqp", ""],
        ]  # fmt: skip


async def test_deleting_takes_everything_along() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await broker.set_vhost("v")
        told: list[str] = []
        owner = object()
        broker.connect(owner, connected("v", told.append))
        broker.connect(object(), connected("/", told.append))
        client = client_in(running, "v")
        await broker.declare_exchange("x", "fanout", durable=True, auto_delete=True, vhost="v")
        await broker.declare_queue("q", durable=True, vhost="v")
        await broker.declare_queue("mine", exclusive=True, owner=owner, vhost="v")
        await broker.declare_queue("fleeting", vhost="v")
        await broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"}, vhost="v")
        for queue in ("q", "fleeting"):
            await broker.bind("queue", queue, "x", "", vhost="v")
        await broker.create_topic("t")
        await broker.bind("topic", "t", "amq.topic", "#", vhost="v")
        await client.session.consume("q", tag="c", no_ack=False)
        client.publish("", 1, exchange="x")
        running.turn()
        assert [delivery.body for delivery in client.deliveries] == ["1"]
        await broker.delete_vhost("v")
        assert told == ["vhost 'v' is deleted"]
        assert client.events == [("cancelled", "c")]
        client.session.close()
        broker.release(owner)
        assert list(broker.topology.vhosts) == ["/"]
        assert not broker.topology.owned
        assert list(broker.topics) == ["t"]
        kinds = ("vhost", "exchange", "queue", "binding")
        assert not [entry for kind in kinds for entry in broker.topology.catalog.entries(kind)]
        for act in (
            lambda: broker.declare_queue("q", vhost="v"),
            lambda: broker.delete_vhost("v"),
        ):
            with pytest.raises(NotAllowed, match=r"^vhost v not found$"):
                await act()
        with pytest.raises(NotFound):
            client.session.publish(Slab("amq.topic", "k", PERSISTENT, [b"late"]))
        await broker.set_vhost("v")
        await broker.declare_queue("q", durable=True, vhost="v")
        assert await drain(running, "v", "q") == []
    async with engine(files) as running:
        assert list(running.broker.topology.vhosts) == ["/", "v"]


async def test_one_that_is_traced_when_it_is_deleted_is_not_kept() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.set_vhost("v")
        trace(broker, "v", on=True)
        await broker.delete_vhost("v")
        assert not broker.traces
        await broker.set_vhost("v")
        assert broker.topology.vhost("v").trace is None
        trace(broker, "v", on=True)
        assert list(broker.traces) == ["v"]


async def test_permissions_go_with_it_in_one_change_however_it_ends() -> None:
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        broker = running.broker
        await broker.set_vhost("v")
        await broker.declare_queue("q", durable=True, vhost="v")
        await broker.rights.add_user("ada", b"secret")
        await broker.rights.set_permission("v", "ada", EVERYTHING)
        await broker.rights.set_topic_permission("v", "ada", "amq.topic", TopicPermission("a", "b"))
        await broker.rights.set_permission("/", "ada", EVERYTHING)
        grants = broker.rights.grants("ada", "v")
        files.hook = lambda operation, path: found.append(killed(memory))
        await broker.delete_vhost("v")
        files.hook = None
        found.append(killed(memory))
        assert not grants.allows("read", "q")
        await broker.set_vhost("v")
        with pytest.raises(NotAllowed):
            broker.rights.grants("ada", "v")
    seen = set()
    for left in found:
        async with engine(left) as running:
            rights, there = running.broker.rights, "v" in running.broker.topology.vhosts
            assert ("v", "ada", EVERYTHING) in rights.permissions() or not there
            assert [entry[0] for entry in rights.topic_permissions()] == ["v"] * there
            assert [place for place, user, _ in rights.permissions() if user == "ada"] == ["/"] + ["v"] * there
            seen.add(there)
    assert seen == {True, False}


async def test_limits_of_a_virtual_host() -> None:
    files = MemoryFiles()
    async with engine(files, vhosts_max=3) as running:
        broker = running.broker
        await broker.set_vhost("v", limits={"max-queues": 1, "max-connections": 1})
        await broker.set_vhost("v", description="as it was")
    async with engine(files, vhosts_max=3) as running:
        broker = running.broker
        await broker.declare_queue("q", vhost="v")
        await broker.declare_queue("q", vhost="v")
        text = r"^cannot declare queue 'r': queue limit in vhost 'v' \(1\) is reached$"
        with pytest.raises(PreconditionFailed, match=text):
            await broker.declare_queue("r", vhost="v")
        with pytest.raises(PreconditionFailed, match=text):
            await broker.declare_queue("r", durable=True, arguments={"x-queue-type": "stream"}, vhost="v")
        assert not broker.topics
        one, two = object(), object()
        broker.connect(one, connected("v"))
        text = r"^access to vhost 'v' refused for user 'guest': connection limit \(1\) is reached$"
        with pytest.raises(NotAllowed, match=text):
            broker.connect(two, connected("v"))
        operator = object()
        assert not broker.attend(operator, connected("v")).allows("read", "q")
        broker.release(one)
        broker.connect(two, connected("v"))
        broker.release(operator)
        assert not broker.topology.vhost("v").attending
        await broker.set_vhost("v", limits={"max-queues": -1})
        await broker.declare_queue("r", vhost="v")
        await broker.set_vhost("w")
        with pytest.raises(LimitExceeded, match="there are 3 vhosts already"):
            await broker.set_vhost("u")


async def test_queues_that_are_declared_at_once_keep_within_the_limit() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.set_vhost("v", limits={"max-queues": 3})
        refused = []

        async def declare(name: str) -> None:
            try:
                await broker.declare_queue(name, durable=True, vhost="v")
            except PreconditionFailed:
                refused.append(name)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(declare, f"q{number % 5}")
        assert len(broker.topology.vhost("v").queues) == 3
        assert len(refused) == 4


async def test_what_is_refused() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        with pytest.raises(AccessRefused, match="vhost '/' cannot be deleted"):
            await broker.delete_vhost("/")
        for name in ("", "x" * 256, "ä" * 128):
            with pytest.raises(InvalidArgument):
                await broker.set_vhost(name)
        for limits in ({"max-things": 1}, {"max-queues": -2}, {"max-queues": True}, {"max-queues": "1"}):
            with pytest.raises(InvalidArgument):
                await broker.set_vhost("v", limits=limits)
        await broker.set_vhost("kept")
        files.failing["write"] = 5
        for act in (broker.set_vhost("new"), broker.delete_vhost("kept"), broker.set_vhost("kept", description="x")):
            with pytest.raises(StorageUnavailable):
                await act
        assert list(broker.topology.vhosts) == ["/", "kept"]
        files.failing.clear()
