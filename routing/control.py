"""The control plane: what exists is declared, bound and deleted here.

Calls are asynchronous only because a durable change is answered when it is durable. The rules of what may be changed
are the topology's (`topology/topology.py`); `Broker` hands these methods on as its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from core_log.errors import LogUnavailable
from routing import directories
from routing.commits import storage_errors
from routing.errors import InvalidArgument, LimitExceeded, PreconditionFailed, StorageUnavailable
from routing.topics.topic import Topic
from routing.topics.topic_config import log_config
from routing.topology.exchange import Binding
from routing.topology.topology import QueueInfo, require_valid_topic_name

if TYPE_CHECKING:
    from routing.broker import Broker


class Control:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self.config = broker.config
        self.topology = broker.topology
        self._broker = broker
        self._changing: set[str] = set()
        """Names of topics that are being created or deleted."""

    async def _commit(self, durable: bool) -> None:
        if durable:
            try:
                await self.topology.catalog.commit()
            except LogUnavailable as error:
                raise StorageUnavailable(str(error)) from error

    async def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises AccessRefused, PreconditionFailed, UnknownExchangeType, NotImplementedYet, StorageUnavailable."""
        with storage_errors():
            concerned = self.topology.declare_exchange(
                name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
        await self._commit(concerned)

    def check_exchange(self, name: str) -> None:
        """Raises NotFound."""
        self.topology.exchange(name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Raises AccessRefused, PreconditionFailed, StorageUnavailable; one that is not there is no error."""
        with storage_errors():
            concerned = self.topology.delete_exchange(name, if_unused=if_unused)
        await self._commit(concerned)

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: object = None,
    ) -> QueueInfo:
        """Raises AccessRefused, PreconditionFailed, ResourceLocked, NotImplementedYet, LimitExceeded,
        StorageUnavailable.
        """
        with storage_errors():
            info, concerned = self.topology.declare_queue(
                name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments, owner=owner
            )
        await self._commit(concerned)
        return info

    async def check_queue(self, name: str, owner: object = None) -> QueueInfo:
        """Raises NotFound, ResourceLocked."""
        queue = self.topology.queue(name, owner)
        return QueueInfo(name, queue.message_count, len(queue.consumers))

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, owner: object = None
    ) -> int:
        """How many messages it held; 0 if it is not there. Raises ResourceLocked, PreconditionFailed,
        StorageUnavailable.
        """
        with storage_errors():
            count, concerned = self.topology.delete_queue(name, if_unused=if_unused, if_empty=if_empty, owner=owner)
        await self._commit(concerned)
        return count

    async def purge_queue(self, name: str, *, owner: object = None) -> int:
        """Settle all messages that are not delivered; how many there were. Raises NotFound, ResourceLocked."""
        return self.topology.queue(name, owner).purge()

    async def bind(
        self,
        destination_kind: str,
        destination: str,
        exchange: str,
        pattern: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        syntax: str = "amqp",
        owner: object = None,
    ) -> None:
        """Bind a "queue", "exchange" or "topic". Raises NotFound, AccessRefused, ResourceLocked, InvalidArgument,
        StorageUnavailable.
        """
        binding = Binding.make(exchange, (destination_kind, destination), pattern, arguments, syntax)
        with storage_errors():
            concerned = self.topology.bind(binding, owner)
        await self._commit(concerned)

    async def unbind(
        self,
        destination_kind: str,
        destination: str,
        exchange: str,
        pattern: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        syntax: str = "amqp",
        owner: object = None,
    ) -> None:
        """The inverse of `bind`; a binding that is not there is no error."""
        binding = Binding.make(exchange, (destination_kind, destination), pattern, arguments, syntax)
        with storage_errors():
            concerned = self.topology.unbind(binding, owner)
        await self._commit(concerned)

    # --- topics ------------------------------------------------------------------------

    async def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """Raises InvalidArgument, PreconditionFailed (it exists), LimitExceeded, StorageUnavailable."""
        require_valid_topic_name(name)
        if not 1 <= partitions <= self.config.partitions_max:
            raise InvalidArgument(f"partitions must be 1 to {self.config.partitions_max}, not {partitions}")
        if name in self.topology.topics or name in self._changing:
            raise PreconditionFailed(f"topic '{name}' exists")
        if len(self.topology.topics) >= self.config.topics_max:
            raise LimitExceeded(f"there are {self.config.topics_max} topics already")
        settings = dict(config or {})
        log_config(settings, self.config)
        self._changing.add(name)
        try:
            with storage_errors():
                topic = self._broker.storage.create_topic(name, partitions, settings)
            try:
                with storage_errors():
                    self.topology.catalog.put_topic(name, partitions, settings)
                await self._commit(True)
            except StorageUnavailable:
                self._close(topic)
                raise
            self.topology.topics[name] = topic
        finally:
            self._changing.discard(name)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Raises NotFound, PreconditionFailed (it is being deleted), StorageUnavailable."""
        topic = self.topology.topic(name)
        if name in self._changing:
            raise PreconditionFailed(f"topic '{name}' is being deleted")
        files = self._broker.files
        places = [partition.log.directory for partition in topic.partitions]
        self._changing.add(name)
        try:
            with storage_errors():
                await trio.to_thread.run_sync(directories.note_deletion, files, places)
                try:
                    self.topology.remove_topic(topic)
                finally:
                    if name in self.topology.topics:
                        directories.forget_deletion(files, places)
                self._close(topic)
                self._broker.offsets.forget_topic(name)
            await self._commit(True)
            with storage_errors():
                await trio.to_thread.run_sync(directories.remove_noted, files, places)
        finally:
            self._changing.discard(name)

    def _close(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self._broker.forget_partition(partition)
            partition.log.close()
