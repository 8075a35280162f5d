"""Groups that the broker divides, through the Kafka door: what is asked, version by version, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_GROUPS,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from routing.access.grants import Permission
from tests.protocols.kafka.door import Peer, kafka_broker
from tests.protocols.kafka.test_groups import joining

NOBODY = ErrorCode.UNKNOWN_MEMBER_ID


async def beat(peer: Peer, member: str = "a", epoch: int = 0, *, version: int = 1, **said: Any) -> Any:
    if epoch == 0:
        said = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": [], **said}
    return await peer.ask(
        CONSUMER_GROUP_HEARTBEAT, version, **{"group_id": "g", "member_id": member, "member_epoch": epoch, **said}
    )


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_comes_reads_and_goes(version: int) -> None:
    async with kafka_broker(consumer_heartbeat_interval_ms=200) as broker:
        topic = await broker.create_topic("t", partitions=3, config={})
        peer = Peer(broker)
        found = await beat(peer, "" if version == 0 else "a", version=version)
        assert (found.error_code, found.member_epoch, found.heartbeat_interval_ms) == (0, 1, 200)
        (part,) = found.assignment.topic_partitions
        assert (part.topic_id, part.partitions) == (topic.id, [0, 1, 2])
        me = found.member_id
        assert me
        again = await beat(peer, me, 1, version=version)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)
        owned = [Entity(topic_id=topic.id, partitions=[0, 1, 2])]
        said = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1000, "topic_partitions": owned}
        whole = await beat(peer, me, 1, version=version, **said)
        assert whole.assignment.topic_partitions == [part]
        left = await beat(peer, me, -1, version=version)
        assert (left.error_code, left.member_epoch) == (0, -1)
        assert (await beat(peer, me, 1, version=version)).error_code == NOBODY


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_who_cannot_join(said: dict[str, Any], code: ErrorCode) -> None:
    async with kafka_broker() as broker:
        reply = await beat(Peer(broker), **said)
        assert (reply.error_code, bool(reply.error_message)) == (code, True)
        assert not broker.groups.groups


async def test_fencing() -> None:
    async with kafka_broker(group_members_max=2) as broker:
        await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)
        assert (await beat(peer, "a", instance_id="one")).error_code == 0
        assert (await beat(peer, "b", instance_id="one")).error_code == ErrorCode.UNRELEASED_INSTANCE_ID
        assert (await beat(peer, "a", 2, instance_id="one")).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await beat(peer, "a", -2, instance_id="one")).member_epoch == -2
        assert (await beat(peer, "b", instance_id="one")).error_code == 0
        assert (await beat(peer, "a", 1, instance_id="one")).error_code == ErrorCode.FENCED_INSTANCE_ID
        assert (await beat(peer, "c")).error_code == 0
        assert (await beat(peer, "d")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await peer.ask(JOIN_GROUP, 3, **joining())).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_groups_are_not_without_number() -> None:
    async with kafka_broker(groups_max=1, group_initial_delay_ms=0) as broker:
        peer = Peer(broker)
        assert (await beat(peer)).error_code == 0
        assert (await beat(peer, group_id="h")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await peer.ask(JOIN_GROUP, 3, **joining(group="h"))).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await beat(peer, "b")).error_code == 0


async def test_commits_go_by_the_members_epoch() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        peer = Peer(broker)
        await beat(peer)

        async def commit(member: str, epoch: int, version: int = 9) -> int:
            one = Entity(partition_index=0, committed_offset=7, committed_metadata="")
            reply = await peer.ask(
                OFFSET_COMMIT, version, group_id="g", generation_id_or_member_epoch=epoch, member_id=member,
                topics=[Entity(name="t", partitions=[one])],
            )  # fmt: skip
            return int(reply.topics[0].partitions[0].error_code)

        assert await commit("a", 1) == 0
        assert await commit("a", 0) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit("b", 1) == NOBODY
        assert await commit("a", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION

        async def fetch(member: str | None, epoch: int) -> tuple[int, list[int]]:
            asked = Entity(group_id="g", member_id=member, member_epoch=epoch, topics=None)
            (found,) = (await peer.ask(OFFSET_FETCH, 9, groups=[asked])).groups
            return found.error_code, [one.committed_offset for topic in found.topics for one in topic.partitions]

        assert await fetch("a", 1) == (0, [7])
        assert await fetch(None, -1) == (0, [7])
        assert (await fetch("a", 0))[0] == ErrorCode.STALE_MEMBER_EPOCH
        assert (await fetch("b", 1))[0] == NOBODY


async def test_groups_are_listed_and_described_by_their_kind() -> None:
    async with kafka_broker(group_initial_delay_ms=0) as broker:
        topic = await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)
        await beat(peer, instance_id="one", rack_id="r", subscribed_topic_regex="t.*")
        await peer.ask(JOIN_GROUP, 3, **joining(group="classic"))

        async def listed(**filters: Any) -> list[tuple[str, str, str]]:
            found = (await peer.ask(LIST_GROUPS, 5, **filters)).groups
            return [(one.group_id, one.group_type, one.group_state) for one in found]

        ours = ("g", "consumer", "Stable")
        assert await listed() == [("classic", "classic", "CompletingRebalance"), ours]
        assert await listed(types_filter=["Consumer"]) == await listed(states_filter=["stable"]) == [ours]
        assert await listed(types_filter=["share"]) == []
        found = (await peer.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g", "classic", "none", "g"])).groups
        assert [one.error_code for one in found] == [0, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND]
        group = found[0]
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
        assert group.assignor_name == "uniform"
        (member,) = group.members
        assert (member.instance_id, member.rack_id, member.client_host, member.member_type) == (
            "one", "r", "/127.0.0.1", 1,
        )  # fmt: skip
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], "t.*")
        whole = [Entity(topic_id=topic.id, topic_name="t", partitions=[0, 1])]
        assert member.assignment.topic_partitions == member.target_assignment.topic_partitions == whole
        for version in (5, 6):
            (other,) = (await peer.ask(DESCRIBE_GROUPS, version, groups=["g"])).groups
            assert (other.group_state, other.error_code) == (
                "Dead", 0 if version == 5 else ErrorCode.GROUP_ID_NOT_FOUND,
            )  # fmt: skip


async def test_what_a_member_is_to_give_up_is_described_as_its_until_it_has() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=2, config={})
        peer = Peer(broker)

        async def described() -> list[int]:
            (group,) = (await peer.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"])).groups
            places = next(one for one in group.members if one.member_id == "a").assignment.topic_partitions
            return [number for place in places for number in place.partitions]

        await beat(peer)
        await beat(peer, "b")
        told = await beat(peer, epoch=1, topic_partitions=[Entity(topic_id=topic.id, partitions=[0, 1])])
        ((kept,),) = (one.partitions for one in told.assignment.topic_partitions)
        assert await described() == [0, 1]
        await beat(peer, epoch=1, topic_partitions=[Entity(topic_id=topic.id, partitions=[kept])])
        assert await described() == [kept]


async def test_topics_are_for_who_may_read_them() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        await broker.create_topic("other", partitions=1, config={})
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        peer = Peer(broker)
        assert (await beat(peer)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = await beat(peer, subscribed_topic_names=None, subscribed_topic_regex=".*")
        (part,) = found.assignment.topic_partitions
        assert part.topic_id == broker.topics["other"].id
        (told,) = (await peer.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"])).groups
        assert (told.error_code, len(told.members)) == (0, 1)
        await broker.rights.set_permission("/", "guest", Permission("", "", "^t$"))
        (told,) = (await peer.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"])).groups
        assert (told.error_code, told.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
