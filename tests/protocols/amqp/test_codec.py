"""Values, methods and properties, both ways, against pika's and pamqp's codecs; cut short at each byte; fuzzed."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika.data
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, decode, encode

from protocols.amqp import wire
from protocols.amqp.errors import HARD, SOFT, AmqpError, SyntaxFault, erlang_binary
from protocols.amqp.methods import METHODS, Method, decode_method
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from protocols.sansio import LocalProtocolError

TABLES: list[dict[str, Any]] = [
    {},
    {"t": True, "f": False, "null": None},
    {"int": 1, "negative": -1, "long": 1 << 40, "least": -(1 << 63), "i32": (1 << 31) - 1, "i33": 1 << 31},
    {"text": "naïve ☃", "empty": "", "bytes": b"\0\xff"},
    {"decimal": Decimal("-12.34"), "scale": Decimal("0.001"), "whole": Decimal(7)},
    {"list": [1, "a", None, [b"x", {"deep": [True]}]], "table": {"a": {"b": {"c": 1}}}},
    {"x-death": [{"queue": "q", "reason": "expired", "count": 1, "time": wire.Timestamp(1_700_000_000)}]},
]


def plain(value: Any, blob: type = bytes) -> Any:
    """Without the types that only say how a value is written; `blob` is the other codec's type for bytes."""
    if isinstance(value, dict):
        return {name: plain(item, blob) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item, blob) for item in value]
    if isinstance(value, wire.Timestamp):
        return datetime.fromtimestamp(value, UTC)
    return blob(value) if isinstance(value, bytes | bytearray) else value


@pytest.mark.parametrize("table", TABLES)
def test_tables_agree_with_two_other_codecs(table: dict[str, Any]) -> None:
    data = wire.table(table)
    assert wire.read_table(data, 0) == (table, len(data))
    assert pika.data.decode_table(data, 0) == (plain(table), len(data))
    assert plain(decode.field_table(data)[1]) == plain(table)
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, plain(table))
    assert b"".join(pieces) == data
    assert wire.read_table(encode.field_table(plain(table, bytearray)), 0)[0] == table


@pytest.mark.parametrize("table", TABLES)
def test_tables_cut_short_are_refused(table: dict[str, Any]) -> None:
    data = wire.table(table)
    for size in range(len(data)):
        with pytest.raises(SyntaxFault):
            wire.read_table(data[:size], 0)


@pytest.mark.parametrize(
    ("letter", "payload", "value"),
    [
        ("t", b"\1", True), ("b", b"\xff", -1), ("B", b"\xff", 255), ("s", b"\xff\xfe", -2), ("U", b"\xff\xfe", -2),
        ("u", b"\xff\xfe", 65534), ("I", b"\xff\xff\xff\xff", -1), ("i", b"\xff\xff\xff\xff", 4294967295),
        ("l", b"\xff" * 8, -1), ("L", b"\xff" * 8, -1), ("f", struct.pack(">f", 1.5), 1.5),
        ("d", struct.pack(">d", -0.1), -0.1), ("T", b"\xff" * 8, (1 << 64) - 1), ("V", b"", None),
        ("D", b"\xff\0\0\0\1", Decimal(1).scaleb(-255)), ("x", b"\0\0\0\1\xff", b"\xff"),
        ("S", b"\0\0\0\2a\xff", "a\udcff"), ("A", b"\0\0\0\2t\1", [True]), ("F", b"\0\0\0\3\1aV", {"a": None}),
    ],
)  # fmt: skip
def test_every_field_type_is_read(letter: str, payload: bytes, value: object) -> None:
    items = b"\1k" + letter.encode() + payload
    assert wire.read_table(len(items).to_bytes(4, "big") + items, 0)[0] == {"k": value}
    for size in range(1, len(payload) + 1):
        cut = items[:-size]
        with pytest.raises(SyntaxFault):
            wire.read_table(len(cut).to_bytes(4, "big") + cut, 0)


def nested(depth: int) -> dict[str, Any]:
    """Tables in tables and lists, `depth` of them in all."""
    value: Any = {}
    for level in range(depth - 1):
        value = {"": value} if level % 2 or level == depth - 2 else [value]
    assert isinstance(value, dict)
    return value


def test_tables_nest_to_the_limit_and_no_further() -> None:
    assert wire.read_table(wire.table(nested(32)), 0)[0] == nested(32)
    with pytest.raises(SyntaxFault, match="nested deeper than 32"):
        wire.read_table(wire.table(nested(33)), 0)


@pytest.mark.parametrize("value", [1 << 63, Decimal("1e20"), Decimal("NaN"), object(), {"k" * 256: 1}])
def test_values_without_a_field_type_are_our_own_fault(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        wire.table({"k": value})


@given(st.binary(max_size=60))
def test_any_bytes_are_a_table_or_a_syntax_fault(data: bytes) -> None:
    try:
        table = wire.read_table_items(data, 0, len(data))
    except SyntaxFault:
        return
    assert isinstance(table, dict)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXT | st.binary(max_size=20)
    | st.floats(allow_nan=False) | st.integers(0, (1 << 64) - 1).map(wire.Timestamp)
)  # fmt: skip
ANY_TABLE = st.dictionaries(
    TEXT, st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)),
    max_size=4,
)  # fmt: skip
FIELD_VALUES = {
    "bit": st.booleans(), "octet": st.integers(0, 255), "short": st.integers(0, 65535),
    "long": st.integers(0, 2**32 - 1), "longlong": st.integers(0, 2**64 - 1),
    "shortstr": TEXT, "shortbytes": TEXT, "longstr": st.binary(max_size=40), "table": ANY_TABLE,
}  # fmt: skip


@st.composite
def any_method(draw: st.DrawFn) -> Method:
    """Any method with any arguments."""
    kind = draw(st.sampled_from(sorted(METHODS.values(), key=lambda cls: cls.IDENT)))
    values = [draw(FIELD_VALUES[field_kind]) for field_kind, names in kind.PLAN for _ in names]
    return kind(*values)


@settings(max_examples=300)
@given(any_method())
def test_methods_read_back(method: Method) -> None:
    data = method.encode()
    assert decode_method(data) == method
    for size in range(4, len(data)):
        with pytest.raises(SyntaxFault):
            decode_method(data[:size])
    with pytest.raises(SyntaxFault):
        decode_method(data + b"\0")


SAMPLES = {
    "bit": True, "octet": 9, "short": 513, "long": 70000, "longlong": 1 << 40, "shortstr": "name", "shortbytes": "key",
    "longstr": b"long", "table": {"a": 1, "b": {"c": "d"}},
}  # fmt: skip


def sample(kind: type[Method], /, **changes: Any) -> Method:
    """A method with every argument set, but for those that carry nothing."""
    names = [(field_kind, name) for field_kind, names in kind.PLAN for name in names]
    values = {name: SAMPLES[field_kind] for field_kind, name in names if name != "ticket"}
    return kind(**{**values, **changes})


# pika's own class for connection.update-secret loses the secret.
PIKA_METHODS = [kind for kind in METHODS.values() if kind.NAME != "connection.update-secret"]


@pytest.mark.parametrize("kind", PIKA_METHODS, ids=lambda cls: cls.NAME)
def test_methods_agree_with_pika(kind: type[Method]) -> None:
    """pika reads what we write, writes the same bytes again, and we read those."""
    theirs = pika.spec.methods[kind.IDENT]
    assert kind.NAME.replace("-", "").replace(".", "") == theirs.NAME.replace(".", "").lower()
    for bits in (True, False):
        changes = {name: bits for field_kind, names in kind.PLAN for name in names if field_kind == "bit"}
        ours = sample(kind, **changes)
        read = theirs().decode(ours.encode()[4:])
        again = kind.IDENT.to_bytes(4, "big") + b"".join(read.encode())
        assert again == ours.encode()
        assert decode_method(again) == ours
        for mine, other in zip(ours.__struct_fields__, vars(read).values()):
            value = getattr(ours, mine)
            assert other in (value, value.decode() if isinstance(value, bytes) else value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda cls: cls.NAME)
def test_methods_agree_with_pamqp(kind: type[Method]) -> None:
    theirs = commands.INDEX_MAPPING.get(kind.IDENT)
    if theirs is None:
        assert kind.NAME.startswith("access.")
        return
    names = {name for _, names in kind.PLAN for name in names}
    # pamqp insists on fixed values in fields that carry nothing.
    fixed: dict[str, Any] = {"reserved_1": "", "reserved_2": False, "virtual_host": "/", "kind": "direct"}
    if kind.NAME.startswith("channel.open"):
        fixed["reserved_1"] = "0" if kind.NAME == "channel.open" else b"0"
    ours = sample(kind, **{name: value for name, value in fixed.items() if name in names})
    read = theirs()
    read.unmarshal(ours.encode()[4:])
    again = kind.IDENT.to_bytes(4, "big") + read.marshal()
    assert decode_method(again) == decode_method(ours.encode()) == ours


def test_unknown_methods_are_none_and_short_frames_faults() -> None:
    assert decode_method(b"\0\x3c\0\xff") is None
    assert decode_method(b"\xff\xff\0\1") is None
    with pytest.raises(SyntaxFault):
        decode_method(b"\0\x3c\0")


ALL_PROPERTIES = BasicProperties(
    content_type="application/json", content_encoding="gzip", headers={"a": [1, {"b": None}]}, delivery_mode=2,
    priority=9, correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_000, type="t",
    user_id="guest", app_id="app", cluster_id="cluster",
)  # fmt: skip
EACH_PROPERTY = [
    BasicProperties(),
    ALL_PROPERTIES,
    *(BasicProperties(**{name: getattr(ALL_PROPERTIES, name)}) for name in BasicProperties.__slots__),
]


@pytest.mark.parametrize("properties", EACH_PROPERTY)
def test_properties_agree_with_two_other_codecs(properties: BasicProperties) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    theirs = pika.spec.BasicProperties().decode(raw)
    assert b"".join(theirs.encode()) == raw
    assert theirs.message_id == properties.message_id
    assert theirs.headers == properties.headers
    if properties.cluster_id is None:
        pamqp = commands.Basic.Properties()
        pamqp.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
        assert pamqp.correlation_id == properties.correlation_id
        assert decode_properties(pamqp.marshal()) == properties
    for size in range(len(raw)):
        with pytest.raises(SyntaxFault):
            decode_properties(raw[:size])
    with pytest.raises(SyntaxFault):
        decode_properties(raw + b"\0")


@pytest.mark.parametrize("flags", [b"\0\1\0\0", b"\0\2"])
def test_flags_of_no_property_are_refused(flags: bytes) -> None:
    with pytest.raises(SyntaxFault, match="unknown property flags"):
        decode_properties(flags)


@given(st.binary(max_size=80))
def test_any_bytes_are_properties_or_a_syntax_fault(raw: bytes) -> None:
    try:
        properties = decode_properties(raw)
    except SyntaxFault:
        return
    assert isinstance(properties, BasicProperties)


def test_reply_texts_fit_a_short_string() -> None:
    error = AmqpError("NOT_FOUND", "no queue '" + "☃" * 200 + "' in vhost '/'")
    assert len(error.reply_text.encode()) <= 255
    assert error.reply_text.startswith("NOT_FOUND - no queue '☃")
    wire.short_string(AmqpError("NOT_FOUND", "\udcff" * 300).reply_text)
    assert AmqpError("NOT_FOUND", "x", channel=1, method_id=0x32000A).method_id == 10
    assert {**SOFT, **HARD}["NOT_FOUND"] == 404


def test_snippets_are_written_as_erlang_writes_them() -> None:
    assert erlang_binary(b"") == "<<>>"
    assert erlang_binary(b"ab") == '<<"ab">>'
    assert erlang_binary(b"\0\xff") == "<<0,255>>"
