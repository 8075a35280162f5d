"""Property lists as headers of records: what the neutral form makes of them, byte for byte."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core_log.record_batch import decode_header_block, encode_headers
from core_log.varint import varint
from protocols.amqp.adapter_properties import PROTOCOL
from protocols.amqp.adapter_records import record_entries
from protocols.amqp.properties import BasicProperties, encode_properties
from routing.message import Properties, record_encoder

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "",
    "headers": {"a": 1, "b": {"c": [True, None]}, "t": "täxt", "n": None, "raw": b"\xff"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c" * 255,
    "reply_to": "r",
    "expiration": "0060000",
    "message_id": "m" * 64,
    "timestamp": 1_700_000_000,
    "type": "\udcff",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}


def same(raw: bytes) -> None:
    """Both ways lead to the same headers."""
    expected = Properties(PROTOCOL, raw, persistent=True).record_headers
    count, entries = record_entries(raw)
    assert varint(count) + entries == encode_headers(expected)
    assert decode_header_block(varint(count) + entries) == expected


def test_every_set_of_properties() -> None:
    names = list(ALL)
    kinds = [set(names), set(), *({name} for name in names), *map(set, itertools.combinations(names, 2))]
    kinds += [set(names) - {name} for name in names]
    for kind in kinds * 2:
        same(encode_properties(BasicProperties(**{name: ALL[name] for name in kind})))


_values = st.none() | st.booleans() | st.integers(-(1 << 31), 1 << 40) | st.text(max_size=10) | st.binary(max_size=600)


@given(st.dictionaries(st.text(max_size=20), _values, max_size=5), st.text(max_size=60), st.integers(0, 255))
def test_any_headers(headers: dict[str, Any], text: str, priority: int) -> None:
    same(encode_properties(BasicProperties(headers=headers, message_id=text, priority=priority)))


def test_it_is_the_way_that_is_taken() -> None:
    assert record_encoder(PROTOCOL) is record_entries
    raw = encode_properties(BasicProperties(message_id="m"))
    assert record_encoder("mqtt") is not record_entries
    assert record_entries(raw) == (1, varint(19) + b"millrace.message-id" + varint(1) + b"m")
