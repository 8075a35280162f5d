"""Property lists as headers of a topic's records, without decoding them.

The result is that of the neutral form (`routing.message.Properties.record_headers`), byte for byte. A list is walked by
the lengths of its properties; most of them stand in the record as they stood on the wire. Header tables are decoded,
those that come again once.
"""

from __future__ import annotations

from core_log.record_batch import encode_entries
from core_log.varint import VARINTS, varint
from protocols.amqp import wire
from protocols.amqp.properties import TEXT_STEPS, Step, names_of
from routing.message import RESERVED_HEADER_PREFIX, application_headers

_PLANS_MAX = 1024
_plans: dict[bytes, list[tuple[Step, bytes]]] = {}
"""By flags: each property that is there, and the header name it gets, encoded; empty for those that get none."""
_TABLES_MAX = 1024
_TABLE_BYTES_MAX = 512
_tables: dict[bytes, tuple[int, bytes]] = {}
_HEADER_NAMES = {"expiration": "expiration-ms", "timestamp": "timestamp-s"}
_NOT_KEPT = ("headers", "delivery_mode", "cluster_id")


def _plan(flags: bytes) -> list[tuple[Step, bytes]]:
    plan = []
    for step, name in names_of(int.from_bytes(flags, "big")):
        header = RESERVED_HEADER_PREFIX + _HEADER_NAMES.get(name, name.replace("_", "-"))
        if step in TEXT_STEPS and step is not Step.EXPIRATION:
            step = Step.SHORT_STRING
        plan.append((step, b"" if name in _NOT_KEPT else varint(len(header)) + header.encode()))
    if len(_plans) < _PLANS_MAX:
        _plans[flags] = plan
    return plan


def record_entries(raw: bytes) -> tuple[int, bytes]:
    """How many headers a property list makes, and their bytes. The list was checked when it was published."""
    plan = _plans.get(raw[:2])
    if plan is None:
        plan = _plan(raw[:2])
    count, at = 0, 2
    parts: list[bytes] = []
    for step, name in plan:
        if step is Step.SHORT_STRING:
            start, at = at + 1, at + 1 + raw[at]
            if not name:
                continue
            parts += (name, VARINTS[at - start], raw[start:at])
        elif step is Step.HEADERS:
            end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
            more, entries = _table_entries(raw, at, end)
            count, at = count + more, end
            parts.insert(0, entries)  # the application's own come first
            continue
        else:
            if step is Step.EXPIRATION:
                start, at = at + 1, at + 1 + raw[at]
                number = int(raw[start:at])
            elif step is Step.TIMESTAMP:
                start, at = at, at + 8
                number = int.from_bytes(raw[start:at], "big")
            else:
                number = raw[at]
                at += 1
            if not name:
                continue
            text = b"%d" % number
            parts += (name, VARINTS[len(text)], text)
        count += 1
    return count, b"".join(parts)


def _table_entries(raw: bytes, start: int, end: int) -> tuple[int, bytes]:
    table = raw[start:end]
    found = _tables.get(table)
    if found is None:
        headers = application_headers(wire.read_table(raw, start)[0])
        found = len(headers), encode_entries(headers)
        if len(table) <= _TABLE_BYTES_MAX:
            if len(_tables) >= _TABLES_MAX:
                _tables.clear()
            _tables[table] = found
    return found
