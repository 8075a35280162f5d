"""What a query's filters say of the offsets that it needs, so that less is read.

1. Filters are only ever used to read less: Spark applies all of them to what is read.
2. `offset`, `partition` and `topic` narrow what is read on both sides; `timestamp` where it says from when on. (Records
   may be older than those before them, so nothing can be left out at the end.)
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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

from spark_bridge.offsets import OffsetRange, OffsetSource

_OFFSET_MAX = 1 << 63


@dataclass(frozen=True)
class Wanted:
    """What may matter to a query."""

    first_offset: int = 0
    end_offset: int = _OFFSET_MAX
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    since_ms: int = 0


def wanted_by(filters: Iterable[Filter]) -> Wanted:
    """What all of these filters together leave."""
    found = Wanted()
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
    if name == "timestamp" and isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        since = value if value.tzinfo is not None else value.astimezone()
        begin = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return replace(found, since_ms=max(found.since_ms, (since - begin) // datetime.timedelta(milliseconds=1)))
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
        return frozenset(one.value)
    return frozenset([one.value]) if isinstance(one, EqualTo | EqualNullSafe) else None


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def narrowed(client: OffsetSource, ranges: Iterable[OffsetRange], wanted: Wanted) -> list[OffsetRange]:
    """What of these ranges may matter."""
    chosen = []
    for one in ranges:
        if wanted.partitions is not None and one.partition not in wanted.partitions:
            continue
        if wanted.topics is not None and one.topic not in wanted.topics:
            continue
        start, end = max(one.start_offset, wanted.first_offset), min(one.end_offset, wanted.end_offset)
        if start < end:
            chosen.append(replace(one, start_offset=start, end_offset=end))
    if not wanted.since_ms or not chosen or chosen[0].reader is not None:
        return chosen
    found = client.list_many_offsets([(one.topic, one.partition, wanted.since_ms) for one in chosen])
    late = [
        replace(one, start_offset=max(one.start_offset, since))
        for one, since in zip(chosen, found)
        if since is not None
    ]
    return [one for one in late if one.start_offset < one.end_offset]
