"""The control plane of topics: created, given partitions and deleted here, and what is a stream of one.

What is asked for is checked as a whole before anything is made; an error says which part of it cannot be
(`routing/errors.py`), for protocols that tell these apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from core_log.threads import in_thread
from routing import directories
from routing.cluster.metadata import operating
from routing.cluster.metadata.log_names import topic_log
from routing.cluster.topic_logs import new_uid
from routing.commits import storage_errors
from routing.declaring import ordered_splits
from routing.errors import (
    AlreadyExists,
    BrokerError,
    InvalidAssignment,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplication,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
)
from routing.topics.described_config import Described, describe
from routing.topics.stream import Stream
from routing.topics.stream_settings import (
    check_adoption,
    check_declaration,
    require_stream_config,
    topic_config,
    topic_name,
)
from routing.topics.topic import Topic
from routing.topics.topic_config import (
    FACTOR,
    MINIMUM,
    Replication,
    is_firm,
    log_config,
    normal,
    replication,
    require_settable,
)
from routing.topics.topic_ids import new_id
from routing.topics.topic_partition import TopicPartition
from routing.topology import plans, topic_plans
from routing.topology.entries import Entry, Plan, queue_key, topic_key, vhost_key
from routing.topology.plans import require_valid_topic_name
from routing.topology.virtual_host import VirtualHost

if TYPE_CHECKING:
    from routing.broker import Broker

Assignment = Sequence[Sequence[int]]
"""The brokers that are to have replicas of each partition, the preferred leader first."""
ConfigChange = Callable[[dict[str, str]], dict[str, str]]
"""Makes another configuration of the one that there is; it may be asked more than once."""


class TopicControl:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self.config = broker.config
        self.topology = broker.topology
        self._broker = broker
        self._changing: set[str] = set()
        """Names of topics that are being created or deleted."""
        self._making_stream = trio.Lock()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        assignment: Assignment | None = None,
    ) -> Topic:
        """With an `assignment` there are as many partitions as it says, where it says. Raises InvalidArgument,
        AlreadyExists, LimitExceeded, StorageUnavailable.
        """
        value, _ = self.check_new_topic(name, partitions=partitions, config=config, assignment=assignment)
        return await self._make_topic(name, value, lambda entry: Plan([entry]), assignment)

    def check_new_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        assignment: Assignment | None = None,
    ) -> tuple[dict[str, Any], Replication]:
        """What would be written of a new topic, and how many replicas it would have. Raises as `create_topic`, of what
        can be known before.
        """
        require_valid_topic_name(name)
        if name in self.topology.topics or name in self._changing:
            raise AlreadyExists(f"topic '{name}' exists")
        settings = dict(config or {})
        if assignment is not None:
            partitions = len(assignment)
            settings[FACTOR] = str(_factor_of(assignment))
        self._require_partitions(partitions)
        require_settable(settings, {})
        log_config(ordered_splits.kept({}, settings), self.config)
        said = replication(settings)
        logs = self._broker.storage.topic_logs
        if logs is not None:
            logs.states("", range(partitions), said, assignment)
        elif said.asked > 1:
            raise InvalidReplication(f"topic config {FACTOR}={said.asked} is more than there are brokers (1)")
        elif assignment is not None and any(replica != 0 for replicas in assignment for replica in replicas):
            raise InvalidAssignment("the only broker there is has the id 0")
        self._require_room()
        return {"partitions": partitions, "config": settings}, said

    def _require_partitions(self, count: int) -> None:
        if not 1 <= count <= self.config.partitions_max:
            raise InvalidPartitions(f"partitions must be 1 to {self.config.partitions_max}, not {count}")

    def _require_room(self) -> None:
        if len(self.topology.topics) >= self.config.topics_max:
            raise LimitExceeded(f"there are {self.config.topics_max} topics already")

    async def _make_topic(
        self, name: str, value: dict[str, Any], plan: Callable[[Entry], Plan], assignment: Assignment | None = None
    ) -> Topic:
        if name in self.topology.topics or name in self._changing:
            raise AlreadyExists(f"topic '{name}' exists")
        self._require_room()
        value["id"] = new_id()
        if self._broker.storage.topic_logs is not None:
            return await self._make_shared_topic(name, value, plan, assignment)
        self._changing.add(name)
        try:
            opened = await self._open_new(name, value, range(value["partitions"]))
            topic = self._broker.storage.new_topic(name, value, opened)
            try:
                await self.topology.change(lambda: plan(Entry(topic_key(name), value, True, topic)))
            except BrokerError:
                self._close(topic.partitions)
                raise
        finally:
            self._changing.discard(name)
        return topic

    async def _open_new(self, name: str, value: Mapping[str, Any], indexes: range) -> list[TopicPartition]:
        """New partitions of a topic. A thread makes and opens them: others have their turns meanwhile. Raises
        StorageUnavailable.
        """
        files, storage = self._broker.files, self._broker.storage
        opened: list[TopicPartition] = []

        def make() -> None:
            directories.make_places(files, [directories.topic_directory(name, index) for index in indexes])
            for index in indexes:
                opened.extend(storage.open_partitions(name, value, range(index, index + 1)))

        try:
            with storage_errors():
                await in_thread(make)
        except BaseException:
            self._close(opened)
            raise
        return opened

    async def _make_shared_topic(
        self, name: str, value: dict[str, Any], plan: Callable[[Entry], Plan], assignment: Assignment | None
    ) -> Topic:
        """The same in a cluster: brokers open its logs when they see it."""
        logs = self._broker.storage.topic_logs
        assert logs is not None

        def with_logs() -> Plan:
            if name in self.topology.topics:
                raise AlreadyExists(f"topic '{name}' exists")
            uid = new_uid()
            found = plan(Entry(topic_key(name), value | {"uid": uid}, True))
            found.also, found.relied = logs.states(
                uid, range(value["partitions"]), replication(value["config"]), assignment
            )
            return found

        await self.topology.change(with_logs)
        return self.topology.topic(name)

    async def make_stream(
        self,
        vhost: VirtualHost,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
    ) -> None:
        """Make a topic that is a stream, or a stream of the topic that has its name, unless it is there."""
        async with self._making_stream:
            if name in vhost.streams or name in vhost.queues:
                return
            plans.new_queue_name(name, plans.GENERATED_PREFIX)
            place = topic_name(name, vhost.name)
            check_declaration(
                name, vhost.name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
            )
            said = {"vhost": vhost.name, "name": name, "arguments": arguments}
            topic = self.topology.topics.get(place)

            def plan(entry: Entry) -> Plan:
                if (
                    self.topology.vhost(vhost.name) is not vhost
                    or name in vhost.queues
                    or self.topology.topics.get(place) is not topic
                    or (topic is not None and len(topic.partitions) > 1)
                ):
                    raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' is being changed by others")
                plans.require_room_for_queue(vhost, name, self.topology.in_flight)
                return Plan([entry], [vhost_key(vhost.name), queue_key(vhost.name, name)])

            if topic is None:
                value = {"partitions": 1, "config": topic_config(arguments, self.config), "stream": said}
                await self._make_topic(place, value, plan)
                return
            check_adoption(place, len(topic.partitions), topic.config, arguments, self.config)
            entry = Entry(topic_key(place), topic.record(1) | {"stream": said}, True, topic)
            await self.topology.change(lambda: plan(entry))

    async def create_partitions(self, name: str, count: int, *, assignment: Assignment | None = None) -> None:
        """Have a topic have `count` partitions; `assignment` says where the new ones are. Raises NotFound,
        InvalidArgument (it has more), PreconditionFailed (it is a stream, or being changed), StorageUnavailable.
        """
        self.check_new_partitions(name, count, assignment=assignment)
        if self._broker.storage.topic_logs is not None:
            await self.topology.change(lambda: self._plan_shared_partitions(name, count, assignment))
            return
        topic = self.topology.topic(name)
        plan = topic_plans.more_partitions(topic, count)
        if name in self._changing:
            raise PreconditionFailed(f"topic '{name}' is being changed or deleted")
        if not plan.entries:
            return
        self._changing.add(name)
        try:
            lacking = range(len(topic.partitions), count)
            config = self._begun(topic, count)
            opened = await self._open_new(name, {"config": config}, lacking)
            try:
                await self.topology.change(lambda: topic_plans.more_partitions(topic, count, opened, config))
            except BrokerError:
                self._close(opened)
                raise
        finally:
            self._changing.discard(name)

    def _begun(self, topic: Topic, count: int) -> dict[str, str]:
        return ordered_splits.begun(topic, count, self._broker.clock.now_ms())

    def check_new_partitions(self, name: str, count: int, *, assignment: Assignment | None = None) -> None:
        """Raises as `create_partitions`, of what can be known before; a topic that others have just made is none."""
        self._require_partitions(count)
        topic = self.topology.topics.get(name)
        if topic is None:
            return
        if topic_plans.more_partitions(topic, count).entries:
            self._begun(topic, count)
        if assignment is None:
            return
        lacking = count - len(topic.partitions)
        if len(assignment) != lacking:
            raise InvalidAssignment(f"{lacking} partitions would be new, replicas are assigned for {len(assignment)}")
        _factor_of(assignment)
        if self._broker.storage.topic_logs is None and any(list(replicas) != [0] for replicas in assignment):
            raise InvalidAssignment("the only broker there is has the id 0")

    def _plan_shared_partitions(self, name: str, count: int, assignment: Assignment | None) -> Plan:
        """The same in a cluster: the logs get replicas and leaders with the entry."""
        topic, logs = self.topology.topic(name), self._broker.storage.topic_logs
        self.check_new_partitions(name, count, assignment=assignment)
        plan = topic_plans.more_partitions(topic, count)
        if logs is not None and plan.entries:
            plan = topic_plans.more_partitions(topic, count, config=self._begun(topic, count))
            lacking = range(len(topic.partitions), count)
            first = replication(topic.config)
            # Replicas may have been moved to more or fewer brokers since it was made.
            said = self._replication(topic, topic.config)._replace(unclean=logs.allows_unclean(topic))
            if said.factor == first.factor:
                said = said._replace(asked=first.asked)
            if assignment is not None and len(assignment[0]) != said.factor:
                raise InvalidAssignment(f"partitions of topic '{name}' have {said.factor} replicas")
            plan.also, plan.relied = logs.states(topic.uid, lacking, said, assignment)
        return plan

    async def alter_topic(self, name: str, change: ConfigChange) -> None:
        """Give a topic another configuration while it is used: what `change` makes of the one that it has. Open logs go
        by it at once, at all brokers.

        Raises NotFound, InvalidConfig, StorageUnavailable, and what `change` raises.
        """
        config = self.check_altered(name, change)
        topic = self.topology.topic(name)
        minimum = MINIMUM in config or MINIMUM in topic.config  # what was interrupted may have left another one
        # What the states of its logs say counts; the entry comes last, and says that all of it is so.
        await self._tell_logs(topic, topic.config, config, minimum=minimum)
        await self._alter(topic, lambda: self.check_altered(name, change))
        while True:  # of what is altered at two brokers at once, the entry that came last is so everywhere
            told, config = config, topic.config
            await self._tell_logs(topic, told, config, minimum=minimum)
            if topic.config == config:
                return

    async def _tell_logs(
        self, topic: Topic, before: Mapping[str, str], config: Mapping[str, str], *, minimum: bool
    ) -> None:
        cluster = self._broker.cluster
        if cluster is None or not topic.uid:
            return
        logs = [topic_log(topic.uid, partition.index) for partition in topic.partitions]
        said = self._replication(topic, config)
        if minimum:
            await operating.require_insync(cluster, logs, said.minimum, firm=said.firm)
        if said.unclean != self._replication(topic, before).unclean:
            await operating.allow_unclean(cluster, logs, on=said.unclean)

    async def end_split(self, topic: Topic) -> None:
        """Have all partitions of a topic read (`ordered_splits.py`). Raises NotFound, StorageUnavailable."""
        await self._alter(topic, lambda: ordered_splits.ended(topic.config))

    async def _alter(self, topic: Topic, config_of: Callable[[], dict[str, str]]) -> None:
        def plan() -> Plan:
            if topic.name in self._changing:
                raise PreconditionFailed(f"topic '{topic.name}' is being changed or deleted")
            self._require_there(topic)
            return topic_plans.altered(self.topology, topic, config_of())

        await self.topology.change(plan)

    def _require_there(self, topic: Topic) -> None:
        """Raises NotFound if it is deleted, also if others have made one anew under its name."""
        if self.topology.topic(topic.name) is not topic:
            raise NotFound(f"no topic '{topic.name}' any more: it is another one now")

    def check_altered(self, name: str, change: ConfigChange) -> dict[str, str]:
        """The configuration that a topic would have. Raises as `alter_topic`, of what can be known before."""
        topic = self.topology.topic(name)
        config = ordered_splits.kept(topic.config, change(normal(topic.config)))
        if config.get(FACTOR) != topic.config.get(FACTOR):
            raise InvalidConfig(f"topic config {FACTOR} is not altered: partitions are given other replicas")
        require_settable(config, topic.config)
        log_config(config, self.config)
        said = self._replication(topic, config)
        if topic.is_stream:
            require_stream_config(topic.name, config, unclean=said.unclean)
        return config

    def _replication(self, topic: Topic, config: Mapping[str, str]) -> Replication:
        """What a configuration would say of the replicas that a topic should have. Raises InvalidConfig."""
        logs = self._broker.storage.topic_logs
        factor = logs.factor_of(topic) if logs is not None and topic.uid else 0
        said = replication({**config, FACTOR: str(factor)} if factor else config)
        return said._replace(firm=is_firm(config))

    def described(self, topic: Topic) -> list[Described]:
        """All settings of a topic."""
        logs = self._broker.storage.topic_logs
        shared = logs is not None and bool(topic.uid)
        return describe(
            topic.config,
            self.topology.stream_host.config,
            minimum=self._replication(topic, {}).minimum if shared else 1,
            unclean=logs.allows_unclean(topic) if logs is not None and shared else None,
        )

    async def delete_topic(self, name: str) -> None:
        """The topic that has the name now: one that others make under it meanwhile stays. Raises NotFound,
        PreconditionFailed (it is being deleted), StorageUnavailable.
        """
        topic = self.topology.topic(name)
        if name in self._changing:
            raise PreconditionFailed(f"topic '{name}' is being changed or deleted")
        if topic.uid:
            await self.topology.change(lambda: self._plan_shared_removal(name, topic))
            return
        files = self._broker.files
        places = [partition.log.directory for partition in topic.partitions]
        self._changing.add(name)
        try:
            with storage_errors():
                await in_thread(directories.note_deletion, files, places)
                try:
                    await self.topology.change(lambda: topic_plans.removal(self.topology, name))
                finally:
                    if name in self.topology.topics:
                        directories.forget_deletion(files, places)
                # Done whole, whoever asked for it; and `close` of what is not drained would block, and everybody wait.
                with trio.CancelScope(shield=True):
                    for partition in topic.partitions:
                        await self._broker.flusher.drain(partition.log)
                    self._close(topic.partitions)
                    await self._broker.offsets.forget_topic_in_bites(name)
            await directories.remove_later(files, places, noted=True)  # it is deleted, whatever becomes of its files
        finally:
            self._changing.discard(name)

    async def delete_stream(self, stream: Stream) -> None:
        """The same of a stream's topic, unless others have deleted that. Raises PreconditionFailed,
        StorageUnavailable.
        """
        with suppress(NotFound):
            if self.topology.topics.get(stream.topic.name) is stream.topic:
                await self.delete_topic(stream.topic.name)

    def _plan_shared_removal(self, name: str, topic: Topic) -> Plan:
        plan = topic_plans.removal(self.topology, name)
        self._require_there(topic)  # of a plan that another's change has overtaken it may not be
        if self._broker.storage.topic_logs is not None:
            plan.also = self._broker.storage.topic_logs.removals(topic)
        return plan

    def _close(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._broker.forget_partition(partition)
            partition.log.close(keep=False)


def _factor_of(assignment: Assignment) -> int:
    """How many replicas each partition is assigned. Raises InvalidAssignment."""
    factors = {len(replicas) for replicas in assignment}
    if len(factors) != 1 or 0 in factors:
        raise InvalidAssignment("all partitions of a topic have equally many replicas, and one at least")
    for replicas in assignment:
        if len(set(replicas)) != len(replicas):
            raise InvalidAssignment(f"a broker is named twice in {list(replicas)}")
    return factors.pop()
