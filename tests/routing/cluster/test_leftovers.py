"""Logs of topics that are not there: somebody ended while a topic was made, widened or deleted in several changes."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.metadata.store import MetadataEntry
from core_log.replication.state import LOGS, encode, log_key
from routing.cluster.cluster import Cluster
from routing.cluster.metadata import leftovers
from routing.cluster.metadata.elections import Elections, places_of
from routing.cluster.metadata.leftovers import KEPT_S, Leftovers
from routing.cluster.metadata.placement import new_state
from routing.errors import BrokerError
from routing.topics.topic_config import replication
from tests.routing.cluster.metadata.test_elections import start
from tests.routing.cluster.metadata.test_members import One, cluster
from tests.simulation.etcd_model import EtcdModel
from tests.support.home_cluster import Member, Mesh, mesh, until

WIDE = 260
"""Partitions of a topic that takes several changes."""


def logs_of_topics(elections: Elections) -> set[str]:
    return {log for log in elections.logs if log.startswith("topic-")}


async def killed_within(brokers: Mesh, change: Awaitable[Any]) -> Member:
    """Kill broker 1, which makes a change of topics' logs, when others have seen the first of it; one of these."""
    begun, two = trio.Event(), brokers.members[2]

    def applied(revision: int, entries: Sequence[MetadataEntry]) -> None:
        if any(entry.key.startswith(LOGS + b"topic-") for entry in entries):
            begun.set()

    async def make() -> None:
        with suppress(BrokerError):
            await change

    two.one.store.listeners.append(applied)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        await begun.wait()
        await brokers.kill(1)
        nursery.cancel_scope.cancel()
    return two


async def test_a_topic_that_was_not_made_to_the_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leftovers, "KEPT_S", 1.0)  # whole brokers have much to do in two minutes of virtual time
    monkeypatch.setattr(leftovers, "_LOOK_S", 0.2)
    async with mesh() as brokers:
        await brokers.members[1].broker.create_topic("t", partitions=2)
        two = await killed_within(brokers, brokers.members[1].broker.create_topic("wide", partitions=WIDE))
        uid = two.broker.topics["t"].uid
        await until(lambda: logs_of_topics(two.part.elections) == {f"topic-{uid}-0", f"topic-{uid}-1"})
        assert "wide" not in two.broker.topics
    assert "are removed, which was not made, or not deleted, to the end" in caplog.text


async def put_logs(one: One, uid: str, indexes: Sequence[int]) -> None:
    state = encode(new_state(places_of(one.members.brokers.values()), factor=3, minimum=2))
    await one.store.change([], [(log_key(b"", f"topic-{uid}-{index}"), state) for index in indexes])


async def test_only_the_logs_of_no_topic_go_and_not_while_one_is_being_made(autojump_clock: MockClock) -> None:
    topics = {"there": 2}
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        for one, elections in ones:
            found = Leftovers(Cluster(one.store, one.members, elections), lambda: topics)
            one.beside(nursery, found.run)
        one, elections = ones[0]
        await until(lambda: one.candidate.epoch)
        await put_logs(one, "there", [0, 1])
        await put_logs(one, "gone", [0, 1, 2])
        for index in range(4):  # one after the other, slowly
            await put_logs(one, "new", [index])
            await trio.sleep(0.8 * KEPT_S)
        assert {log.rpartition("-")[0] for log in logs_of_topics(elections)} == {"topic-there", "topic-new"}
        topics["new"] = 3  # it has not got its fourth one
        await trio.sleep(2 * KEPT_S)
        there = [f"topic-there-{index}" for index in range(2)] + [f"topic-new-{index}" for index in range(3)]
        assert sorted(logs_of_topics(elections)) == sorted(there)


async def test_who_makes_a_topic_relies_on_being_registered(autojump_clock: MockClock) -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        await one.one.members.update(draining=True)
        logs = one.broker.storage.topic_logs
        assert logs is not None
        _, relied = logs.states("uid", range(1), replication({}))
        assert one.one.members.guard in relied
