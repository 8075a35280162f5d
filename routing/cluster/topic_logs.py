"""The partitions of topics in a cluster: their logs on this broker, and who leads them.

1. A topic has an id that no other ever has, `uid`; the logs of its partitions, and their directories, are named by it.
   So what an earlier topic of that name left behind is never taken for this one's.
2. The states of its logs are put together with its entry (`states`): who sees the topic sees where it is. They go with
   it.
3. Where this broker is a replica the partition has a `ReplicaLog`, else an `AbsentLog`, which readers may read all the
   same (`remote_log.py`); replicas that move make it the one or the other.
4. Who ceases to lead tells everybody who waits for what it had not committed that this failed: another leader may have
   put something else there. So does who has not been allowed to act as the leader for so long that others will be
   (`publish_patience_s`), though it hears of nothing: whoever waits had better ask others.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from core_log.absent_log import AbsentLog
from core_log.log_config import LogConfig
from core_log.metadata.store import Guard, Put
from core_log.partition_log import PartitionLog
from core_log.replica_log import ReplicaLog
from core_log.replication.state import encode, log_key
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.elections import places_of
from routing.cluster.metadata.log_names import TOPIC, parsed, topic_log
from routing.cluster.metadata.placement import Place, new_state, spread
from routing.cluster.metadata.records import broker_key
from routing.errors import InvalidAssignment, InvalidReplication, NotEnoughReplicas, NotLeader, StorageUnavailable
from routing.topics.leadership import Forward, Standing
from routing.topics.topic import Topic
from routing.topics.topic_config import Replication
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.cluster.clients.forwarding import Forwarding

logger = logging.getLogger(__name__)


def new_uid() -> str:
    """The id of a new topic."""
    return secrets.token_hex(8)


class PartitionLeadership:
    """A `Leadership` as the metadata and this broker's role have it."""

    __slots__ = ("_cluster", "_name", "_what", "leads")

    def __init__(self, cluster: Cluster, name: str, what: str) -> None:
        self._cluster = cluster
        self._name = name
        self._what = what
        self.leads = False

    @property
    def standing(self) -> Standing:
        """See `Leadership`."""
        state = self._cluster.state_of(self._name)
        if state is None:
            return Standing(None, 0, (), ())
        return Standing(state.leader, state.leader_epoch, state.replicas, tuple(state.isr_brokers))

    @property
    def epoch(self) -> int:
        """See `Leadership`."""
        return self._cluster.leader_of(self._name)[1]

    def low_watermark(self) -> int:
        """See `Leadership`."""
        role = self._cluster.role_of(self._name)
        return role.low_watermark() if role is not None else -1

    def refusal(self) -> StorageUnavailable | None:
        """See `Leadership`."""
        role = self._cluster.role_of(self._name)
        if role is not None and self._cluster.may_serve(role):
            return None
        leader, epoch = self._cluster.leader_of(self._name)
        if leader is None:
            return NotLeader(f"nobody leads {self._what} now")
        if leader == self._cluster.broker_id:
            return NotLeader(f"broker {leader} may not act as the leader of {self._what} now (epoch {epoch})")
        return NotLeader(f"broker {leader} leads {self._what} (epoch {epoch})")

    def unknown_end(self) -> StorageUnavailable | None:
        """See `Leadership`."""
        role = self._cluster.role_of(self._name)
        if role is None or role.watermark_is_known:
            return None
        return NotLeader(f"broker {role.me} leads {self._what} and has not heard yet how far it was committed")

    def shortage(self) -> StorageUnavailable | None:
        """See `Leadership`."""
        role = self._cluster.role_of(self._name)
        if role is None or role.may_append():
            return None
        state = role.state
        if role.closed_until_s is not None:
            return NotLeader(f"the leadership of {self._what} is being handed to broker {state.transfer}")
        return NotEnoughReplicas(
            f"{len(state.isr)} replicas of {self._what} are in sync, {state.min_insync} have to be"
        )


class TopicLogs:
    """See the module. `fail` tells all who wait for a log that nobody knows what becomes of it."""

    def __init__(self, cluster: Cluster, fail: Callable[[PartitionLog, StorageUnavailable], None]) -> None:
        self._cluster = cluster
        self._fail = fail
        self._partitions: dict[str, tuple[TopicPartition, PartitionLeadership, Callable[[], PartitionLog]]] = {}
        self._unopened: set[str] = set()
        self.forward: Callable[[str], Forward] | None = None
        """Leads to whoever leads a log."""
        self.absent: Callable[[str, str, LogConfig], AbsentLog] = lambda name, what, settings: AbsentLog(what, settings)
        """What stands for a log that this broker has no replica of."""
        cluster.moved.append(self._moved)

    def go_through(self, forwarding: Forwarding) -> None:
        """What is led elsewhere is reached through this."""
        self.forward, self.absent = forwarding.partition, forwarding.log

    def states(
        self, uid: str, indexes: range, said: Replication, assignment: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[Put], list[Guard]]:
        """What to put with a topic's entry for partitions that are new, and under which guards; `assignment` are the
        brokers that each is to be at. Raises InvalidReplication, InvalidAssignment, StorageUnavailable.
        """
        cluster = self._cluster
        places = places_of(cluster.members.brokers.values())
        count = len(cluster.members.known)  # who does not run now gets its replica when it is back
        if said.asked > count:
            raise InvalidReplication(
                f"topic config replication.factor={said.asked} is more than there are brokers ({count})"
            )
        if not places:
            raise StorageUnavailable("no broker is there that could have the topic")
        # Homes and group offsets are balanced each by itself: topics need not make up for what is not even there.
        known = [known for log, known in cluster.elections.logs.items() if log.startswith("topic-")]
        leads = Counter(log.state.replicas[0] for log in known if log.state.replicas)
        held = Counter(broker for log in known for broker in log.state.replicas)
        puts: list[Put] = []
        if assignment is not None:
            where = _assigned(assignment, places)
        else:
            where = spread(len(indexes), places, said.factor, leads, held)
        for index, chosen in zip(indexes, where, strict=True):
            state = new_state(
                chosen,
                factor=said.factor,
                minimum=said.minimum,
                unclean=said.unclean,
                strict=said.asked > 0,
                firm=said.firm,
            )
            puts.append((log_key(b"", topic_log(uid, index)), encode(state)))
        relied = {place.broker: place.epoch for place in places}
        relied[cluster.broker_id] = cluster.members.epoch  # see `metadata/leftovers.py`
        guards = [Guard(broker_key(broker), create_revision=epoch) for broker, epoch in relied.items()]
        return puts, guards

    def factor_of(self, topic: Topic) -> int:
        """How many replicas its partitions should have; 0 while that is not known."""
        state = self._cluster.state_of(topic_log(topic.uid, 0))
        return 0 if state is None else state.factor or len(state.replicas)

    def allows_unclean(self, topic: Topic) -> bool:
        """Whether replicas that lack something may lead a topic, as was said when it was made, or since."""
        state = self._cluster.state_of(topic_log(topic.uid, 0))
        return state is not None and state.unclean

    def removals(self, topic: Topic) -> list[Put]:
        """What goes with the topic's entry: also what is there of partitions that it did not get in the end."""
        known = [log for log in self._cluster.elections.logs if parsed(log)[:2] == (TOPIC, topic.uid)]
        logs = dict.fromkeys([*(topic_log(topic.uid, index) for index in range(len(topic.partitions))), *known])
        return [(log_key(b"", log), None) for log in logs]

    def open(
        self,
        topic: str,
        uid: str,
        index: int,
        directory: str,
        settings: LogConfig,
        mark_dirty: Callable[[TopicPartition], None],
        learn: Callable[[TopicPartition], None],
    ) -> TopicPartition:
        """A partition of a topic, with its log where this broker has it."""
        name, what = topic_log(uid, index), f"partition {index} of topic '{topic}'"

        def log() -> PartitionLog:
            if self._cluster.is_replica(name):
                try:
                    return self._cluster.open_log(name, directory, settings)
                except OSError as error:
                    logger.error("%s cannot be opened, which is tried again: %s", what, error)
                    self._unopened.add(name)
            elif not self._cluster.left_over(name, directory):
                return self.absent(name, what, settings)
            absent = self.absent(name, what, settings)
            absent.directory = directory  # what lies there stays, and goes with the topic
            return absent

        leadership = PartitionLeadership(self._cluster, name, what)
        partition = TopicPartition(topic, index, log(), mark_dirty, leadership, learn)
        if self.forward is not None:
            partition.elsewhere = partial(self.forward, name)
        self._partitions[name] = partition, leadership, log
        self._moved(name)
        return partition

    def retry(self) -> None:
        """Open what the disk did not let be opened; now and then."""
        unopened, self._unopened = self._unopened, set()
        for name in unopened:
            self._moved(name)

    def give_up(self) -> bool:
        """Rule 4, of what is led without a lease; now and then. Whether there is any."""
        now_s, lease_until_s = self._cluster.lease()
        given_up = False
        if now_s - lease_until_s > self._cluster.publish_patience_s:
            for partition, leadership, _ in self._partitions.values():
                if leadership.leads and (error := leadership.refusal()) is not None:
                    self._fail(partition.log, error)
                    given_up = True
        return given_up

    def partition(self, name: str) -> TopicPartition | None:
        """The partition that a log is of."""
        found = self._partitions.get(name)
        return found[0] if found is not None else None

    def close(self, topic: Topic, partitions: Iterable[TopicPartition], *, keep: bool = False) -> None:
        """These of a topic are gone, and what is here of them goes as well, or with `keep` stays. Blocks."""
        for partition in partitions:
            name = topic_log(topic.uid, partition.index)
            self._partitions.pop(name, None)
            partition.drop_open()
            self._fail(partition.log, StorageUnavailable(f"topic '{topic.name}' is deleted"))
            self._cluster.close_log(name, keep=keep)
            partition.log.close(keep=keep)

    def _come_or_go(
        self,
        name: str,
        partition: TopicPartition,
        leadership: PartitionLeadership,
        open_log: Callable[[], PartitionLog],
    ) -> None:
        """This broker has become a replica, or is none any more."""
        if self._cluster.state_of(name) is None:
            return  # the topic goes
        if not isinstance(partition.log, AbsentLog):
            leadership.leads = False
            self._lose(partition, leadership)
            self._cluster.close_log(name)
        before, log = partition.log, open_log()
        log.configure(before.config)  # it may have been altered since
        if isinstance(log, AbsentLog):
            log.learn(before.log_start_offset, before.high_watermark)
        partition.take_log(log)

    def _moved(self, name: str) -> None:
        found = self._partitions.get(name)
        if found is None:
            return
        partition, leadership, open_log = found
        if isinstance(partition.log, AbsentLog) == self._cluster.is_replica(name):
            if isinstance(partition.log, AbsentLog) and name in self._cluster.replicas.by_name:
                return  # it is being opened
            self._come_or_go(name, partition, leadership, open_log)
        led, leadership.leads = leadership.leads, self._cluster.role_of(name) is not None
        if leadership.leads:
            partition.forward, partition.behind = None, partition.forward or partition.behind
        elif partition.forward is None and partition.elsewhere is not None:
            partition.forward = partition.elsewhere()
        if leadership.leads:
            partition.follow_log()
            if isinstance(partition.log, ReplicaLog):
                partition.log.on_hand_over = partition.finish
        elif led:
            self._lose(partition, leadership)

    def _lose(self, partition: TopicPartition, leadership: PartitionLeadership) -> None:
        """Rule 4."""
        partition.drop_open()
        error = leadership.refusal()
        assert error is not None
        self._fail(partition.log, error)
        for listener in tuple(partition.log.listeners):
            listener(partition.log)  # readers that wait at its end are not told of anything here any more


def _assigned(assignment: Sequence[Sequence[int]], places: Sequence[Place]) -> list[list[Place]]:
    """Replicas where somebody wants them. Raises InvalidAssignment."""
    known = {place.broker: place for place in places}
    unknown = sorted({broker for replicas in assignment for broker in replicas} - known.keys())
    if unknown:
        raise InvalidAssignment(f"there is no broker {unknown[0]} that could have replicas now")
    return [[known[broker] for broker in replicas] for replicas in assignment]
