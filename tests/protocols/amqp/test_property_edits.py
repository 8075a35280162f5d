"""Editing property lists in place: what is not meant stays byte for byte, for every combination of properties."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Any

import pytest

from protocols.amqp import property_edits, wire
from protocols.amqp.adapter_properties import from_neutral, to_neutral
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from routing.message import NeutralProperties, Properties
from routing.property_editors import NEUTRAL_EDITOR, editor_of, to_neutral_raw

EVERYTHING = BasicProperties(
    "text/plain", "gzip", {}, 2, 7, "correlation", "reply", "60000", "id-1", 5, "type", "guest", "app", "cluster"
)
TYPES = b"".join(
    [
        b"\1b" + b"b\xff",
        b"\1B" + b"B\xff",
        b"\1s" + b"s\xff\xff",
        b"\1u" + b"u\xff\xff",
        b"\1U" + b"U\xff\xff",
        b"\1I" + struct.pack(">ci", b"I", -1),
        b"\1i" + struct.pack(">cI", b"i", 1),
        b"\1l" + struct.pack(">cq", b"l", 1),
        b"\1L" + struct.pack(">cq", b"L", 1),
        b"\1f" + struct.pack(">cf", b"f", 1.5),
        b"\1d" + struct.pack(">cd", b"d", 1.5),
        b"\1T" + struct.pack(">cQ", b"T", 1),
        b"\1D" + struct.pack(">cBi", b"D", 2, 314),
        b"\1t" + b"t\1",
        b"\1V" + b"V",
        b"\1S" + b"S\0\0\0\2\xff\xfe",
        b"\1x" + b"x\0\0\0\2\xff\xfe",
        b"\1A" + b"A" + wire.long_string(b"S\0\0\0\1aI\0\0\0\1"),
        b"\1F" + b"F" + wire.long_string(b"\1aI\0\0\0\1\1bF\0\0\0\0"),
    ]
)
"""A table with every type, in forms that decoding and encoding would not all give back."""


def with_table(properties: BasicProperties, items: bytes) -> bytes:
    """A property list whose header table is `items`."""
    table = {"marker": 1}
    raw = encode_properties(
        BasicProperties(**{n: getattr(properties, n) for n in BasicProperties.__slots__} | {"headers": table})
    )
    return raw.replace(wire.table(table), wire.long_string(items))


@pytest.mark.parametrize("seed", range(200))
def test_only_what_is_meant_changes(seed: int) -> None:
    chance = random.Random(seed)
    values = {name: getattr(EVERYTHING, name) for name in BasicProperties.__slots__ if chance.random() < 0.5}
    headers: dict[str, Any] | None = values.get("headers")
    if headers is not None:
        headers.clear()
        for name in ("a", "x-death", "b", "CC", "c"):
            if chance.random() < 0.5:
                headers[name] = chance.choice([1, "x", b"\xff", None, {"x-death": 1}, ["CC"], Decimal("1.5")])
    raw = encode_properties(BasicProperties(**values))
    keep = chance.random() < 0.5
    edited = property_edits.edit(
        raw, property_edits.encode_headers({"new": "value"}), ("x-death", "CC"), keep_expiration=keep
    )
    left = {name: value for name, value in (headers or {}).items() if name not in ("x-death", "CC")}
    expected = BasicProperties(**values | {"headers": left | {"new": "value"}} | ({} if keep else {"expiration": None}))
    assert edited == encode_properties(expected)
    names = ("CC", "a", "missing")
    assert property_edits.read_headers(raw, names) == {n: v for n, v in (headers or {}).items() if n in names}
    assert property_edits.expiration_of(raw) == values.get("expiration")
    message_id = values.get("message_id")
    assert property_edits.message_id_of(raw) == (None if message_id is None else message_id.encode())


def test_values_of_every_type_survive_unread() -> None:
    raw = with_table(EVERYTHING, TYPES + b"\7x-death" + b"S\0\0\0\1?")
    edited = property_edits.edit(raw, b"\1zV", ("x-death",))
    assert TYPES + b"\1zV" in edited
    assert edited == with_table(EVERYTHING, TYPES + b"\1zV")
    decode_properties(edited)


def test_deaths_have_rabbitmqs_types() -> None:
    deaths = [{"count": 1, "time": 5, "queue": "q", "routing-keys": ["k"]}, "odd"]
    encoded = property_edits.encode_headers({"x-death": deaths, "x-delivery-count": 3})
    assert b"\5countl" + struct.pack(">q", 1) in encoded
    assert b"\4timeT" + struct.pack(">Q", 5) in encoded
    assert encoded.endswith(b"\x10x-delivery-countl" + struct.pack(">q", 3))
    assert wire.read_table_items(encoded, 0, len(encoded))["x-death"] == deaths


def test_neutral_properties_are_edited_too() -> None:
    neutral = NeutralProperties(
        "text/plain", headers={"a": b"\xff", "CC": ["k"], "d": Decimal("1.5"), "s": "\udcff"}, persistent=True,
        correlation_id=b"\0\xff", expiration_ms=5, message_id="m", priority=0,
    )  # fmt: skip
    raw = to_neutral_raw(neutral)
    editor = editor_of("neutral")
    assert editor is NEUTRAL_EDITOR
    assert editor.headers(raw, ("CC", "b")) == {"CC": ["k"]}
    assert (editor.expiration(raw), editor.message_id(raw)) == ("5", b"m")
    deaths = [{"count": 1, "time": 7}]
    edited = editor.edit(raw, editor.encode({"x-death": deaths}), ("CC",), keep_expiration=False)
    properties = decode_properties(from_neutral(_neutral(edited)))
    assert properties.headers == {"a": b"\xff", "d": Decimal("1.5"), "s": "\udcff", "x-death": deaths}
    assert isinstance(properties.headers["x-death"][0]["time"], wire.Timestamp)
    assert (properties.expiration, properties.message_id, properties.priority) == (None, "m", 0)
    assert to_neutral(from_neutral(_neutral(raw))) == neutral


def _neutral(raw: bytes) -> NeutralProperties:
    return Properties("neutral", raw, persistent=True).neutral
