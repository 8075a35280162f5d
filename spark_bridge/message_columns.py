"""What a message is besides key and value, as columns: read off the headers that streams and queues give their records.

1. A record that came through an exchange into a stream or a queue says which exchange that was, by which protocol, and
   what properties it had, in headers whose names begin with `millrace.` (`routing/topics/stream_records.py` writes
   them). A record that says nothing of it (of a topic, or written by a producer) has null in these columns.
2. All is done by whole columns; the names of headers, of which there are few, are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_bridge.columns import Columns

MESSAGE_COLUMNS = ("messageId", "protocol", "exchange", "routingKey", "mqttTopic", "properties")
PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())

PREFIX = "millrace."
"""Of the names of headers that are no application's."""
EXCHANGE = f"{PREFIX}exchange"
MESSAGE_ID = f"{PREFIX}message-id"
_MQTT_EXCHANGE = "amq.topic"
PROPERTIES = frozenset(
    PREFIX + name
    for name in (
        "content-type", "content-encoding", "priority", "correlation-id", "reply-to", "expiration-ms", "message-id",
        "timestamp-s", "type", "user-id", "app-id",
    )
)  # fmt: skip
_SOURCE_PLACES = 2
"""Exchange and protocol stand before all other headers."""

Places = np.ndarray[Any, np.dtype[np.int64]]


class _Headers:
    """The headers of some records: parallel columns, and to which record each header belongs."""

    def __init__(self, headers: pa.ListArray) -> None:
        lists = np.asarray(headers.offsets).astype(np.int64)
        pairs = headers.values.slice(int(lists[0]), int(lists[-1] - lists[0]))
        lists -= lists[0]
        self.count = len(headers)
        names = pairs.field(0).dictionary_encode()
        self.values = pairs.field(1)
        self.names: list[str] = names.dictionary.to_pylist()
        self.codes = np.asarray(names.indices)
        self.records = np.repeat(np.arange(self.count), np.diff(lists))
        self.places = np.arange(len(self.codes)) - lists[self.records]

    def of(self, chosen: Collection[str]) -> Places:
        """Where headers of these names stand."""
        codes = [code for code, name in enumerate(self.names) if name in chosen]
        found: Places = np.flatnonzero(np.isin(self.codes, codes))
        return found

    def column(self, at: Places, values: pa.Array) -> pa.Array:
        """These values of theirs, one a record; null where a record has none."""
        indices = np.full(self.count, -1, np.int64)
        indices[self.records[at[::-1]]] = np.arange(len(at))[::-1]  # of several the first
        return values.take(pa.array(indices, mask=indices < 0))


def message_columns(columns: Columns, wanted: Collection[str]) -> dict[str, pa.Array]:
    """Those of `MESSAGE_COLUMNS` that are wanted."""
    if columns.headers is None or set(MESSAGE_COLUMNS).isdisjoint(wanted):
        return {}
    headers = _Headers(columns.headers)
    found = {}
    if "messageId" in wanted:
        found["messageId"] = _text_column(headers, [MESSAGE_ID])
    if "properties" in wanted:
        found["properties"] = _properties(headers)
    if not {"protocol", "exchange", "routingKey", "mqttTopic"}.isdisjoint(wanted):
        protocols = [name for name in headers.names if _is_protocol(name)]
        at = headers.of(protocols)
        at = at[headers.places[at] < _SOURCE_PLACES]
        shown = pa.array([name.removeprefix(PREFIX) for name in headers.names], pa.string())
        protocol = headers.column(at, shown.take(pa.array(headers.codes[at])))
        exchange = _text_column(headers, [EXCHANGE])
        known = pc.or_(pc.is_valid(protocol), pc.is_valid(exchange))
        exchange = pc.if_else(known, pc.fill_null(exchange, ""), pa.scalar(None, pa.string()))
        keys = pa.nulls(headers.count, pa.binary()) if columns.keys is None else columns.keys
        routing_key = pc.if_else(known, texts(pc.fill_null(keys, b"")), pa.scalar(None, pa.string()))
        through_topics = pc.fill_null(pc.equal(exchange, _MQTT_EXCHANGE), False)
        mqtt_topic = pc.if_else(through_topics, _swapped(routing_key), pa.scalar(None, pa.string()))
        found |= {"protocol": protocol, "exchange": exchange, "routingKey": routing_key, "mqttTopic": mqtt_topic}
    return {name: found[name] for name in MESSAGE_COLUMNS if name in wanted}


def having(headers: pa.ListArray, wanted: Iterable[tuple[str, str]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these records have all of some headers, of exactly these values."""
    found = _Headers(headers)
    chosen = np.ones(found.count, np.bool_)
    for name, value in wanted:
        at = found.of([name])
        equal = pc.equal(found.values.take(pa.array(at)), pa.scalar(value.encode(), pa.binary()))
        at = at[np.asarray(pc.fill_null(equal, False))]
        chosen &= np.bincount(found.records[at], minlength=found.count) > 0
    return chosen


def _is_protocol(name: str) -> bool:
    return name.startswith(PREFIX) and name != EXCHANGE and name not in PROPERTIES


def _text_column(headers: _Headers, names: Collection[str]) -> pa.Array:
    at = headers.of(names)
    return headers.column(at, texts(headers.values.take(pa.array(at))))


def _properties(headers: _Headers) -> pa.Array:
    at = headers.of(PROPERTIES)
    at = at[np.asarray(headers.values.is_valid())[at]]
    shown = pa.array([name.removeprefix(PREFIX) for name in headers.names], pa.string())
    ends = np.zeros(headers.count + 1, np.int32)
    np.cumsum(np.bincount(headers.records[at], minlength=headers.count), out=ends[1:])
    names = shown.take(pa.array(headers.codes[at]))
    return pa.MapArray.from_arrays(
        pa.array(ends), names, texts(headers.values.take(pa.array(at))), type=PROPERTIES_TYPE
    )


def _swapped(keys: pa.Array) -> pa.Array:
    """Routing keys as MQTT's topics: `/` for `.`, and the other way round."""
    found = keys.cast(pa.binary())
    for old, new in ((b"/", b"\xff"), (b".", b"/"), (b"\xff", b".")):  # a byte that text does not have
        found = pc.replace_substring(found, old, new)
    return found.cast(pa.string())


def texts(column: pa.Array) -> pa.Array:
    """Bytes as text that Spark can hold: what is not UTF-8 becomes replacement characters."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        shown = [None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()]
        return pa.array(shown, pa.string())
