"""Groups through the Kafka door: what is asked, version by version, and what is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from core_log.memory_files import MemoryFiles
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from protocols.native import wire_groups
from protocols.native.adapter_groups import HANDLERS
from routing.access.grants import EVERYTHING, Permission
from routing.cluster.clients.offsets import ReplicatedOffsets
from routing.groups.errors import CoordinatorLoading, CoordinatorUnavailable
from routing.groups.group import Group
from routing.topics.offset_store import Committed
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker
from tests.support.home_cluster import mesh, until

QUICK = {"group_initial_delay_ms": 0}
PROTOCOLS = [Entity(name="range", metadata=b"wants")]


def joining(member_id: str = "", group: str = "g", **more: Any) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, "member_id": member_id,
        "protocol_type": "consumer", "protocols": PROTOCOLS, **more,
    }  # fmt: skip


async def member(peer: Peer, group: str = "g", **more: Any) -> Any:
    """Join a group alone, and be told what was said."""
    joined = await peer.ask(JOIN_GROUP, 3, **joining(group=group, **more))
    assert joined.error_code == 0
    synced = await peer.ask(
        SYNC_GROUP, 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[Entity(member_id=joined.member_id, assignment=b"all")],
    )  # fmt: skip
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return joined


@pytest.mark.parametrize("version", range(5))
async def test_who_looks_after_a_group(version: int) -> None:
    async with kafka_broker() as broker:
        reply = await Peer(broker).ask(FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=["g"])
        found = reply if version < 4 else reply.coordinators[0]
        assert (found.error_code, found.node_id, found.host, found.port) == (0, 0, "127.0.0.1", 9092)
        nobody = await Peer(broker).ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[""])
        assert nobody.coordinators[0].error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(10))
async def test_a_member_comes_reads_and_goes(version: int) -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        joined = await peer.ask(JOIN_GROUP, version, **joining())
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await peer.ask(JOIN_GROUP, version, **joining(joined.member_id))
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == joined.member_id
        assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"wants")]
        me = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
        synced = await peer.ask(
            SYNC_GROUP, min(version, 5), **me, protocol_type="consumer", protocol_name="range",
            assignments=[Entity(member_id=joined.member_id, assignment=b"all")],
        )  # fmt: skip
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert (await peer.ask(HEARTBEAT, min(version, 4), **me)).error_code == 0
        wrong = await peer.ask(HEARTBEAT, min(version, 4), **{**me, "generation_id": 2})
        assert wrong.error_code == ErrorCode.ILLEGAL_GENERATION
        leaving = [Entity(member_id=joined.member_id), Entity(member_id="nobody")]
        left = await peer.ask(LEAVE_GROUP, min(version, 5), group_id="g", member_id=joined.member_id, members=leaving)
        assert left.error_code == 0
        if version >= 3:
            assert [one.error_code for one in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert (await peer.ask(HEARTBEAT, 0, **me)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_members_wait_for_each_other() -> None:
    async with kafka_broker(**QUICK) as broker:
        one, two = Peer(broker), Peer(broker)
        first = await member(one)
        await two.send(JOIN_GROUP, 3, **joining())
        assert two.replies() == []
        told = await one.ask(HEARTBEAT, 3, group_id="g", generation_id=1, member_id=first.member_id)
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        again = await one.ask(JOIN_GROUP, 3, **joining(first.member_id))
        (second,) = two.replies()
        assert (again.generation_id, second.generation_id, len(again.members)) == (2, 2, 2)
        await two.send(SYNC_GROUP, 3, group_id="g", generation_id=2, member_id=second.member_id)
        assert two.replies() == []
        shares = [Entity(member_id=second.member_id, assignment=b"half")]
        await one.ask(SYNC_GROUP, 3, group_id="g", generation_id=2, member_id=first.member_id, assignments=shares)
        (synced,) = two.replies()
        assert synced.assignment == b"half"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_who_cannot_join(asked: dict[str, Any], code: ErrorCode) -> None:
    async with kafka_broker(**QUICK) as broker:
        assert (await Peer(broker).ask(JOIN_GROUP, 3, **{**joining(), **asked})).error_code == code


def committing(
    offset: int, *, topic: str = "t", generation: int = -1, member_id: str = "", note: str | None = "n"
) -> Any:
    one = Entity(partition_index=0, committed_offset=offset, committed_metadata=note)
    topics = [Entity(name=topic, partitions=[one])]
    return {"group_id": "g", "generation_id_or_member_epoch": generation, "member_id": member_id, "topics": topics}


async def committed(peer: Peer, version: int = 8, topics: Any = None) -> Any:
    asked = topics if topics is not None or version < 2 else None
    if version < 2:
        asked = [Entity(name="t", partition_indexes=[0, 1])]
    reply = await peer.ask(
        OFFSET_FETCH, version, group_id="g", topics=asked, groups=[Entity(group_id="g", topics=asked)]
    )
    found = reply.groups[0] if version >= 8 else reply
    return {
        (topic.name, one.partition_index): (one.error_code, one.committed_offset, one.metadata)
        for topic in found.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 9))
async def test_how_far_a_group_has_come_survives_the_broker(version: int) -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)
        reply = await peer.ask(OFFSET_COMMIT, version, **committing(7))
        assert [one.error_code for one in reply.topics[0].partitions] == [0]
        files = files.crash()
    async with kafka_broker(files) as broker:
        found = await committed(Peer(broker), version)
        assert found[("t", 0)] == (0, 7, "n")
        assert found.get(("t", 1), (0, -1, "")) == (0, -1, "")


async def test_only_members_of_this_generation_commit() -> None:
    async with kafka_broker(**QUICK) as broker:
        await broker.create_topic("t", partitions=1, config={})
        peer = Peer(broker)
        me = (await member(peer)).member_id

        async def code(**how: Any) -> int:
            return int((await peer.ask(OFFSET_COMMIT, 8, **committing(1, **how))).topics[0].partitions[0].error_code)

        assert await code(generation=1, member_id=me) == 0
        assert await code(generation=0, member_id=me) == ErrorCode.ILLEGAL_GENERATION
        assert await code(generation=1, member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(generation=1, member_id=me, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        too_long = await code(generation=1, member_id=me, note="x" * 5000)
        assert too_long == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await code(generation=1, member_id=me, note=None) == 0
        assert (await committed(peer))[("t", 0)] == (0, 1, "")


async def test_who_asks_where_a_group_is_looked_after_by_nobody_is_to_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)

        async def fetch(*_: Any, **__: Any) -> None:
            raise CoordinatorUnavailable("nobody looks after group 'g' now")

        monkeypatch.setattr(broker.groups, "fetch", fetch)
        for version in (5, 8, 9):
            asked: Any = {"group_id": "g", "topics": None}
            reply = await peer.ask(OFFSET_FETCH, version, **asked, groups=[Entity(**asked)])
            found = reply.groups[0] if version >= 8 else reply
            assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_the_leader_epoch_of_an_offset_is_kept_with_it() -> None:
    async with kafka_broker(**QUICK) as broker:
        await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)

        async def epochs(version: int) -> list[int]:
            asked: Any = {"group_id": "g", "topics": None}
            reply = await peer.ask(OFFSET_FETCH, version, **asked, groups=[Entity(**asked)])
            found = reply.groups[0] if version >= 8 else reply
            return [one.committed_leader_epoch for topic in found.topics for one in topic.partitions]

        for version, said, told in ((5, 3, -1), (6, 4, 4), (9, 6, 6), (8, -1, -1)):
            one = Entity(partition_index=1, committed_offset=2, committed_leader_epoch=said, committed_metadata="")
            await peer.ask(OFFSET_COMMIT, version, group_id="g", topics=[Entity(name="t", partitions=[one])])
            assert [await epochs(asked) for asked in (4, 5, 7, 8, 9)] == [[-1], *[[told]] * 4]


async def test_groups_are_listed_described_and_deleted() -> None:
    async with kafka_broker(**QUICK) as broker:
        await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)
        me = await member(peer, "members")
        await peer.ask(OFFSET_COMMIT, 8, **committing(3))
        for version in range(6):
            listed = await peer.ask(LIST_GROUPS, version)
            assert [(one.group_id, one.protocol_type) for one in listed.groups] == [
                ("g", ""), ("members", "consumer"),
            ]  # fmt: skip
        stable = await peer.ask(LIST_GROUPS, 4, states_filter=["Stable"])
        assert [one.group_id for one in stable.groups] == ["members"]
        for version in range(7):
            described = (await peer.ask(DESCRIBE_GROUPS, version, groups=["g", "members", "none"])).groups
            assert [one.group_state for one in described] == ["Empty", "Stable", "Dead"]
            (found,) = described[1].members
            assert (found.member_id, found.client_id, found.client_host) == (me.member_id, "test", "/127.0.0.1")
            assert (found.member_metadata, found.member_assignment) == (b"wants", b"all")
            assert described[2].error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        places = [Entity(name=name, partitions=[Entity(partition_index=n) for n in (1, 9)]) for name in ("t", "none")]
        reply = await peer.ask(OFFSET_DELETE, 0, group_id="g", topics=places)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes = [[one.error_code for one in topic.partitions] for topic in reply.topics]
        assert (reply.error_code, codes) == (0, [[0, missing], [missing, missing]])
        assert (await committed(peer))[("t", 0)] == (0, 3, "n")
        for version in range(3):
            deleted = await peer.ask(DELETE_GROUPS, version, groups_names=["g", "members", "none"])
            assert [one.error_code for one in deleted.results] == [
                0 if version == 0 else ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ]  # fmt: skip
        assert await committed(peer) == {}


async def test_groups_that_are_not_read_yet_are_not_just_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh(1) as brokers:
        broker = brokers.members[1].broker
        offsets, peer = broker.offsets, Peer(broker)
        assert isinstance(offsets, ReplicatedOffsets)
        await until(offsets.all_read)
        assert (await peer.ask(LIST_GROUPS, 4)).error_code == 0
        part = offsets._stores.parts[offsets.log_of("g")]
        monkeypatch.setattr(part, "store", None)
        assert (await peer.ask(LIST_GROUPS, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(CoordinatorLoading, match="is being read"):
            await HANDLERS[wire_groups.ListGroups](SimpleNamespace(broker=broker), wire_groups.ListGroups(0))


async def test_what_a_group_is_to_agree_on_is_not_told_before_it_has() -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        me = await member(peer)
        await Peer(broker).send(JOIN_GROUP, 3, **joining())
        (found,) = (await peer.ask(DESCRIBE_GROUPS, 5, groups=["g"])).groups
        assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
        told = {one.member_id: (one.member_metadata, one.member_assignment) for one in found.members}
        assert len(told) == 2
        assert told[me.member_id] == (b"", b"all")


async def test_a_group_whose_last_member_has_left_is_empty_and_can_be_deleted() -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        me = await member(peer)
        await peer.ask(LEAVE_GROUP, 2, group_id="g", member_id=me.member_id)
        listed = await peer.ask(LIST_GROUPS, 4, states_filter=["Empty"])
        assert [one.group_id for one in listed.groups] == ["g"]
        described = await peer.ask(DESCRIBE_GROUPS, 5, groups=["g"])
        assert [one.group_state for one in described.groups] == ["Empty"]
        for code in (0, ErrorCode.GROUP_ID_NOT_FOUND):
            deleted = await peer.ask(DELETE_GROUPS, 2, groups_names=["g"])
            assert [one.error_code for one in deleted.results] == [code]


async def test_whoever_is_silent_is_out(autojump_clock: trio.testing.MockClock) -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        me = await member(peer)
        await trio.sleep(5)
        beat = {"group_id": "g", "generation_id": 1, "member_id": me.member_id}
        assert (await peer.ask(HEARTBEAT, 3, **beat)).error_code == 0
        await trio.sleep(10.1)
        assert (await peer.ask(HEARTBEAT, 3, **beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_are_for_who_may_read() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        await Peer(broker).ask(OFFSET_COMMIT, 8, **committing(3))
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        peer = Peer(broker)
        reply = await peer.ask(OFFSET_COMMIT, 8, **committing(9))
        assert reply.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await committed(peer) == {}
        asked = [Entity(name="t", partition_indexes=[0])]
        assert (await committed(peer, 7, asked))[("t", 0)] == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, "")
        (deleted,) = (await peer.ask(DELETE_GROUPS, 2, groups_names=["g"])).results
        assert deleted.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await broker.rights.set_permission("/", "guest", EVERYTHING)
        assert (await committed(peer, 7, asked))[("t", 0)] == (0, 3, "n")


async def test_who_may_not_read_tries_no_records_of_others() -> None:
    async with kafka_broker(**QUICK) as broker:
        topic = await broker.create_topic("t", partitions=1, config={"millrace.dead.letter.fetches": "1"})
        peer, place = Peer(broker), ("t", 0)
        await peer.produce("t", batch_of([b"poison", b"good"]))
        await broker.offsets.commit("g", {place: Committed(0)})
        await member(peer)
        group = broker.groups.groups["g"]
        assert isinstance(group, Group)
        asked = [Entity(name="t", partition_indexes=[0])]
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        for _ in range(3):
            group.departed[place] += 1
            assert (await committed(peer, 7, asked))[place] == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, "")
            assert await committed(peer, 7) == {}
        assert (await broker.offsets.fetch("g", [place]))[place].offset == 0
        assert list(broker.topics.values()) == [topic]


async def test_who_comes_back_under_the_same_client_id_has_what_it_had() -> None:
    async with kafka_broker(**QUICK) as broker:
        settings = {"static_client_ids": "te.t"}  # it is "test"
        first = Peer(broker, **settings)
        joined = await member(first)
        left = [Entity(member_id=joined.member_id, group_instance_id=None)]
        reply = await first.ask(LEAVE_GROUP, 3, group_id="g", members=left)
        assert [(one.member_id, one.error_code) for one in reply.members] == [(joined.member_id, 0)]
        assert (await first.ask(LEAVE_GROUP, 1, group_id="g", member_id=joined.member_id)).error_code == 0
        first.adapter.connection_lost()
        again = Peer(broker, **settings)
        back = await again.ask(JOIN_GROUP, 5, **joining())
        assert (back.error_code, back.generation_id, back.members) == (0, joined.generation_id, [])
        assert back.member_id not in (joined.member_id, back.leader)
        asked = {"group_id": "g", "generation_id": back.generation_id, "member_id": back.member_id}
        synced = await again.ask(SYNC_GROUP, 3, **asked, assignments=[])
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert (await again.ask(HEARTBEAT, 3, **asked)).error_code == 0
        asked["member_id"] = joined.member_id
        assert (await again.ask(HEARTBEAT, 3, **asked)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        other = Peer(broker, static_client_ids="t")
        assert (await other.ask(JOIN_GROUP, 5, **joining())).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_offsets_are_forgotten_in_topics_that_nobody_reads() -> None:
    """What members want is read where it is of Kafka's consumer protocol."""
    async with kafka_broker(**QUICK) as broker:
        for name in ("read", "left"):
            await broker.create_topic(name)
        peer = Peer(broker)
        asked = [Entity(name=name, partitions=[Entity(partition_index=0)]) for name in ("read", "left")]
        for wants, codes in (
            (b"\0\3\0\0\0\1\0\4read\xff\xff\xff\xff", [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]),
            (b"wants", [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2),
            (b"\0\3\0\0\0\2\0\4read", [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2),
        ):
            places = {(name, 0): Committed(7) for name in ("read", "left")}
            await broker.offsets.commit("g", places)
            me = await member(peer, protocols=[Entity(name="range", metadata=wants)])
            reply = await peer.ask(OFFSET_DELETE, 0, group_id="g", topics=asked)
            assert [one.partitions[0].error_code for one in reply.topics] == codes
            left = await broker.offsets.fetch("g", list(places))
            assert sorted(name for name, _ in left) == [name for name in ("left", "read") if name == "read" or codes[1]]
            await peer.ask(LEAVE_GROUP, 2, group_id="g", member_id=me.member_id)


async def test_a_group_whose_last_offset_is_deleted_is_there_until_that_is_looked_at() -> None:
    """Who asks again, as its answer was lost, is told the same."""
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        peer = Peer(broker)
        await peer.ask(OFFSET_COMMIT, 8, **committing(3))
        places = [Entity(name="t", partitions=[Entity(partition_index=0)])]
        for _ in range(2):
            reply = await peer.ask(OFFSET_DELETE, 0, group_id="g", topics=places)
            assert (reply.error_code, reply.topics[0].partitions[0].error_code) == (0, 0)
        described = await peer.ask(DESCRIBE_GROUPS, 6, groups=["g"])
        assert [(one.error_code, one.group_state) for one in described.groups] == [(0, "Empty")]
        assert await committed(peer) == {}
        await broker.groups.expire()
        reply = await peer.ask(OFFSET_DELETE, 0, group_id="g", topics=places)
        assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await peer.ask(OFFSET_COMMIT, 8, **committing(3))
        assert await committed(peer) != {}


async def test_a_static_leader_that_comes_back_knows_what_the_others_want() -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        first = await peer.ask(JOIN_GROUP, 5, **joining(group_instance_id="i"))
        share = [Entity(member_id=first.member_id, assignment=b"all")]
        me = {"group_id": "g", "generation_id": 1, "group_instance_id": "i"}
        await peer.ask(SYNC_GROUP, 3, **me, member_id=first.member_id, assignments=share)
        old = await peer.ask(JOIN_GROUP, 8, **joining(group_instance_id="i"))
        assert (old.leader, old.members) == (first.member_id, []), "it is not to divide anything"
        again = await peer.ask(JOIN_GROUP, 9, **joining(group_instance_id="i"))
        assert (again.leader, again.skip_assignment, again.generation_id) == (again.member_id, True, 1)
        assert [(one.group_instance_id, one.metadata) for one in again.members] == [("i", b"wants")]
        for instance_id, code in (("i", 0), ("other", ErrorCode.UNKNOWN_MEMBER_ID)):
            beat = await peer.ask(HEARTBEAT, 3, **me | {"member_id": again.member_id, "group_instance_id": instance_id})
            assert beat.error_code == code


async def test_what_anybody_may_do_with_a_group_is_told_if_it_asks() -> None:
    async with kafka_broker(**QUICK) as broker:
        peer = Peer(broker)
        await member(peer)
        for asks, expected in ((False, -(1 << 31)), (True, 1 << 3 | 1 << 6 | 1 << 8)):
            reply = await peer.ask(DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=asks)
            assert reply.groups[0].authorized_operations == expected
