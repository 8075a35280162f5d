"""What compaction takes at those who lead while a replica is away."""

from __future__ import annotations

from core_log.replica_log import ReplicaLog
from routing.config import BrokerConfig
from routing.topics.compaction import Compaction
from tests.core_log.compaction.helpers import Clock, keyed, marker
from tests.core_log.compaction.test_producers import DAY_MS, transactional
from tests.routing.cluster.test_topics_handed_over import led
from tests.routing.topics.test_compaction import CONFIG, values
from tests.support.home_cluster import Member, mesh, until


async def test_who_was_away_is_told_what_is_deleted_and_which_transactions_ended() -> None:
    """Its leader had dropped that: keys were there again when it led, and a transaction was open for good."""
    async with mesh() as brokers:
        leader, partition = await led(brokers, **CONFIG, **{"delete.retention.ms": "0", "min.insync.replicas": "2"})
        partition.log.wall_clock_ms = clock = Clock()  # also in threads
        away = next(member for member in brokers.members.values() if member is not leader)

        def put(*batches: bytes) -> None:
            for batch in batches:
                partition.log.append(batch)
            partition.log.request_sync()
            leader.turn()

        def log(member: Member) -> ReplicaLog:
            (found,) = member.broker.topics["t"].partitions
            assert isinstance(found.log, ReplicaLog)
            return found.log

        async def compact() -> None:
            partition.log.roll()
            put(keyed([(b"end", b"")]))
            await until(lambda: partition.log.high_watermark == partition.log.log_end_offset)
            for _ in range(3):
                await Compaction(leader.broker.flusher, BrokerConfig(), leader.broker.topics.values).round()

        put(keyed([(b"gone", b"1")]), transactional(b"k", b"1", 5))
        await until(lambda: all(log(one).high_watermark == 2 for one in brokers.members.values()))
        files = await brokers.kill(away.me)
        await until(lambda: len(partition.leadership.standing.isr) == 2)  # type: ignore[union-attr]
        put(keyed([(b"gone", None)]), marker(5, commits=True), keyed([(b"k", b"2")]))
        clock.now_ms += 2 * DAY_MS  # nobody remembers its producer
        await compact()
        again = await brokers.add(away.me, files)
        await until(lambda: len(partition.leadership.standing.isr) == 3)  # type: ignore[union-attr]
        (replica,) = again.broker.topics["t"].partitions
        await until(lambda: replica.log.high_watermark == partition.log.high_watermark)
        assert replica.log.stable_offset == replica.log.high_watermark
        found = values(replica)
        assert (found.pop(b"gone", None), found[b"k"], values(partition)[b"k"]) == (None, b"2", b"2")
        await compact()
        assert b"gone" not in values(partition), "it goes when all have it"
