"""The codec against kafka-python's, both ways, byte by byte; and what is no message."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest

from protocols.kafka import codec
from protocols.kafka.codec import Entity, Malformed
from protocols.kafka.schema import Api, Field, api, parsed

MODULES = ("connection", "records", "groups", "admin", "transactions", "users")
THEIRS = [getattr(kafka.protocol, name) for name in ("metadata", "producer", "consumer", "admin", "sasl")]


def apis() -> list[Api]:
    found = {}
    for name in MODULES:
        for value in vars(importlib.import_module(f"protocols.kafka.messages_{name}")).values():
            if isinstance(value, Api):
                found[value.key] = value
    return [found[key] for key in sorted(found)]


def messages() -> Iterator[Any]:
    for one in apis():
        for version in range(one.version_min, one.version_max + 1):
            yield pytest.param(one, version, id=f"{one.name}-{version}")


def theirs(name: str) -> Any:
    for module in THEIRS:
        if hasattr(module, name):
            return getattr(module, name)
    return None


NUMBERS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}


def value_of(field: Field, version: int, dice: random.Random) -> Any:
    if field.is_nullable(version) and dice.random() < 0.3:
        return None
    if field.is_array:
        return [one_of(field, version, dice) for _ in range(dice.choice((0, 1, 3, 130)) if field.type != "{}" else 2)]
    return one_of(field, version, dice)


def one_of(field: Field, version: int, dice: random.Random) -> Any:
    if field.type == "{}":
        return entity_of(field.fields, version, dice)
    if field.type in NUMBERS:
        bits = NUMBERS[field.type]
        low = 0 if field.type.startswith("u") else -(1 << bits - 1)
        return dice.randrange(low, low + (1 << bits))
    if field.type == "bool":
        return dice.random() < 0.5
    if field.type == "float64":
        return dice.random()
    if field.type == "uuid":
        return dice.randbytes(16)
    if field.type == "string":
        return "é" * dice.choice((0, 1, 100)) + "x"
    data = dice.randbytes(dice.choice((0, 1, 500)))
    return [data] if field.type == "records" else data


def entity_of(fields: tuple[Field, ...], version: int, dice: random.Random) -> Entity:
    there = [field for field in fields if field.is_in(version)]
    return Entity(**{field.name: value_of(field, version, dice) for field in there})


def sides(one: Api, version: int) -> list[tuple[tuple[Field, ...], Any, Any, Any]]:
    return [
        (
            one.request,
            codec.request_writer(one, version),
            codec.request_reader(one, version),
            theirs(f"{one.name}Request"),
        ),
        (one.reply, codec.reply_writer(one, version), codec.reply_reader(one, version), theirs(f"{one.name}Response")),
    ]


def encoded(writer: Any, message: Entity) -> bytes:
    return b"".join(codec.write_message(writer, b"", message))


@pytest.mark.parametrize(("one", "version"), list(messages()))
def test_kafka_python_reads_and_writes_the_same(one: Api, version: int) -> None:
    for seed in range(4):
        dice = random.Random(f"{one.name} {version} {seed}")
        for fields, writer, reader, their in sides(one, version):
            message = entity_of(fields, version, dice)
            if one.name == "ApiVersions" and "error_code" in vars(message):
                message.error_code = 0  # kafka-python takes any other for a reply of version 0
            data = encoded(writer, message)
            assert encoded(writer, again(codec.read_message(reader, data, 0))) == data
            if their is None or not their.min_version <= version <= their.max_version:
                continue
            found = their.decode(data, version=version)
            found._header = None
            assert bytes(found.encode(version=version)) == data


def again(message: Any) -> Any:
    """What was read, as it is written: records as pieces."""
    if isinstance(message, Entity):
        return Entity(
            **{name: [v] if name == "records" and v is not None else again(v) for name, v in vars(message).items()}
        )
    return [again(item) for item in message] if isinstance(message, list) else message


@pytest.mark.parametrize(("one", "version"), list(messages()))
def test_what_is_cut_short_or_changed_is_no_message_or_another(one: Api, version: int) -> None:
    dice = random.Random(f"{one.name} {version}")
    for fields, writer, reader, _ in sides(one, version):
        data = encoded(writer, entity_of(fields, version, dice))
        for end in {*range(min(len(data), 200)), *(dice.randrange(len(data)) for _ in range(20 if data else 0))}:
            with pytest.raises(Malformed):
                codec.read_message(reader, data[:end], 0)
        for _ in range(50):
            changed = bytearray(data or b"\0")
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
            try:
                codec.read_message(reader, bytes(changed), 0)
            except Malformed:
                pass


LIES = api(
    999, "Lies", "0-1", flexible=1,
    request="""
    names []string
    numbers []int64
    text string
    data bytes?
    items []
      number int8
    """,
    reply="""
    error_code int16
    """,
)  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
def test_a_length_that_lies_allocates_nothing(version: int) -> None:
    reader = codec.request_reader(LIES, version)
    huge = b"\x7f\xff\xff\xff" if version == 0 else b"\xff\xff\xff\xff\x07"
    whole = encoded(codec.request_writer(LIES, version), Entity())
    for at in range(len(whole)):
        with pytest.raises(Malformed):
            codec.read_message(reader, whole[:at] + huge, 0)


def test_what_may_not_be_null_is_refused() -> None:
    with pytest.raises(Malformed, match="names is null"):
        codec.read_message(codec.request_reader(LIES, 0), b"\xff\xff\xff\xff", 0)
    with pytest.raises(Malformed, match="names is null"):
        codec.read_message(codec.request_reader(LIES, 1), b"\0", 0)
    with pytest.raises(TypeError, match="text is None"):
        encoded(codec.request_writer(LIES, 0), Entity(text=None))


def test_names_that_the_schema_has_not_are_bugs() -> None:
    with pytest.raises(TypeError, match="no field wrong"):
        encoded(codec.reply_writer(LIES, 0), Entity(wrong=1))
    with pytest.raises(AttributeError, match="no field 'wrong'"):
        _ = Entity(right=1).wrong


def test_unknown_tagged_fields_are_passed_over() -> None:
    reader = codec.reply_reader(LIES, 1)
    assert codec.read_message(reader, b"\0\5\1\x2a\3abc", 0).error_code == 5
    with pytest.raises(Malformed):
        codec.read_message(reader, b"\0\5\1\x2a\4abc", 0)


def test_records_are_never_copied() -> None:
    produce = next(one for one in apis() if one.name == "Produce")
    batch = bytes(100_000)
    entry = Entity(index=1, records=[batch])
    message = Entity(topic_data=[Entity(name="t", partition_data=[entry])])
    pieces = codec.write_message(codec.request_writer(produce, 9), b"", message)
    assert any(piece is batch for piece in pieces)
    data = memoryview(b"".join(pieces))
    found = codec.read_message(codec.request_reader(produce, 9), data, 0).topic_data[0].partition_data[0].records
    assert found.obj is data.obj
    assert found == batch


@pytest.mark.parametrize("line", ["name", "name int32 tag", "name int32 3", "a b c d"])
def test_lines_that_are_no_fields(line: str) -> None:
    with pytest.raises(ValueError, match="no field"):
        parsed(line)
