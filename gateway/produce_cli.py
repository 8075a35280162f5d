"""`millrace produce`: the lines of standard input as records of a topic."""

from __future__ import annotations

import base64
import binascii
import io
import json
import select
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, NamedTuple

import click

from gateway.client_cli import NUMBER, TIMEOUT_S, Name, Terms, input_bytes, with_terms

_READ_BYTES = 1 << 16
_ACKS: dict[str, Literal[-1, 0, 1]] = {"all": -1, "1": 1, "0": 0}


class _Line(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class _Wrong(click.ClickException):
    """A line that is no record."""

    def __init__(self, number: int, why: str) -> None:
        said = "" if number == 1 else "; the lines before it are in the topic, it and those behind it are not"
        super().__init__(f"line {number}: {why}{said}")


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    """A field, as text or in base64 as `NAME_base64`. Raises ValueError."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = fields.get(name)
    return None if value is None else (value if isinstance(value, str) else json.dumps(value)).encode()


def _of_json(line: bytes) -> _Line:
    """A line as `millrace consume --json` prints it. Raises ValueError."""
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError("too much is nested in it") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError("it has neither 'value' nor 'value_base64'; null is a tombstone")
    headers = [(_name(one), _bytes(one, "value")) for one in fields.get("headers") or ()]
    timestamp_ms = fields.get("timestamp_ms")
    if isinstance(timestamp_ms, bool):
        raise ValueError(f"a timestamp is in ms since 1970, not {json.dumps(timestamp_ms)}")
    return _Line(_bytes(fields, "value"), _bytes(fields, "key"), headers or None, None, timestamp_ms)


def _name(header: Any) -> str:
    """Of a header, whose bytes need be no text. Raises KeyError, ValueError."""
    if not isinstance(header, dict):
        raise ValueError("a header is a JSON object")
    if header.get("name_base64") is not None:
        return base64.b64decode(header["name_base64"], validate=True).decode("utf-8", "surrogateescape")
    return str(header["name"])


def _of_text(line: bytes, separator: bytes | None) -> _Line:
    """A line whose key stands before `separator`, if that is given. Raises ValueError."""
    if separator is None:
        return _Line(line)
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"no {separator.decode()!r} in it")
    return _Line(value, key)


def _lines(source: BinaryIO, before_waiting: Callable[[], None]) -> Iterator[bytes]:
    """Lines as they come; `before_waiting` is called whenever there is nothing more for now."""
    begun: list[bytes] = []
    while True:
        if not _is_ready(source):
            before_waiting()
        data = source.read1(_READ_BYTES) if isinstance(source, io.BufferedReader) else source.read(_READ_BYTES)
        if not data:
            break
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*begun, whole[0]])
            begun = []
        begun.append(rest)
        yield from (line.rstrip(b"\r") for line in whole)
    if last := b"".join(begun):
        yield last


def _is_ready(source: BinaryIO) -> bool:
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # what cannot be waited for
        return True


def _headers(pairs: tuple[str, ...]) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, value.encode()))
    return found


@click.command()
@click.argument("topic", type=Name())
@click.option("--key-separator", metavar="TEXT", help="What stands before this in a line is the record's key.")
@click.option("--header", "pairs", metavar="NAME=VALUE", multiple=True, help="Of every record; several may be given.")
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True, help="When a record is safe.")
@click.option("--partition", type=NUMBER, help="Default: by the key, or in turn.")
@click.option("--compression", type=click.Choice(["gzip", "snappy", "lz4", "zstd"]))
@click.option("--null", "null", metavar="TEXT", help="A value that is exactly this is none: a tombstone.")
@click.option("--json", "as_json", is_flag=True, help="Lines are objects as `consume --json` prints them.")
@with_terms
def produce(
    terms: Terms,
    topic: str,
    key_separator: str | None,
    pairs: tuple[str, ...],
    acks: str,
    partition: int | None,
    compression: str | None,
    null: str | None,
    as_json: bool,
) -> None:
    """Write each line of standard input to TOPIC.

    Comes back when all are as safe as --acks says. Lines are sent when no more of them wait to be read, so what comes
    slowly is sent line by line. It ends with the first line that is no record, when those before it are safe.
    """
    from protocols.native.clients.blocking_producer import BlockingProducer

    headers = _headers(pairs)
    separator = None if key_separator is None else key_separator.encode()
    none = None if null is None else null.encode()
    source = input_bytes()
    with BlockingProducer(
        terms.server, acks=_ACKS[acks], compression=compression, timeout_s=TIMEOUT_S, credentials=terms.credentials,
        tls=terms.tls,
    ) as producer:  # fmt: skip
        for number, line in enumerate(_lines(source, producer.flush), 1):
            try:
                record = _of_json(line) if as_json else _of_text(line, separator)
                producer.send(
                    topic,
                    None if record.value == none and none is not None else record.value,
                    record.key,
                    [*headers, *(record.headers or ())] or None,
                    partition,
                    record.timestamp_ms,
                )
            except (ValueError, TypeError, KeyError, binascii.Error) as error:
                producer.flush()
                raise _Wrong(number, str(error)) from None
