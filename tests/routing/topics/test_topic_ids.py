"""A topic's id: made with it, kept with it, and never another's."""

from __future__ import annotations

import pytest
import trio

from core_log.files import MemoryFiles
from routing.topics.topic_ids import id_of, new_id
from routing.topology.catalog import Catalog
from routing.topology.entries import Entry
from tests.routing.harness import engine, killed
from tests.support.home_cluster import mesh, until


async def test_an_id_is_the_topics_until_it_is_gone() -> None:
    files = MemoryFiles()
    async with engine(files) as one:
        topic = await one.broker.create_topic("t", config={})
        other = await one.broker.create_topic("other", config={})
        assert len({topic.id, other.id}) == 2
        assert one.broker.topics.by_id == {topic.id: topic, other.id: other}
        files = killed(files)
    async with engine(files) as one:
        found = one.broker.topics["t"]
        assert found.id == topic.id
        assert one.broker.topics.by_id[topic.id] is found
        await one.broker.delete_topic("t")
        assert topic.id not in one.broker.topics.by_id
        again = await one.broker.create_topic("t", config={})
        assert again.id != topic.id
        files = killed(files)
    async with engine(files) as one:
        assert {name: found.id for name, found in one.broker.topics.items()} == {"t": again.id, "other": other.id}


async def test_more_partitions_and_a_streams_declaration_keep_it() -> None:
    files = MemoryFiles()
    async with engine(files) as one:
        ids = {name: (await one.broker.create_topic(name, config={})).id for name in ("t", "s")}
        await one.broker.create_partitions("t", 3)
        await one.broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        files = killed(files)
    async with engine(files) as one:
        assert {name: found.id for name, found in one.broker.topics.items()} == ids


@pytest.mark.parametrize("uid", ["", "00ff"])
async def test_a_topic_of_before_there_were_ids_has_the_same_after_every_start(uid: str) -> None:
    files = MemoryFiles()
    record = {"partitions": 1, "config": {}} | ({"uid": uid} if uid else {})
    async with engine(files) as one:
        await one.broker.topology.catalog.change([Entry(("topic", "t"), record, True)])
        older = one.broker.topics["t"].id
        assert len(older) == 16
        files = killed(files)
    async with engine(files) as one:
        assert one.broker.topics["t"].id == older == id_of("t", record)
        await one.broker.create_partitions("t", 2)
        recorded = dict(Catalog(one.broker.topology.catalog._store).entries("topic"))
        assert recorded["topic", "t"]["id"] == older
        await one.broker.delete_topic("t")
        assert (await one.broker.create_topic("t", config={})).id != older


def test_ids_of_older_topics_differ() -> None:
    names = ["a", "b", "a\udcff", "ff"]
    found = {id_of(name, {}) for name in names} | {id_of("a", {"uid": one}) for one in ("1", "2")} | {new_id()}
    assert len(found) == 7


async def test_all_brokers_know_a_topic_by_the_same_id() -> None:
    async with mesh() as found:
        first, *others = found.members.values()
        topic = await first.broker.create_topic("t", config={})
        await until(lambda: all("t" in one.broker.topics for one in others))
        assert {one.broker.topics["t"].id for one in others} == {topic.id}
        assert all(one.broker.topics.by_id[topic.id].name == "t" for one in others)
        await others[0].broker.delete_topic("t")
        await until(lambda: not any("t" in one.broker.topics for one in found.members.values()))
        assert not any(one.broker.topics.by_id for one in found.members.values())
        with trio.fail_after(10):
            assert (await first.broker.create_topic("t", config={})).id != topic.id
