"""A single broker's directory becomes a cluster's first member, interrupted after each step; on the model of etcd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from core_log.files import MemoryFiles
from core_log.flush_job import load_epochs
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import Guard
from core_log.replication.state import LogState
from core_log.replication.state import decode as decode_state
from routing.cluster.metadata.identity import Identity, load_identity, save_identity
from routing.cluster.metadata.importing import Import
from routing.cluster.metadata.joining import ClusterRefused
from routing.cluster.metadata.records import META, READY, ClusterMeta, decode, directory_key, encode
from routing.directories import topic_directory
from routing.topics.offset_store import Committed
from routing.topics.stream_settings import topic_name
from routing.topology.catalog import Catalog
from tests.routing.cluster.metadata.test_elections import start, states
from tests.routing.cluster.metadata.test_members import One, cluster, direct, refused, until
from tests.routing.harness import engine, killed
from tests.simulation.etcd_model import EtcdModel, ModelTransport
from tests.support.replica_node import batch_of

QUEUES = 110
TOPICS = {"orders": 2, "events": 1}
STREAM = topic_name("stream", "other")
PLACES = TOPICS | {STREAM: 1}
PRODUCER = "a producer"
"""It has a transaction under way."""


async def filled() -> MemoryFiles:
    """The disk of a single broker that was killed, and started and killed once before."""
    files = MemoryFiles()
    for life in range(2):
        async with engine(files) as one:
            if not life:
                await one.broker.set_vhost("other", description="", limits={})
                await one.queue("q0", vhost="other")
                await one.queue("stream", vhost="other", arguments={"x-queue-type": "stream"})
                for number in range(QUEUES):
                    await one.queue(f"q{number}")
                for topic, partitions in TOPICS.items():
                    config = {"min.insync.replicas": "3"} if topic == "orders" else {}
                    await one.broker.create_topic(topic, partitions=partitions, config=config)
            for queue in ("q0", "q1"):  # in both homes
                await one.client().publish_safely(queue, *range(10))
            for topic, partitions in TOPICS.items():
                for partition in one.broker.topics[topic].partitions[:partitions]:
                    partition.log.append(batch_of(0, 10, 10))
                    partition.log.request_sync()
            await one.synced()
            await one.broker.offsets.commit("group", {("orders", 1): Committed(7, "here")})
            if life:
                producer = await one.broker.coordinator.begin(PRODUCER, 60_000, None, "u@here")
                await one.broker.coordinator.add(PRODUCER, *producer, "u@here", partitions=[("orders", 0)])
            files = killed(files)
    return files


async def settle(files: MemoryFiles) -> None:
    async with engine(files) as one:
        one.broker.topology.catalog.ids.note()


class Process:
    """A process that imports, and nothing else."""

    def __init__(self, model: EtcdModel, files: MemoryFiles, *, broker_id: int = 1, name: str = "c") -> None:
        self.files = files
        self.settled = 0
        self.store = EtcdStore(EtcdClient(ModelTransport(model)), b"/millrace/c/")
        self.importing = Import(
            self.store, files, cluster=name, broker_id=broker_id, settle=self._settle, offload=direct
        )

    async def _settle(self) -> None:
        self.settled += 1
        await settle(self.files)

    async def run(self, stop_after: int = 1 << 30) -> list[str]:
        """The steps that were taken, at most so many."""
        taken: list[str] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(self.store.run)
            try:
                async for step in self.importing.steps():
                    taken.append(step)
                    if len(taken) == stop_after:
                        break
            finally:
                nursery.cancel_scope.cancel()
        return taken


def check(files: MemoryFiles, store: EtcdStore, ids: dict[str, bytes]) -> None:
    """Everything is where it belongs."""
    entry = store.get(META)
    assert entry is not None
    meta = decode(entry.value, ClusterMeta)
    logs = {key.decode()[2:]: decode_state(found.value or b"") for key, found in store.items(b"p/")}
    assert (meta.state, meta.homes, meta.offsets, meta.transactions) == (READY, 2, 1, 1)
    identity = load_identity(files)
    assert identity is not None
    assert (identity.cluster_id, identity.importing) == (meta.cluster_id, False)
    catalog = Catalog(store, shared=True)
    assert len(list(catalog.entries("queue"))) == QUEUES + 1
    uids = {key[1]: value["uid"] for key, value in catalog.entries("topic")}
    assert uids.keys() == PLACES.keys()
    assert {key[1]: value["id"] for key, value in catalog.entries("topic")} == ids
    names = {f"topic-{uids[topic]}-{index}" for topic, count in PLACES.items() for index in range(count)}
    assert logs.keys() == {"home-0", "home-1", "offsets-0", "retained-0", "transactions-0"} | names
    places = {
        f"topic-{uids[t]}-{n}": topic_directory(t, n, uids[t]) for t, count in PLACES.items() for n in range(count)
    }
    places |= {"home-0": "queues/0", "home-1": "queues/1", "offsets-0": "offsets/0", "retained-0": "retained/0"}
    places |= {"transactions-0": "transactions/shared-0"}
    assert files.list("transactions") == ["shared-0"]
    assert sorted(files.list("topics")) == sorted(place[7:] for place in places.values() if place.startswith("topics/"))
    for name, state in logs.items():
        epochs = load_epochs(files, places[name])
        latest = 0 if epochs is None else epochs[0].latest
        assert epochs is not None or not any(file.endswith(".log") for file in files.list(places[name]))
        minimum = 3 if name.startswith(f"topic-{uids['orders']}") else 2
        expected = LogState(
            replicas=(1,), isr=((1, 0),), leader_epoch=latest, factor=3, minimum=minimum, firm=minimum == 3
        )
        assert state == expected
    assert logs["home-0"].leader_epoch > 0, "it was killed and went on in another epoch"
    assert any(file.endswith(".log") and files.size(f"queues/0/{file}") for file in files.list("queues/0"))


async def test_interrupted_after_any_step_it_goes_on_and_ends_the_same() -> None:
    before = await filled()
    async with engine(killed(before)) as one:
        ids = {topic.name: topic.id for topic in one.broker.topics.values()}
    steps = 0
    after_loss: Callable[[MemoryFiles], MemoryFiles]
    number = 0
    seen: list[str] = []
    while not steps or number <= steps:
        for after_loss in (killed, MemoryFiles.crash) if number else (killed,):
            model = EtcdModel()
            async with cluster(model):
                files = killed(before)
                taken: list[str] = []
                if number:
                    first = Process(model, files)
                    taken = await first.run(stop_after=number)
                    assert len(taken) == number
                    assert first.settled == 1
                    files = after_loss(files)
                second = Process(model, files)
                taken += await second.run()
                assert second.settled == (0 if number else 1), "done before the first step, and never again"
                if not number:
                    steps, seen = len(taken), taken
                assert [step.partition(".")[0] for step in taken] == [step.partition(".")[0] for step in seen]
                check(files, second.store, ids)
                assert not await Process(model, files).run(), "a member's directory is left alone"
        number += 1
    assert steps > 3 + 4  # the marks, the directories, and some entries in between


async def test_the_broker_then_joins_and_leads_it_all() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = await filled()
        await Process(model, files).run()
        one, elections = await start(nursery, model, 1, files)
        await until(lambda: not elections.leaderless)
        led = dict(states(elections))
        assert {state.leader for state in led.values()} == {1}
        assert {state.min_insync for state in led.values()} == {1}
        await start(nursery, model, 2)
        await until(lambda: all(2 in state.replicas for state in states(elections).values()))
        await start(nursery, model, 3)
        await until(lambda: all(len(state.replicas) == 3 for state in states(elections).values()))
        assert {state.leader for state in states(elections).values()} == {1}, "nobody else has anything yet"
        assert one.members.meta.homes == 2
        # No id of a queue is given twice.
        ids = Catalog(one.store, shared=True).ids
        await ids.reserve()
        assert ids.new(durable=True) > QUEUES


async def refusal(process: Process) -> str:
    with pytest.raises(BaseException) as caught:
        await process.run()
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ClusterRefused), repr(error)
    assert "\n" not in str(error)
    return str(error)


async def test_who_is_refused_is_told_why_and_nothing_has_changed() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        before = await filled()
        files, other = killed(before), killed(before)
        empty = MemoryFiles()
        empty.make_directory("")
        told = "--import: the data directory holds no data of a single broker"
        assert await refusal(Process(model, empty)) == told
        save_identity(empty, Identity("c", "", 1, "some"))
        assert await refusal(Process(model, empty)) == told

        # Until it is done nobody else gets in, nor this directory without being told.
        for stop_after in (1, 2, 3):
            await Process(model, files).run(stop_after=stop_after)
        told = await refusal(Process(model, other))
        assert told.startswith("cluster 'c' is being made of another data directory (importing ")
        assert other.list("") == before.list("")
        assert "is not ready yet: it is being made of another data directory" in await refused(nursery, One(model, 2))
        told = "the data directory has not become a member of cluster 'c' completely: start it with --import once more"
        assert await refused(nursery, One(model, 1, files)) == told
        told = "the data directory belongs to broker 1 of cluster 'c', not to broker 2 of 'c'"
        assert await refusal(Process(model, files, broker_id=2)) == told
        assert "not to broker 1 of 'd'" in await refusal(Process(model, files, name="d"))

        # Something of another cluster of that name is left.
        third = Process(model, files)
        async with trio.open_nursery() as inner:
            await inner.start(third.store.run)
            work = [step async for step in third.importing.steps()]
            assert work[-1] == "the directory is a member's"
            (key, entry), *_ = third.store.items(b"t/")
            await third.store.change([], [(META, None), (directory_key(1), None), (key, b"else")])
            inner.cancel_scope.cancel()
        assert entry.value != b"else"
        assert "etcd has something else of a cluster 'c' already" in await refusal(Process(model, killed(other)))


async def test_a_cluster_that_is_there_is_not_made_anew() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        files = await filled()
        names = files.list("")
        told = "etcd has a cluster 'c' already: only a new one can be made of the data of a single broker"
        assert await refusal(Process(model, files)) == told
        assert await refusal(Process(model, files, broker_id=2)) == told
        assert files.list("") == names
        # Another makes it at the same moment.
        meta = one.members.meta
        await one.store.change([], [(META, None), (directory_key(1), None)])
        late = Process(model, files)
        async with trio.open_nursery() as inner:
            await inner.start(late.store.run)
            steps = late.importing.steps()
            await anext(steps)
            await one.store.change([Guard(META, 0)], [(META, encode(meta))])
            with pytest.raises(ClusterRefused, match="already"):
                await anext(steps)
            inner.cancel_scope.cancel()
