"""A broker follows what others write into the metadata that it shares with them, and plans anew when overtaken."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio.testing

from core_log.errors import BatchTooLarge, Conflict
from core_log.files import FaultyFiles, Files, MemoryFiles
from core_log.metadata import etcd_store
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import Guard, Put
from routing import housekeeping
from routing.broker import Broker, open_broker
from routing.clients import Client
from routing.config import BrokerConfig
from routing.errors import NoPermission, NotFound, PreconditionFailed, StorageUnavailable
from routing.topology import queue_ids
from routing.topology.binding import Binding
from routing.topology.catalog import Catalog
from routing.topology.entries import Entry, Key
from tests.routing.harness import Engine, engine
from tests.simulation.etcd_model import EtcdModel, ModelTransport


def other(broker: Broker) -> Catalog:
    """Another's view of the broker's metadata."""
    return Catalog(broker.topology.catalog._store)


def queue_entry(name: str, number: int, **also: Any) -> Entry:
    value = {"id": number, "stripe": 0, "auto_delete": False, "arguments": {}} | also
    return Entry(("queue", "/", name), value, True)


def exchange_entry(name: str, kind: str = "fanout") -> Entry:
    value = {"kind": kind, "auto_delete": False, "internal": False, "arguments": {}}
    return Entry(("exchange", "/", name), value, True)


def gone(*keys: Key) -> list[Entry]:
    return [Entry(key, None, True) for key in keys]


async def test_what_others_declare_and_delete_is_here() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        theirs = other(broker)
        binding = Binding.make("x", ("queue", "q"), "", {"n": 1}, "amqp")
        await theirs.change([exchange_entry("x"), queue_entry("q", 7_000)])
        await theirs.change([Entry(binding.key("/"), {"arguments": {"n": 1}}, True)])
        client = running.client()
        client.publish("", 1, 2, exchange="x")
        running.turn()
        assert [body for body, _ in await running.drain("q")] == ["1", "2"]
        await theirs.change(gone(binding.key("/")))
        assert not broker.topology.exchanges["x"].bindings
        assert not broker.topology.vhosts["/"].bindings_to
        topic = {"partitions": 2, "config": {}}
        await theirs.change([Entry(("topic", "t"), topic, True)])
        assert len(broker.topics["t"].partitions) == 2
        await theirs.change(gone(("topic", "t")))
        assert "t" not in broker.topics


async def test_what_is_of_this_broker_alone_goes_with_what_others_delete() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        theirs = other(broker)
        await theirs.change([exchange_entry("x"), exchange_entry("y"), queue_entry("q", 7_000)])
        await broker.declare_exchange("fleeting", "fanout", auto_delete=True)
        await broker.declare_queue("mine")
        await broker.bind("queue", "q", "fleeting", "")
        await broker.bind("queue", "mine", "x", "")
        await broker.bind("exchange", "x", "fleeting", "")
        await broker.bind("exchange", "fleeting", "y", "")
        client = running.client()
        await client.consume("q")
        await theirs.change(gone(("queue", "/", "q"), ("exchange", "/", "x")))
        assert client.events == [("cancelled", "c")]
        assert not {"x", "fleeting"} & set(broker.topology.exchanges)
        assert list(broker.topology.queues) == ["mine"]
        assert broker.topology.vhosts["/"].binding_count == 0
        assert not broker.topology.vhosts["/"].bindings_to
        await theirs.change(gone(("queue", "/", "mine")))
        assert list(broker.topology.queues) == ["mine"], "it is not the one that they mean"


async def test_virtual_hosts_policies_and_users_of_others() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        theirs = other(broker)
        told: list[str] = []
        await broker.declare_queue("q", durable=True)
        policy = {"pattern": "", "definition": {"max-length": 3}, "priority": 0, "apply-to": "all"}
        await theirs.change([Entry(("policy", "/", "p"), policy, True)])
        await trio.testing.wait_all_tasks_blocked()
        assert broker.topology.queues["q"].settings.max_length == 3
        await theirs.change([Entry(("vhost", "v"), {"description": "", "limits": {}}, True)])
        await broker.declare_queue("fleeting", vhost="v")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await theirs.change(
            [
                Entry(("user", "u"), {"hash": "no", "tags": [], "configured": False}, True),
                Entry(("permission", "v", "u"), everything, True),
            ]
        )
        owner = object()
        grants = broker.connect(owner, Client("amqp", "u", "v", "peer", told.append))
        grants.require_publish("x", [])
        await theirs.change(gone(("permission", "v", "u")))
        assert not grants.allows("write", "x")
        with pytest.raises(NoPermission):
            broker.rights.grants("u", "v")
        await theirs.change(gone(("user", "u")))
        assert told == ["user 'u' is deleted"]
        await theirs.change(gone(("vhost", "v")))
        assert list(broker.topology.vhosts) == ["/"]
        assert told == ["user 'u' is deleted", "vhost 'v' is deleted"]


class Overtaken:
    """Has others change something between a broker's plan and its write."""

    def __init__(self, broker: Broker, entries: list[Entry]) -> None:
        catalog = broker.topology.catalog
        theirs, write = other(broker), catalog.change
        self.times = 0

        async def change(*arguments: Any, **options: Any) -> None:
            self.times += 1
            if self.times == 1:
                await theirs.change(entries)
                raise Conflict("overtaken")
            await write(*arguments, **options)

        catalog.change = change  # type: ignore[method-assign]


async def test_a_plan_that_was_overtaken_is_made_anew() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        overtaken = Overtaken(broker, [queue_entry("q", 7_000)])
        await broker.declare_queue("q", durable=True)
        assert (overtaken.times, broker.topology.queues["q"].id) == (1, 7_000)
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        Overtaken(broker, [queue_entry("q", 7_000)])
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'auto_delete'"):
            await broker.declare_queue("q", durable=True, auto_delete=True)
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        overtaken = Overtaken(broker, [queue_entry("other", 7_000)])
        await broker.declare_queue("q", durable=True)
        assert (overtaken.times, sorted(broker.topology.queues)) == (2, ["other", "q"])


async def test_a_write_that_relies_on_what_is_no_longer_so_is_a_conflict() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.declare_queue("q", durable=True)
        store = broker.topology.catalog._store
        theirs = other(broker)
        relied = theirs._guard(msgpack.packb(["queue", "q"]))
        await broker.delete_queue("q")
        with pytest.raises(Conflict):
            await store.change([relied], [(b"\x91\xa3new", b"")])
        assert store.get(b"\x91\xa3new") is None


class Syncs:
    """Counts the catalog's."""

    def __init__(self, files: FaultyFiles) -> None:
        self.count = 0
        files.hook = self._hook

    def _hook(self, operation: str, path: str) -> None:
        self.count += operation == "sync" and path.startswith("catalog")


async def test_a_declare_costs_one_flush_and_many_share_some() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        await broker.declare_exchange("x", "fanout", durable=True)
        syncs = Syncs(files)
        await broker.declare_queue("q", durable=True)
        await broker.bind("queue", "q", "x", "")
        assert syncs.count == 2
        await many(running, 50)
        assert syncs.count <= 4
        assert len(broker.topology.queues) == 51


@asynccontextmanager
async def two_brokers(model: EtcdModel, *disks: Files) -> AsyncIterator[list[tuple[Engine, EtcdStore]]]:
    """Brokers that share their topology; the queues themselves are each one's own."""
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        found: list[tuple[Engine, EtcdStore]] = []
        for disk in disks or (MemoryFiles(), MemoryFiles()):
            store = EtcdStore(EtcdClient(ModelTransport(model), attempt_timeout_s=20), b"/millrace/test/")
            await nursery.start(store.run)
            broker = await stack.enter_async_context(open_broker(disk, BrokerConfig(), metadata=store))
            found.append((Engine(broker), store))
        yield found
        await stack.aclose()
        nursery.cancel_scope.cancel()


async def test_two_brokers_of_one_topology() -> None:
    async with two_brokers(EtcdModel()) as [(one, first), (other, second)]:
        b1, b2 = one.broker, other.broker
        await b1.declare_exchange("x", "fanout", durable=True)
        await b2.declare_queue("q", durable=True)
        await b1.bind("queue", "q", "x", "")
        await b2.bind("queue", "q", "amq.topic", "k")
        await b1.create_topic("t")
        await b2.bind("topic", "t", "x", "")
        await b2.set_policy("p", "", {"max-length": 3})
        await b1.rights.add_user("u", b"secret", ["administrator"])
        with pytest.raises(PreconditionFailed):
            await b2.declare_exchange("x", "direct", durable=True)
        for store in (first, second):
            await store.barrier()
        await trio.testing.wait_all_tasks_blocked()
        for broker in (b1, b2):
            assert {binding.destination for binding in broker.topology.exchanges["x"].bindings} == {
                ("queue", "q"), ("topic", "t"),
            }  # fmt: skip
            assert broker.topology.queues["q"].settings.max_length == 3
            assert broker.rights.user("u").tags == ("administrator",)  # type: ignore[union-attr]
        await b1.delete_queue("q")
        await b1.delete_exchange("x")
        await second.barrier()
        assert not b2.topology.queues
        assert "x" not in b2.topology.exchanges
        assert b2.topology.vhosts["/"].binding_count == 0


@pytest.mark.parametrize("count", [1, 125, 126, 300])
async def test_each_piece_of_a_large_change_is_made_only_if_what_it_needs_is_there(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_brokers(EtcdModel()) as [(one, store), _]:
        await one.broker.declare_queue("q", durable=True)
        change, guarded = store.change, list[set[bytes]]()

        async def noting(guards: Sequence[Guard], puts: Sequence[Put], **options: Any) -> int:
            guarded.append({guard.key for guard in guards})
            return await change(guards, puts, **options)

        monkeypatch.setattr(store, "change", noting)
        patterns = [(f"a.{number}", None) for number in range(count)]
        await one.broker.change_bindings(("queue", "q"), "amq.topic", new=patterns)
        assert one.broker.topology.vhosts["/"].binding_count == count
        key = one.broker.topology.catalog._key(("queue", "/", "q"))
        assert guarded
        assert all(key in keys for keys in guarded)


async def test_a_queue_with_large_bindings_goes_in_pieces_that_the_store_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_brokers(EtcdModel()) as [(one, store), _]:
        await one.broker.declare_queue("q", durable=True)
        for number in range(30):
            arguments = {"x-match": "all", "large": f"{number}".rjust(60_000)}
            await one.broker.bind("queue", "q", "amq.headers", "", arguments)
        change, sizes = store.change, list[int]()

        async def noting(guards: Sequence[Guard], puts: Sequence[Put], **options: Any) -> int:
            sizes.append(sum(len(key) for key, _ in puts))
            return await change(guards, puts, **options)

        monkeypatch.setattr(store, "change", noting)
        await one.broker.delete_queue("q")
        assert one.broker.topology.vhosts["/"].binding_count == 0
        assert sum(sizes) > 30 * 60_000
        assert max(sizes) <= 256 << 10


@pytest.mark.parametrize("takes_max", [10_000, 1])
async def test_what_belongs_to_nothing_goes_together_but_for_what_others_have_changed(
    takes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_brokers(EtcdModel()) as [(one, store), (another, _)]:
        catalog = one.broker.topology.catalog
        change, count = store.change, 0

        async def counting(guards: Sequence[Guard], puts: Sequence[Put], **options: Any) -> int:
            nonlocal count
            count += 1
            if len(puts) > takes_max:
                raise BatchTooLarge("larger than it takes")
            return await change(guards, puts, **options)

        keys: list[Key] = [("spare", str(number)) for number in range(300)]
        await catalog.change([Entry(key, {}, True) for key in keys])
        monkeypatch.setattr(store, "change", counting)
        await catalog.erase(catalog.recorded(keys[:100]))
        assert count == (1 if takes_max > 1 else 101)
        known = catalog.recorded(keys)
        await another.broker.topology.catalog.change([Entry(keys[250], {"new": 1}, True), *gone(keys[251])])
        await catalog.erase(known)
        await store.barrier()
        assert [key for key in keys if catalog.is_recorded(key)] == [keys[250]]


async def test_what_was_in_a_queue_that_etcd_has_lost_stays_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    model = EtcdModel()
    async with two_brokers(model) as [(one, store), (other, theirs)]:
        for name in ("deleted", "old"):
            await one.broker.declare_queue(name, durable=True)
        await other.broker.delete_queue("deleted")
        await store.barrier()
        revision = store.revision
        await one.broker.declare_queue("new", durable=True)
        await theirs.barrier()
        assert one.broker.homes_kept_until_s == 0
        model.restore(revision)
        for engine in (one, other):
            await engine.until(lambda engine=engine: "new" not in engine.broker.topology.queues)  # type: ignore[misc]
            assert set(engine.broker.topology.queues) == {"old"}
            assert engine.broker.homes_kept_until_s > trio.current_time() + 3_000
    assert caplog.text.count("queue 'new' in vhost '/' is gone, deleted or lost with etcd's data") == 2
    assert "'deleted'" not in caplog.text


async def test_ids_of_queues_that_etcd_has_lost_are_not_given_again() -> None:
    model = EtcdModel()
    async with two_brokers(model) as [(one, store), (other, theirs)]:
        for broker, shared in ((one.broker, store), (other.broker, theirs)):
            broker.topology.catalog.ids = queue_ids.SharedQueueIds(shared)
        await store.barrier()
        revision = store.revision
        await one.broker.declare_queue("lost", durable=True)
        lost = one.broker.topology.queues["lost"].id
        await theirs.barrier()
        model.restore(revision)
        await other.until(lambda: "lost" not in other.broker.topology.queues)
        await other.broker.declare_queue("new", durable=True)
        assert other.broker.topology.queues["new"].id > lost


@pytest.mark.parametrize("is_full", [False, True])
async def test_nothing_goes_from_homes_that_are_kept(monkeypatch: pytest.MonkeyPatch, is_full: bool) -> None:
    """For as long as it is wanted, and there is room."""
    rounds = 0

    def counting(*_: object) -> int:
        nonlocal rounds
        rounds += 1
        return 0

    monkeypatch.setattr(housekeeping, "shed", counting)
    async with engine(MemoryFiles(), housekeeping_interval_ms=1, reclaim_interval_ms=1) as running:
        broker = running.broker
        await broker.declare_queue("q", durable=True)
        await running.client().publish_safely("q", "x" * 100_000)
        (home,) = (home for home in broker.topology.led if home.log.size_bytes)
        broker.homes_kept_until_s = math.inf
        await broker.delete_queue("q")
        seen = rounds
        await running.until(lambda: rounds > seen + 3)
        assert home.log.size_bytes > 100_000
        if is_full:
            monkeypatch.setattr(Broker, "blocked", property(lambda _: "low on disk"))
        else:
            broker.homes_kept_until_s = 0
        await running.until(lambda: home.log.size_bytes < 1_000)
        assert broker.homes_kept_until_s == 0


def picture(broker: Broker) -> dict[str, Any]:
    topology = broker.topology
    return {
        "exchanges": sorted((e.name, e.kind) for e in topology.exchanges.values()),
        "queues": sorted((q.name, q.id) for q in topology.queues.values()),
        "bindings": sorted(b.key("/") for e in topology.exchanges.values() for b in e.bindings),
        "topics": sorted(topology.topics),
        "users": sorted(user.name for user in broker.rights.users),
    }


async def test_the_directory_of_a_member_can_be_opened_alone() -> None:
    model, first, second = EtcdModel(), MemoryFiles(), MemoryFiles()
    refusing = FaultyFiles(second)
    async with two_brokers(model, first, refusing) as [(one, _), (other, store)]:
        broker = one.broker
        await broker.declare_exchange("x", "fanout", durable=True)
        await broker.declare_exchange("gone", "fanout", durable=True)
        refusing.failing["write"] = 5
        for number in range(5):
            await broker.declare_queue(f"q{number}", durable=True)
            await broker.bind("queue", f"q{number}", "x", "")
        await broker.delete_queue("q3")
        await broker.delete_exchange("gone")
        await broker.rights.add_user("u", b"secret")
        await broker.create_topic("t")
        await store.barrier()
        expected = picture(broker)
        assert picture(other.broker) == expected
        refusing.failing.clear()
    for disk in (first, second):
        async with engine(disk) as alone:
            assert picture(alone.broker) == expected
            await alone.broker.declare_queue("new", durable=True)
            assert alone.broker.topology.queues["new"].id > 4
    async with two_brokers(model, first, second) as [(one, _), (other, _)]:
        assert picture(one.broker) == expected, "what was done to it alone is not the cluster's"
        await other.broker.delete_queue("q0")
    for disk in (first, second):
        async with engine(disk) as alone:
            assert sorted(alone.broker.topology.queues) == ["q1", "q2", "q4"]


async def test_two_brokers_that_declare_and_delete_the_same_at_once_agree() -> None:
    async with two_brokers(EtcdModel()) as found:
        refused: list[str] = []

        async def work(number: int) -> None:
            broker = found[number][0].broker
            for turn in range(40):
                name = f"q{turn % 5}"
                try:
                    if (turn + number) % 3:
                        await broker.declare_queue(name, durable=True)
                        await broker.bind("queue", name, "amq.fanout", "")
                    else:
                        await broker.delete_queue(name)
                except NotFound as error:
                    refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in (0, 1):
                nursery.start_soon(work, number)
        pictures = []
        for running, store in found:
            await store.barrier()
            topology = running.broker.topology
            pictures.append(
                (
                    sorted((queue.name, queue.id) for queue in topology.queues.values()),
                    sorted(binding.destination for binding in topology.exchanges["amq.fanout"].bindings),
                    topology.vhosts["/"].binding_count,
                )
            )
        assert pictures[0] == pictures[1]
        queues, bindings, _ = pictures[0]
        assert len({number for _, number in queues}) == len(queues)
        assert {name for _, name in bindings} <= {name for name, _ in queues}


async def test_what_is_bound_to_one_connection_never_reaches_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "_TIMEOUT_S", 0.3)
    model = EtcdModel()
    async with two_brokers(model) as [(one, _), (other, _)]:
        model.fault(0, down=True)
        owner, revision = object(), model.revision
        await one.broker.declare_queue("mine", exclusive=True, owner=owner)
        await one.broker.declare_queue("", exclusive=True, durable=True, owner=owner)
        await one.broker.bind("queue", "mine", "amq.topic", "k", owner=owner)
        client = one.client(owner)
        await client.consume("mine", tag="c")
        client.publish("k", 1, exchange="amq.topic")
        one.turn()
        assert [delivery.body for delivery in client.deliveries] == ["1"]
        client.session.close()
        one.broker.release(owner)
        assert not one.broker.topology.queues
        assert model.revision == revision
        with pytest.raises(StorageUnavailable, match="etcd does not answer"):
            await other.broker.declare_queue("q", durable=True)
        model.fault(0, down=False)
        monkeypatch.undo()
        await other.broker.declare_queue("q", durable=True)


async def test_ids_of_queues_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ids, "BLOCK_IDS", 3)
    async with two_brokers(EtcdModel()) as [(one, first), (other, second)]:
        for number in range(5):
            await one.broker.declare_queue(f"a{number}", durable=True)
            await other.broker.declare_queue(f"b{number}", durable=True)
        await first.barrier()
        await second.barrier()
        for running in (one, other):
            assert sorted(queue.id for queue in running.broker.topology.queues.values()) == [
                1,
                2,
                3,
                4,
                5,
                6,
                7,
                8,
                10,
                11,
            ]


async def test_a_change_larger_than_a_transaction_is_made_in_pieces() -> None:
    async with two_brokers(EtcdModel()) as [(one, _), (other, second)]:
        await one.broker.declare_exchange("x", "topic", durable=True)
        await one.broker.declare_queue("q", durable=True)
        for number in range(300):
            await one.broker.bind("queue", "q", "x", f"k.{number}")
        await one.broker.delete_queue("q")
        await second.barrier()
        for running in (one, other):
            assert not running.broker.topology.queues
            assert running.broker.topology.vhosts["/"].binding_count == 0


async def many(running: Engine, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(lambda number=number: running.broker.declare_queue(f"many {number}", durable=True))
