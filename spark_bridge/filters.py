"""What a query's filters say of the offsets that it needs, so that less is read.

1. Filters are only ever used to read less: Spark applies all of them to what is read.
2. `offset`, `partition` and `topic` narrow what is read on both sides; `timestamp` where it says from when on, and
   where it says until when if it is known how much older a record may be than one before it (`timestampDisorderMs`).
3. Batches that cannot have a key, routing key and so on that a query names are left out by the broker, and by the
   worker before it decodes them (`looked_for.py`). Other rows of batches that may have them are left out in the worker.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from core_log.containing import Groups
from spark_bridge.looked_for import strings_for
from spark_bridge.offsets import OffsetRange, OffsetSource

_OFFSET_MAX = 1 << 63
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True)
class Wanted:
    """What may matter to a query."""

    first_offset: int = 0
    end_offset: int = _OFFSET_MAX
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    since_ms: int = 0
    before_ms: int | None = None
    values: tuple[tuple[str, frozenset[Any]], ...] = ()
    """Columns, and the values that they may have."""
    like: tuple[tuple[str, str, str], ...] = ()
    """Columns, how (see `_LIKE`), and the text that their values begin or end with, or contain."""


EVERYTHING = Wanted()
_LIKE: dict[str, Callable[[pa.Array, str], pa.Array]] = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}
_BY_VALUE = ("key", "messageId", "protocol", "exchange", "routingKey", "mqttTopic")


def wanted_by(filters: Iterable[Filter]) -> Wanted:
    """What all of these filters together leave."""
    found = EVERYTHING
    for one in filters:
        name = getattr(one, "attribute", None)
        if name is not None and len(name) == 1 and getattr(one, "value", None) is not None:
            found = _narrowed(found, name[0], one)
    return found


def _narrowed(found: Wanted, name: str, one: Any) -> Wanted:
    value = one.value
    if name == "offset" and not isinstance(one, In):
        low, end = _interval(one, int(value))
        return replace(found, first_offset=max(found.first_offset, low), end_offset=min(found.end_offset, end))
    if name == "partition":
        chosen = _members(one)
        return found if chosen is None else replace(found, partitions=_both(found.partitions, chosen))
    if name == "topic":
        chosen = _members(one)
        return found if chosen is None else replace(found, topics=_both(found.topics, chosen))
    if name in _BY_VALUE and type(one).__name__ in _LIKE and name != "key":
        return replace(found, like=(*found.like, (name, type(one).__name__, value)))
    if name in _BY_VALUE:
        chosen = _members(one)
        return found if chosen is None else replace(found, values=(*found.values, (name, chosen)))
    if name == "timestamp" and isinstance(value, datetime.datetime):
        time = (value if value.tzinfo is not None else value.astimezone()) - _EPOCH
        if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            found = replace(found, since_ms=max(found.since_ms, time // _MS))
        if isinstance(one, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
            before = -(-time // _MS) if isinstance(one, LessThan) else time // _MS + 1
            found = replace(found, before_ms=before if found.before_ms is None else min(found.before_ms, before))
    return found


def _interval(one: Any, value: int) -> tuple[int, int]:
    match one:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, _OFFSET_MAX
        case GreaterThanOrEqual():
            return value, _OFFSET_MAX
        case LessThan():
            return 0, value
        case LessThanOrEqual():
            return 0, value + 1
    return 0, _OFFSET_MAX


def _members(one: Any) -> frozenset[Any] | None:
    """The values that a column may have, where the filter names them."""
    if isinstance(one, In):
        return frozenset(one.value) - {None}
    return frozenset([one.value]) if isinstance(one, EqualTo | EqualNullSafe) else None


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def narrowed(
    client: OffsetSource, ranges: Iterable[OffsetRange], wanted: Wanted, disorder_ms: int | None
) -> list[OffsetRange]:
    """What of these ranges may matter; `disorder_ms`: how much older a record may be than one before it, if known."""
    chosen = []
    for one in ranges:
        if wanted.partitions is not None and one.partition not in wanted.partitions:
            continue
        if wanted.topics is not None and one.topic not in wanted.topics:
            continue
        start, end = max(one.start_offset, wanted.first_offset), min(one.end_offset, wanted.end_offset)
        chosen.append(replace(one, start_offset=start, end_offset=end))
    if chosen and chosen[0].reader is None:
        if wanted.since_ms:
            starts = _at(client, chosen, wanted.since_ms)
            chosen = [replace(one, start_offset=max(one.start_offset, at)) for one, at in zip(chosen, starts)]
        if wanted.before_ms is not None and disorder_ms is not None:
            ends = _at(client, chosen, max(wanted.before_ms + disorder_ms, 0))
            chosen = [replace(one, end_offset=min(one.end_offset, at)) for one, at in zip(chosen, ends)]
    return [one for one in chosen if one.start_offset < one.end_offset]


def _at(client: OffsetSource, ranges: Iterable[OffsetRange], time_ms: int) -> list[int]:
    """The first offset of each that is not before a time."""
    found = client.list_many_offsets([(one.topic, one.partition, time_ms) for one in ranges])
    return [_OFFSET_MAX if offset is None else offset for offset in found]


def matching(rows: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """The rows that have the values which a query names."""
    for name, values in wanted.values:
        if name in rows.schema.names:
            column = rows.column(name)
            rows = rows.filter(pc.is_in(column, pa.array(sorted(values), column.type)))
    for name, how, text in wanted.like:
        if name in rows.schema.names:
            rows = rows.filter(_LIKE[how](rows.column(name), text))
    return rows


def looked_for(wanted: Wanted, headers: Iterable[tuple[str, str]]) -> Groups:
    """What the bytes of records must have for a query to want them, with these headers."""
    return strings_for(wanted.values, [(name, [text]) for name, _, text in wanted.like], headers)
