"""The durable topology: exchanges, queues, bindings and topics, as records of a keyed store.

Keys and values are msgpack. A key is an array whose first item is the kind of entity; a value is a map of what was
declared. The entities themselves live in `topology.py`; this file only knows how they are written down. Queue ids are
never used twice, because the logs name queues by id: the next one is an entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgpack

from core_log.keyed_store import KeyedStore
from routing.queues.queue import Queue
from routing.topology.exchange import Binding, Exchange

_NEXT_QUEUE_ID = ["next-queue-id"]


_DECIMAL = 1


def _extend(value: Any) -> Any:
    return msgpack.ExtType(_DECIMAL, str(value).encode()) if isinstance(value, Decimal) else str(value)


def _restore(code: int, data: bytes) -> Any:
    return Decimal(data.decode()) if code == _DECIMAL else msgpack.ExtType(code, data)


def _pack(value: Any) -> bytes:
    return msgpack.packb(value, default=_extend, unicode_errors="surrogateescape")  # type: ignore[no-any-return]


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_restore, unicode_errors="surrogateescape", strict_map_key=False)


class Catalog:
    """See the module. Writes are in memory at once and durable after `commit`."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        saved = store.get(_pack(_NEXT_QUEUE_ID))
        self.next_queue_id: int = _unpack(saved) if saved is not None else 1

    async def commit(self) -> None:
        """Wait until all that was written is durable. Raises LogUnavailable."""
        await self._store.commit()

    def _put(self, key: list[Any], value: Any) -> None:
        packed = _pack(key)
        if value is not None:
            self._store.put(packed, _pack(value))
        elif self._store.get(packed) is not None:
            self._store.put(packed, None)

    def new_queue_id(self, *, durable: bool) -> int:
        """An id that no queue ever had."""
        queue_id = self.next_queue_id
        self.next_queue_id += 1
        if durable:
            self._put(_NEXT_QUEUE_ID, self.next_queue_id)
        return queue_id

    def skip_queue_ids(self, last_id: int) -> None:
        """Give out no id up to this one: a log names it, though it was never recorded here."""
        self.next_queue_id = max(self.next_queue_id, last_id + 1)

    def put_exchange(self, exchange: Exchange) -> None:
        """Record a durable exchange."""
        self._put(
            ["exchange", exchange.name],
            {
                "kind": exchange.kind,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": exchange.arguments,
            },
        )

    def delete_exchange(self, name: str) -> None:
        """Forget an exchange."""
        self._put(["exchange", name], None)

    def put_queue(self, queue: Queue) -> None:
        """Record a durable queue."""
        self._put(
            ["queue", queue.name],
            {
                "id": queue.id,
                "stripe": queue.partition.index,
                "auto_delete": queue.auto_delete,
                "arguments": queue.arguments,
            },
        )

    def delete_queue(self, name: str) -> None:
        """Forget a queue."""
        self._put(["queue", name], None)

    @staticmethod
    def _binding_key(binding: Binding) -> list[Any]:
        kind, destination = binding.destination
        return [
            "binding",
            binding.exchange,
            kind,
            destination,
            binding.pattern,
            binding.syntax,
            binding.arguments_key,
        ]

    def put_binding(self, binding: Binding) -> None:
        """Record a binding between durable entities."""
        self._put(self._binding_key(binding), {"arguments": dict(binding.arguments)})

    def delete_binding(self, binding: Binding) -> None:
        """Forget a binding."""
        self._put(self._binding_key(binding), None)

    def put_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        """Record a topic."""
        self._put(["topic", name], {"partitions": partitions, "config": config})

    def delete_topic(self, name: str) -> None:
        """Forget a topic."""
        self._put(["topic", name], None)

    def entries(self, kind: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """All (key without its kind, value) of "exchange", "queue", "binding" or "topic"."""
        for packed, value in list(self._store.items()):
            key = _unpack(packed)
            if key[0] == kind:
                yield key[1:], _unpack(value)
