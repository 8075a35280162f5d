"""Streams in AMQP's words: where a consumer begins, and the properties of what it gets.

The property lists of a slab are worked out once for all consumers of a stream: those of AMQP publishers are as they
published them, those of records are made of their header blocks (`adapter_record_lists.py`), those of others of their
neutral form; to each the offset is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from protocols.amqp.adapter_properties import PROTOCOL, from_neutral
from protocols.amqp.adapter_record_lists import tables_of
from protocols.amqp.adapter_records import record_entries
from protocols.amqp.stream_offsets import HEADER, persistent_lists, with_offsets
from protocols.amqp.wire import Timestamp
from routing.message import Properties, register_record_encoder
from routing.topics.stream_records import RECORD_PROTOCOL, StreamSlab

register_record_encoder(PROTOCOL, record_entries)

_FRAME_ROOM_BYTES = 20
"""Of a header frame beside the property list."""
_NO_PROPERTIES = b"\0\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 253_402_300_799
"""The end of the year 9999."""


def stream_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's arguments as the engine takes them: a time is a `datetime`."""
    value = arguments.get(HEADER)
    if not isinstance(value, Timestamp):
        return dict(arguments)
    return {**arguments, HEADER: _EPOCH + timedelta(seconds=min(value, _SECONDS_MAX))}


def _translated(protocol: str, raw: bytes) -> bytes:
    try:
        return from_neutral(Properties(protocol, raw, persistent=True).neutral)
    except Exception:  # whatever a decoder makes of bytes that its own door did not check
        return _NO_PROPERTIES


def stream_raws(slab: StreamSlab, frame_bytes_max: int) -> list[bytes]:
    """The property list of each message."""
    memo = slab.memo()
    bytes_max = frame_bytes_max - _FRAME_ROOM_BYTES
    key = (PROTOCOL, bytes_max)
    lists: list[bytes] | None = memo.get(key)
    if lists is None:
        lists = memo[key] = _lists(slab.properties.protocol, slab.raws or [], slab.first_offset, bytes_max)
    return lists


def _lists(protocol: str, raws: Sequence[bytes], first_offset: int, bytes_max: int) -> list[bytes]:
    if protocol == PROTOCOL:
        return with_offsets(raws, first_offset, bytes_max)
    if protocol != RECORD_PROTOCOL or raws.count(raws[0]) == len(raws):
        made = {raw: _translated(protocol, raw) for raw in set(raws)}
        return with_offsets([made[raw] for raw in raws], first_offset, bytes_max)
    tables = tables_of(raws)
    lists = persistent_lists(tables, first_offset, bytes_max)
    for index, table in enumerate(tables):
        if table is None:
            (lists[index],) = with_offsets([_translated(protocol, raws[index])], first_offset + index, bytes_max)
    return lists
