"""What a broker does now and then, and last of all."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from core_log.partition_log import PartitionLog
from core_log.replica_log import ReplicaLog
from core_log.threads import in_thread
from routing import filter_streams, queue_lag
from routing.alarms import Alarms
from routing.consumer_timeouts import ConsumerTimeouts
from routing.errors import StorageUnavailable
from routing.queues.homes.checkpoints import clean_checkpoint
from routing.queues.homes.home_status import warn_of_pinned_bytes
from routing.queues.homes.reclaim import give_back, shed
from routing.queues.reservations import reserved_count
from routing.topics import upkeep
from routing.topics.leases import lease_clock_ms
from routing.topics.topic import logs_here

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

_DISK_PATIENCE_S = 10


async def housekeep(broker: Broker) -> None:
    """Checkpoints, dead prefixes and retention, for ever."""
    config, timeouts = broker.config, ConsumerTimeouts()
    retention_due = reclaim_due = 0.0
    while True:
        await trio.sleep(config.housekeeping_interval_ms / 1000)
        await _tend_disk(broker.alarms)
        broker.clock.look()
        broker.retained.tidy(broker.spawn)
        if broker.storage.topic_logs is not None:
            broker.storage.topic_logs.retry()
            if broker.storage.topic_logs.give_up():
                broker.send_on("the broker is cut off from its cluster")
        led, transient = broker.topology.led, broker.topology.transient
        for partition in (*led, transient):
            partition.tidy()
        keeps = _keeps_homes(broker)
        for partition in broker.topology.led:
            broker.checkpoints.take(partition)
            if not keeps:
                partition.delete_dead_prefix()
            warn_of_pinned_bytes(partition)
        broker.refused_messages += shed(transient, config.scratch_bytes_max)
        transient.delete_dead_prefix()
        upkeep.look_after_readers(broker.leased, lease_clock_ms())
        queue_lag.tidy(broker)
        broker.transactions.tidy()
        for log in broker.storage.stores:
            log.request_sync()  # of what nobody waits for, too: what is done would be done again after a loss of power
        timeouts.look(broker.host.impatient, broker.sessions, broker.clock.now_ms())
        if trio.current_time() >= reclaim_due or broker.blocked:
            reclaim_due = trio.current_time() + config.reclaim_interval_ms / 1000
            for partition in (*(() if keeps else broker.topology.led), transient):
                give_back(partition)
            broker.lag_rules.due()
            upkeep.sync(broker.topology.topics.values())
        if trio.current_time() >= retention_due or broker.blocked:
            retention_due = trio.current_time() + config.retention_check_interval_ms / 1000
            await upkeep.apply_retention(broker.topology.topics.values())
            await broker.groups.expire()
            await filter_streams.expire(broker)
        broker.end_turn()


def _keeps_homes(broker: Broker) -> bool:
    """Whether nothing goes from the logs of homes now (`Broker.homes_kept_until_s`): no longer than there is room."""
    keeps = trio.current_time() < broker.homes_kept_until_s
    if keeps and broker.blocked:
        logger.warning("what was in queues that are gone is not kept any longer: publishers are blocked")
        broker.homes_kept_until_s, keeps = 0.0, False
    return keeps


async def _tend_disk(alarms: Alarms) -> None:
    if alarms.space.total_bytes:
        try:
            await in_thread(alarms.space.tend, alarms.disk_free_bytes_min)
        except OSError as error:
            logger.warning("cannot keep a reserve on the disk: %s", error)
    alarms.measure_memory()
    alarms.check()


def halve_caches(broker: Broker, times: int) -> None:
    """Have all caches hold half as much as is configured, so many times over."""
    config, topology = broker.config, broker.topology
    broker.flusher.tails.limit(config.tails_bytes_max >> times)
    topology.stream_host.cache.limit(config.stream_cache_bytes >> times)
    for partition in (*topology.led, topology.transient):
        partition.halve_cache(times)


async def close(broker: Broker) -> None:
    """Write down where everything stands. Sessions must be closed; a log that refuses writes is left as it is."""
    await broker.wills.finish()
    for session in list(broker.sessions):
        session.close()
    if broker.homes is not None:
        await broker.homes.close()
    await broker.checkpoints.stop()
    topology = broker.topology
    for partition in topology.led:
        partition.settlements_due()
    broker.end_turn()
    logs = [partition.log for partition in (*topology.led, topology.transient)]
    logs += logs_here(topology.topics.values())
    await _settled_disk(broker, logs)
    broker.dead_letters.put_back()
    await upkeep.save_producers(topology.topics.values())
    if all(log.error is None for log in logs):
        broker.transactions.close()
    for partition in topology.led:
        log = partition.log
        if any(queue.outstanding != reserved_count(queue) for queue in partition.queues.values()):
            logger.error("%s: deliveries are left over, the next start goes by the log", log.directory)
        elif log.error is None and log.committed_offset >= partition.next_offset:
            try:
                broker.checkpoints.save(log, clean_checkpoint(partition))
            except OSError as error:
                logger.warning("cannot save the checkpoint of %s: %s", log.directory, error)
    broker.flusher.close(logs)
    broker.flusher.close(broker.storage.stores)
    if broker.cluster is not None:
        broker.cluster.close()


async def _settled_disk(broker: Broker, logs: list[PartitionLog]) -> None:
    # What waits for other brokers may wait for ever.
    own = [log for log in logs if not isinstance(log, ReplicaLog)]
    needed = [(log, log.log_end_offset) for log in own if log.error is None]
    with trio.move_on_after(_DISK_PATIENCE_S), suppress(StorageUnavailable):
        await broker.commits.committed(needed)
