"""What Kafka's clients administer at any broker of a cluster: all follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import trio

from core_log.replication.state import LogState, encode, log_key
from gateway.etcd_process import EtcdProcess
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import (
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
)
from protocols.native.clients.blocking import BlockingClient
from routing.access.rights import Rights
from routing.cluster.metadata.log_names import topic_log
from routing.cluster.replicas import CATCH_UP_BYTES_PER_S
from routing.topics.topic_partition import TopicPartition
from tests.gateway.test_member import Running, three, until
from tests.protocols.kafka.door import Peer, batch_of


async def create(peer: Peer, name: str, partitions: int = -1, factor: int = -1, *assigned: list[int]) -> Any:
    entries = [Entity(partition_index=index, broker_ids=replicas) for index, replicas in enumerate(assigned)]
    topic = Entity(name=name, num_partitions=partitions, replication_factor=factor, assignments=entries, configs=[])
    reply = await peer.ask(CREATE_TOPICS, 7, topics=[topic], timeout_ms=5000, validate_only=False)
    return reply.topics[0]


def partitions_of(brokers: dict[int, Running], topic: str, index: int = 0) -> dict[int, TopicPartition]:
    return {number: one.server.broker.topics[topic].partitions[index] for number, one in brokers.items()}


def replicas_of(brokers: dict[int, Running], topic: str, index: int) -> tuple[int, ...]:
    leadership = partitions_of(brokers, topic, index)[1].leadership
    assert leadership is not None
    return leadership.standing.replicas


async def test_any_broker_administers_all(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "kafka-admin") as (_, brokers):
        peers = {number: Peer(broker.server.broker) for number, broker in brokers.items()}
        await topics_are_made_where_somebody_wants_them(brokers, peers)
        await records_are_deleted_everywhere(brokers, peers)
        await all_brokers_follow_a_configuration(brokers, peers)
        await a_broker_is_throttled(brokers, peers)
        await replicas_move_and_leaders_are_elected(brokers, peers)
        await all_brokers_ask_for_the_same_proof(brokers)


async def topics_are_made_where_somebody_wants_them(brokers: dict[int, Running], peers: dict[int, Peer]) -> None:
    made = await create(peers[1], "placed", -1, -1, [2, 3], [3, 1])
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 2)
    await until(lambda: all("placed" in one.server.broker.topics for one in brokers.values()))
    assert [replicas_of(brokers, "placed", index) for index in range(2)] == [(2, 3), (3, 1)]
    topics = [Entity(name="placed", count=3, assignments=[Entity(broker_ids=[1, 2])])]
    more = await peers[3].ask(CREATE_PARTITIONS, 3, topics=topics, timeout_ms=5000, validate_only=False)
    assert more.results[0].error_code == 0
    assert replicas_of(brokers, "placed", 2) == (1, 2)
    assert (await create(peers[2], "x", 1, 4)).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert (await create(peers[2], "x", -1, -1, [1, 7])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await create(peers[2], "placed", 1, 1)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    gone = await peers[2].ask(DELETE_TOPICS, 6, topics=[Entity(name=None, topic_id=made.topic_id)], timeout_ms=5000)
    assert [(one.name, one.error_code) for one in gone.responses] == [("placed", 0)]
    await until(lambda: not any("placed" in one.server.broker.topics for one in brokers.values()))


async def records_are_deleted_everywhere(brokers: dict[int, Running], peers: dict[int, Peer]) -> None:
    assert (await create(peers[1], "t", 1, 3)).replication_factor == 3
    await until(lambda: all("t" in one.server.broker.topics for one in brokers.values()))
    there = partitions_of(brokers, "t")
    with trio.fail_after(30):
        while not (led := [number for number, one in there.items() if one.leadership.refusal() is None]):  # type: ignore[union-attr]
            await trio.sleep(0.01)
        (leader,) = led
        while (await peers[leader].produce("t", batch_of([b"a", b"b", b"c"]))).error_code:
            await trio.sleep(0.01)
    asked = [Entity(name="t", partitions=[Entity(partition_index=0, offset=2)])]
    found = {
        number: (await peer.ask(DELETE_RECORDS, 2, topics=asked, timeout_ms=10_000)).topics[0].partitions[0]
        for number, peer in peers.items()
    }
    assert {number: one.error_code for number, one in found.items()} == {
        number: ErrorCode.NONE if number == leader else ErrorCode.NOT_LEADER_OR_FOLLOWER for number in brokers
    }
    assert found[leader].low_watermark == 2
    assert [one.log.log_start_offset for one in there.values()] == [2, 2, 2]
    follower = next(number for number in brokers if number != leader)

    def delete_all() -> int:
        with BlockingClient(f"127.0.0.1:{brokers[follower].server.ports['native']}") as client:
            return client.delete_records("t", 0)

    assert await trio.to_thread.run_sync(delete_all) == 3, "a client finds the leader by itself"


async def a_broker_is_throttled(brokers: dict[int, Running], peers: dict[int, Peer]) -> None:
    sent, received = "leader.replication.throttled.rate", "follower.replication.throttled.rate"

    async def change(number: int, *changes: tuple[str, int, str | None], name: str = "") -> int:
        entries = [Entity(name=name, config_operation=operation, value=value) for name, operation, value in changes]
        asked = [Entity(resource_type=4, resource_name=name or str(number), configs=entries)]
        reply = await peers[number].ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=False)
        return int(reply.responses[0].error_code)

    async def values(number: int) -> list[tuple[str, int]]:
        asked = [Entity(resource_type=4, resource_name=str(number), configuration_keys=[sent, received])]
        reply = await peers[number].ask(DESCRIBE_CONFIGS, 4, resources=asked, include_synonyms=True)
        return [(one.value, one.config_source) for one in reply.results[0].configs]

    def rates() -> list[int]:
        return [one.cluster.replicas.catch_up.bytes_per_s for one in brokers.values()]

    never, usual = (str((1 << 63) - 1), 5), CATCH_UP_BYTES_PER_S
    assert await values(2) == [never, never]
    assert await change(2, (sent, 0, "4096"), (received, 0, "8192")) == 0
    assert rates() == [usual, 4096, usual]
    assert await values(2) == [("4096", 2), ("8192", 2)]
    assert await values(1) == [never, never]
    assert await change(2, (sent, 0, "5000"), name="3") == ErrorCode.INVALID_REQUEST
    for value in ("1", "x", ""):
        assert await change(2, (sent, 0, value)) == ErrorCode.INVALID_CONFIG
    assert await change(2, (sent, 2, "5000")) == ErrorCode.INVALID_CONFIG
    assert await change(2, ("num.partitions", 0, "5"), (sent, 0, "5000")) == ErrorCode.INVALID_REQUEST
    assert await values(2) == [("4096", 2), ("8192", 2)]
    replaced = [Entity(resource_type=4, resource_name="2", configs=[Entity(name=sent, value="2048")])]
    reply = await peers[2].ask(ALTER_CONFIGS, 2, resources=replaced, validate_only=False)
    assert (reply.responses[0].error_code, await values(2)) == (0, [("2048", 2), never])
    assert await change(2, (sent, 1, None), (received, 1, None)) == 0
    assert (rates(), await values(2)) == ([usual] * 3, [never, never])


async def all_brokers_follow_a_configuration(brokers: dict[int, Running], peers: dict[int, Peer]) -> None:
    async def change(number: int, *changes: tuple[str, str | None]) -> Any:
        entries = [
            Entity(name=name, config_operation=1 if value is None else 0, value=value) for name, value in changes
        ]
        asked = [Entity(resource_type=2, resource_name="t", configs=entries)]
        reply = await peers[number].ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=False)
        return reply.responses[0]

    async def values(number: int) -> dict[str, tuple[str, int]]:
        asked = [Entity(resource_type=2, resource_name="t", configuration_keys=None)]
        reply = await peers[number].ask(DESCRIBE_CONFIGS, 4, resources=asked)
        return {one.name: (one.value, one.config_source) for one in reply.results[0].configs}

    def state() -> LogState:
        uid = brokers[1].server.broker.topics["t"].uid
        return brokers[1].cluster.elections.logs[topic_log(uid, 0)].state

    there = partitions_of(brokers, "t")
    assert (await values(2))["min.insync.replicas"] == ("2", 5)
    assert (await change(3, ("retention.ms", "123456"), ("min.insync.replicas", "3"))).error_code == 0
    await until(lambda: all(one.log.config.retention_ms == 123_456 for one in there.values()))
    await until(lambda: (state().min_insync, state().minimum) == (3, 3))
    for number in brokers:
        found = await values(number)
        assert (found["retention.ms"], found["min.insync.replicas"]) == (("123456", 1), ("3", 1))
    assert (await change(1, ("min.insync.replicas", "4"))).error_code == ErrorCode.INVALID_CONFIG
    assert (await change(2, ("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true"))).error_code == 0
    await until(lambda: (state().min_insync, state().minimum, state().unclean) == (1, 1, True))
    gone = ("retention.ms", None), ("min.insync.replicas", None), ("unclean.leader.election.enable", None)
    assert (await change(2, *gone)).error_code == 0
    await until(lambda: all(one.log.config.retention_ms == 7 * 86_400_000 for one in there.values()))
    await until(lambda: (state().min_insync, state().unclean) == (2, False))


async def replicas_move_and_leaders_are_elected(brokers: dict[int, Running], peers: dict[int, Peer]) -> None:
    async def move(number: int, replicas: list[int] | None, **more: Any) -> ErrorCode:
        partitions = [Entity(partition_index=0, replicas=replicas)]
        said = {"timeout_ms": 5000, "topics": [Entity(name="one", partitions=partitions)]} | more
        reply = await peers[number].ask(ALTER_PARTITION_REASSIGNMENTS, 1, **said)
        return ErrorCode(reply.responses[0].partitions[0].error_code)

    async def moving(number: int) -> list[tuple[list[int], list[int], list[int]]]:
        reply = await peers[number].ask(LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=5000, topics=None)
        found = [one for topic in reply.topics for one in topic.partitions]
        return [(one.replicas, one.adding_replicas, one.removing_replicas) for one in found]

    async def elect(number: int, kind: int = 0, version: int = 2) -> int:
        asked = [Entity(topic="one", partitions=[0])]
        said = {"election_type": kind} if version else {}
        reply = await peers[number].ask(ELECT_LEADERS, version, **said, topic_partitions=asked, timeout_ms=4000)
        code: int = reply.replica_election_results[0].partition_result[0].error_code
        return code

    def log_name() -> str:
        return topic_log(brokers[1].server.broker.topics["one"].uid, 0)

    def state() -> LogState:
        return brokers[1].cluster.elections.logs[log_name()].state

    assert (await create(peers[1], "one", -1, -1, [1])).error_code == 0
    await until(lambda: all("one" in one.server.broker.topics for one in brokers.values()))
    assert await moving(2) == []
    assert await move(2, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    for wrong in ([], [1, 1], [1, 9]):
        assert await move(2, wrong) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await move(2, [2, 3], allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert await move(2, [2]) == ErrorCode.NONE
    await until(lambda: (state().replicas, state().target, state().leader) == ((2,), None, 2))
    assert await elect(1) == ErrorCode.ELECTION_NOT_NEEDED
    assert await move(1, [1, 2]) == ErrorCode.NONE
    await until(lambda: state().replicas == (1, 2) and state().target is None)
    if state().leader != 1:
        assert await elect(2, version=0) in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    await until(lambda: state().leader == 1)
    assert await elect(1, kind=1) == ErrorCode.ELECTION_NOT_NEEDED
    for count, assigned, code in ((2, None, 0), (3, [[1, 2, 3]], ErrorCode.INVALID_REPLICA_ASSIGNMENT)):
        entries = None if assigned is None else [Entity(broker_ids=replicas) for replicas in assigned]
        topics = [Entity(name="one", count=count, assignments=entries)]
        reply = await peers[3].ask(CREATE_PARTITIONS, 3, topics=topics, timeout_ms=5000, validate_only=False)
        assert reply.results[0].error_code == code
    assert len(replicas_of(brokers, "one", 1)) == 2, "as many as the others have now"
    # What has a replica that never joins stays on its way until somebody takes it back.
    stuck = msgspec.structs.replace(state(), replicas=(1, 2, 9), target=(2, 9), origin=(1, 2))
    await brokers[1].cluster.store.change([], [(log_key(b"", log_name()), encode(stuck))])
    await until(lambda: brokers[3].cluster.elections.logs[log_name()].state.target is not None)
    assert await moving(3) == [([1, 2, 9], [9], [1])]
    assert await move(3, None) == ErrorCode.NONE
    await until(lambda: (state().replicas, state().target, state().origin) == ((1, 2), None, None))
    for number in (1, 2):
        reply = await peers[number].ask(DESCRIBE_LOG_DIRS, 5, topics=None)
        (directory,) = reply.results
        assert {one.name for one in directory.topics} == {"one", "t"}
        assert directory.total_bytes > directory.usable_bytes > 0
    (directory,) = (await peers[3].ask(DESCRIBE_LOG_DIRS, 5, topics=None)).results
    wanted = Entity(path=directory.log_dir, topics=[Entity(name="one", partitions=[0])])
    reply = await peers[3].ask(ALTER_REPLICA_LOG_DIRS, 2, dirs=[wanted])
    assert reply.results[0].partitions[0].error_code == ErrorCode.REPLICA_NOT_AVAILABLE, "clients wait for it"


async def all_brokers_ask_for_the_same_proof(brokers: dict[int, Running]) -> None:
    rights = [brokers[number].server.broker.rights for number in (1, 2, 3)]
    await rights[0].add_user("anna", b"secret")
    await until(lambda: all(one.user("anna") is not None for one in rights))
    found: set[object] = set()

    async def ask(of: Rights, user: str) -> None:
        found.add((user, await of.scram_credential(user, "SCRAM-SHA-256")))

    async with trio.open_nursery() as asking:
        for one in rights:
            for user in ("anna", "nobody"):
                asking.start_soon(ask, one, user)
    again = {(user, await one.scram_credential(user, "SCRAM-SHA-256")) for one in rights for user in ("anna", "nobody")}
    assert len(again) == 2, "also of a user who is not there"
    assert again <= found
