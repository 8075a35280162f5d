"""What of a query's conditions can be told by bytes, so that the broker, and a worker before it decodes, leave batches
out (`core_log/containing.py`).

1. A key stands in a record behind its length, and so does a header's name, followed by the length of its value and
   that. A length may be written in more bytes than it needs, which no client does and readers take: strings for that
   are looked for as well, so that never a row is missing.
2. What a condition says of text says something of bytes only where the text is as the record has it: the replacement
   character may stand for anything.
3. There is a limit on how much is looked for. Conditions beyond it are left to who looks at the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from core_log.containing import key_strings
from core_log.varint import varint
from protocols.native.wire_base import CONTAINING_BYTES_MAX, CONTAINING_MAX
from spark_bridge.message_columns import EXCHANGE, MESSAGE_ID, PREFIX

Strings = tuple[bytes, ...]
Condition = tuple[str, Collection[bytes | str]]
"""A column, and the values of which it must have one; or of which one must be part of its value."""

_SWAPPED = bytes.maketrans(b"/.", b"./")
"""Topics of MQTT as routing keys."""
_REPLACEMENT = "\ufffd"


def strings_for(
    values: Iterable[Condition], parts: Iterable[Condition], headers: Iterable[tuple[str, str]]
) -> list[Strings]:
    """Groups of byte strings that say what rows must have: whole values, parts of them, and headers."""
    found: list[Strings] = []
    count = size = 0
    for strings in _groups(values, parts, headers):
        length = sum(map(len, strings))
        if b"" in strings or count + len(strings) > CONTAINING_MAX or size + length > CONTAINING_BYTES_MAX:
            continue
        found.append(strings)
        count, size = count + len(strings), size + length
    return found


def _groups(
    values: Iterable[Condition], parts: Iterable[Condition], headers: Iterable[tuple[str, str]]
) -> Iterator[Strings]:
    for name, value in headers:
        yield _header(name, _bytes(value))
    for column, wanted in values:
        whole = _WHOLE.get(column)
        if whole is not None and wanted:
            yield tuple(string for one in wanted for string in whole(_bytes(one)))
    for column, wanted in parts:
        if wanted:
            yield tuple(_part(column, one) for one in wanted)


def _bytes(value: bytes | str) -> bytes:
    """What stands in the record; nothing if that is not known."""
    if isinstance(value, bytes):
        return value
    return b"" if _REPLACEMENT in value else value.encode("utf-8", "replace")


def _part(column: str, value: bytes | str) -> bytes:
    part = _bytes(value)
    return part.translate(_SWAPPED) if column == "mqttTopic" else part


def _header(name: str, value: bytes) -> Strings:
    begin, length = _bytes(name), varint(len(value))
    if not value:
        return (begin,)  # it may be text that is not known
    return begin + length + value, begin + length[:-1] + bytes([length[-1] | 128])


def _text_header(name: str) -> Callable[[bytes], Strings]:
    return lambda value: _header(name, value) if value else (b"",)


_WHOLE: dict[str, Callable[[bytes], Strings]] = {
    "key": key_strings,
    "routingKey": key_strings,
    "mqttTopic": lambda topic: key_strings(topic.translate(_SWAPPED)),
    "messageId": _text_header(MESSAGE_ID),
    "exchange": _text_header(EXCHANGE),
    "protocol": lambda name: (PREFIX.encode() + name if name else b"",),
}
