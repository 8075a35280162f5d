"""What an application may hang into a producer or a consumer. Pure; clients without hooks take another way.

1. A record on its way out: interceptors (`on_send`, in turn), then serialisers, then the partitioner, unless the
   application chose a partition. When it is stored, or not, interceptors are told.
2. A batch on its way in: deserialisers, then interceptors (`on_consume`, in turn). The records before one that a
   deserialiser fails on are handed out first; then it is an error each time, until the application seeks behind it.
3. An error of a hook is an error of `send`, or of asking for records; of who is only told it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.records import ConsumerRecord, Headers, RecordMetadata
from protocols.native.errors import DeserializationFailed, MillraceError

logger = logging.getLogger(__name__)

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]
Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]
"""Topic, key, value and number of partitions; None: as without it."""
OnRecords = Callable[[list[ConsumerRecord]], tuple[list[ConsumerRecord], int | None]]
"""What to hand out of records, and the offset of the first that is left for the next time, if any is."""


class ProducerRecord(msgspec.Struct):
    """A record before it is taken."""

    topic: str
    value: Any
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Sees what a producer sends, and what becomes of it."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead; it may be the same."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
        """A record was stored, or not. It must not wait."""


class ConsumerInterceptor:
    """Sees what a consumer is given, and what it commits."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records of a batch to hand out instead."""
        return records

    def on_commit(self, offsets: Mapping[Partition, int]) -> None:
        """These were committed."""


class ProducerHooks(msgspec.Struct, frozen=True):
    """See the module's rule 1."""

    partitioner: Partitioner | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    interceptors: Sequence[ProducerInterceptor]

    def outgoing(self, record: ProducerRecord) -> ProducerRecord:
        """A record as it is to be sent; its partition is still to be chosen."""
        for interceptor in self.interceptors:
            record = interceptor.on_send(record)
        if self.key_serializer is not None and record.key is not None:
            record.key = self.key_serializer(record.key)
        if self.value_serializer is not None and record.value is not None:
            record.value = self.value_serializer(record.value)
        return record

    def tell(self, places: Sequence[RecordMetadata | None], error: MillraceError | None) -> None:
        """What became of records, for clients that wait for it themselves; an error of a hook is logged."""
        for interceptor in self.interceptors:
            for place in places:
                try:
                    interceptor.on_acknowledgement(place, error)
                except Exception:
                    logger.exception("an interceptor failed")


def tell_committed(interceptors: Sequence[ConsumerInterceptor], offsets: Mapping[Partition, int]) -> None:
    """These were committed, and are whatever a hook does; its error is logged."""
    for interceptor in interceptors:
        try:
            interceptor.on_commit(dict(offsets))
        except Exception:
            logger.exception("an interceptor failed")


def on_records_of(
    key_deserializer: Deserializer | None,
    value_deserializer: Deserializer | None,
    interceptors: Sequence[ConsumerInterceptor],
) -> OnRecords | None:
    """The module's rule 2 as one function; None: there is nothing to do."""
    if key_deserializer is None and value_deserializer is None and not interceptors:
        return None

    def on_records(records: list[ConsumerRecord]) -> tuple[list[ConsumerRecord], int | None]:
        left = None
        if key_deserializer is not None or value_deserializer is not None:
            records, left = _all_deserialized(records, key_deserializer, value_deserializer)
        for interceptor in interceptors:
            records = interceptor.on_consume(records)
        return records, left

    return on_records


def _all_deserialized(
    records: list[ConsumerRecord], key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> tuple[list[ConsumerRecord], int | None]:
    found: list[ConsumerRecord] = []
    for record in records:
        try:
            found.append(_deserialized(record, key_deserializer, value_deserializer))
        except Exception as error:
            if not found:
                raise DeserializationFailed(record.topic, record.partition, record.offset, error) from error
            return found, record.offset
    return found, None


def _deserialized(
    record: ConsumerRecord, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> ConsumerRecord:
    key, value = record.key, record.value
    return ConsumerRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        key if key is None or key_deserializer is None else key_deserializer(key),
        value if value is None or value_deserializer is None else value_deserializer(value),
        record.headers,
    )
