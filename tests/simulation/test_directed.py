"""Sequences made by hand for guards whose absence random schedules hardly ever show: with the wrong rule of
`mutations.py` they end badly, without it they do not.
"""

from __future__ import annotations

import errno
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import trio

from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.replication.follower import Follower
from core_log.replication.messages import Batches, Refused
from routing.errors import StorageUnavailable
from tests.core_log.helpers import flush, make_batch
from tests.core_log.replication.test_roles import ALL, BROKERS, exchange, lead
from tests.core_log.test_replica_log import open_replica
from tests.routing.harness import body_of
from tests.simulation.brokers.mutations import serves_after_its_lease, trusts_what_its_last_turn_found
from tests.simulation.mutations import (
    cuts_by_the_leaders_epoch_alone,
    heeds_old_answers,
    trusts_what_the_cache_shows,
)
from tests.support.home_cluster import Member, mesh


@pytest.mark.parametrize("rule", [nullcontext, heeds_old_answers], ids=lambda rule: rule.__name__)
async def test_an_answer_to_an_old_position_comes_when_what_was_reported_since_is_counted_on(rule: Any) -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(3)]
    leader = lead(logs[0], ALL[:2])
    second, third = (Follower("x", log, 1, 1) for log in logs[1:])

    def tell(follower: Follower, broker: int, now_s: float) -> Any:
        order = follower.position(again=True)
        assert order is not None
        return leader.on_position(broker, order, now_s) or leader.due(broker, now_s, bytes_max=1 << 20)

    for body in (b"a", b"b"):
        logs[0].append(make_batch([body] * 5))
    logs[0].request_sync()
    # 3 is not in sync. All there is is on its way to it when it promises once more, from where it still is.
    sent = tell(third, 3, 1.0)
    assert isinstance(sent, Batches)
    promise = third.position(again=True)
    assert promise is not None
    # 2 and the leader commit it meanwhile, and the first batch is deleted.
    answer = tell(second, 2, 1.0)
    assert isinstance(answer, Batches)
    second.on_batches(answer)
    for log in logs[:2]:
        flush(log)
    leader.log_advanced()
    tell(second, 2, 1.1)
    assert logs[0].high_watermark == 10
    logs[0].delete_prefix(5)
    refused = leader.on_position(3, promise, 1.2)
    assert isinstance(refused, Refused)
    assert refused.reason == "out_of_range"
    # Before it hears that, it has it all on its disk, says so, and is in sync.
    third.on_batches(sent)
    flush(logs[2])
    tell(third, 3, 1.3)
    change = leader.wish(BROKERS, 1.3)
    assert change is not None
    assert 3 in change.state.isr_brokers
    leader.on_state(change.state, 101)
    with rule():
        third.on_refused(refused)
        if third.needs_repair:
            await third.repair()
    kept = logs[2].log_end_offset >= logs[0].high_watermark
    assert kept == (rule is nullcontext), "a member of the ISR has what is committed"


@pytest.mark.parametrize("rule", [nullcontext, trusts_what_the_cache_shows], ids=lambda rule: rule.__name__)
def test_a_replica_is_killed_after_a_failed_sync_and_counted_on_when_it_is_back(rule: Any) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    logs = [open_replica(MemoryFiles()), open_replica(files)]
    leader = lead(logs[0], ALL[:2])

    def reports(now_s: float) -> Any:
        follower = Follower("x", logs[1], 1, 1)
        order = follower.position(again=True)
        assert order is not None
        answer = leader.on_position(2, order, now_s) or leader.due(2, now_s, bytes_max=1 << 20)
        if isinstance(answer, Batches):
            follower.on_batches(answer)

    for now_s, body in ((1.0, b"a"), (1.1, b"b")):
        logs[0].append(make_batch([body]))
        flush(logs[0])
        reports(now_s)
        flush(logs[1])
        files.failing["sync"] = errno.EIO
    assert (logs[1].error is not None, logs[1].local_committed) == (True, 1)
    # It is killed; the next process finds a disk that works, and all that was written.
    files.failing.clear()
    with rule():
        logs[1] = open_replica(files)
    leader.log_advanced()
    reports(1.2)
    assert logs[0].high_watermark == 2
    kept = open_replica(disk.crash()).log_end_offset == 2
    assert kept == (rule is nullcontext), "what is committed is on the disks of the ISR"


@pytest.mark.parametrize("rule", [nullcontext, cuts_by_the_leaders_epoch_alone], ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("own", [3, 4], ids=lambda own: f"{own} batches of its own")
async def test_two_leaders_failed_one_after_the_other_with_what_nobody_else_had(own: int, rule: Any) -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(2)]
    for log in logs:
        log.begin_epoch(1)
        log.append(make_batch([b"both"]))
    # 1 led in epoch 2, and 2 in epoch 3 when 1 was away; then 2 was, and 1 leads once more.
    for log, epoch, count in zip(logs, (2, 3), (3, own), strict=True):
        log.begin_epoch(epoch)
        for _ in range(count):
            log.append(make_batch([b"of epoch %d" % epoch]))
            flush(log)
    leader, follower = lead(logs[0], ALL[:2], epoch=4), Follower("x", logs[1], 1, 4)
    with rule():
        for _ in range(5):
            exchange(leader, 2, follower)
            if follower.needs_repair:
                await follower.repair()
            flush(logs[1])
            leader.log_advanced()
    assert logs[0].high_watermark == 4, "2 is counted on"
    first, second = ([bytes(batch) for batch in log.read_blocking(0, 1 << 20)] for log in logs)
    assert (first == second) == (rule is nullcontext), "a member of the ISR has what is committed"


@pytest.mark.parametrize("rule", [nullcontext, serves_after_its_lease], ids=lambda rule: rule.__name__)
async def test_a_leader_that_hears_of_nobody_is_replaced(rule: Any) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.client().publish_safely("q", *range(3))
        # It hears of nobody, etcd included: what that says is not applied, and the lease runs out there and here.
        listeners, one.one.store.listeners[:] = list(one.one.store.listeners), []
        lost, one.one.store.lease_lost[:] = list(one.one.store.lease_lost), []
        one.cut()
        with rule():
            await brokers.members[2].one.store.revoke(one.one.store.lease_id)
            one.one.store.lease_deadline = -1.0
            del brokers.members[1]
            leader = await brokers.settled(0, 2)
            both = await gives(leader), await gives(one)
        one.one.store.listeners[:], one.one.store.lease_lost[:] = listeners, lost
        brokers.members[1] = one
    assert both == (True, rule is not nullcontext), "two brokers give out one message"


@pytest.mark.parametrize("rule", [nullcontext, trusts_what_its_last_turn_found], ids=lambda rule: rule.__name__)
async def test_a_leader_that_stood_still_is_asked_for_messages_before_a_turn_ends(rule: Any) -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q", arguments={"x-max-length": 100})
        await one.client().publish_safely("q", *range(3))
        consumer, other = one.client(), one.client()
        consumer.session.set_prefetch(1, per_session=False)
        await consumer.consume("q")
        assert consumer.take_bodies() == ["0"]
        given = []
        one.part._clock = lambda: trio.current_time() + 60
        with rule():
            consumer.ack(1)
            with suppress(StorageUnavailable):
                await one.broker.check_queue("q")
            given += [delivery.body for delivery in consumer.deliveries]
            with suppress(StorageUnavailable):
                got = await other.session.get("q", no_ack=True)
                given += [body_of(got)] if got is not None else ["none"]
    assert given == ([] if rule is nullcontext else ["1", "2"]), "others may lead by now"


async def gives(member: Member) -> bool:
    """Whether a broker gives out the first message of a queue, which takes it for its own."""
    client = member.client()
    with trio.move_on_after(1):
        try:
            await client.consume("q")
        except StorageUnavailable:
            return False
        await member.until(lambda: bool(client.deliveries))
    return bool(client.deliveries) and client.deliveries[0].body == "0"
