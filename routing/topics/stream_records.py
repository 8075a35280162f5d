"""The records of a stream as messages, whoever wrote them.

1. Value is the body, key the routing key, headers those of any topic (`message.py`). What an exchange routed has,
   before them, the exchange if it has a name (`millrace.exchange`) and the property bytes of the protocol it came by
   (`millrace.<protocol>`): its consumers get back exactly what was published, and nothing has to be worked out.
2. What came by other doors is read from its headers: typed ones (`millrace.content-type`) are properties again, all
   others application headers: text where they are UTF-8, bytes where not.
3. Neighbours are one slab if they can be, of consecutive offsets. All property bytes are somebody else's word: an
   adapter checks them before it sends them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any, cast

from core_log.errors import CorruptBatch, Damaged
from core_log.files import BytesLike
from core_log.header_blocks import are_short
from core_log.record_batch import decode_header_block, parse_header
from core_log.record_fields import RecordFields, decode_fields
from core_log.varint import read_varint, varint
from routing.message import (
    KEY_BYTES_MAX,
    NAME_ENCODING_ERRORS,
    RESERVED_HEADER_PREFIX,
    TYPED_BY_HEADER,
    USER_ID_HEADER,
    NeutralProperties,
    Properties,
    decode_keys,
    is_registered,
    register_decoder,
)
from routing.message import (
    StreamSlab as StreamSlab,
)

RECORD_PROTOCOL = "record"
"""Of property bytes that are a record's header block."""

_EXCHANGE_HEADER = f"{RESERVED_HEADER_PREFIX}exchange"
_SLAB_MESSAGES_MAX = 1024
_SLAB_BYTES_MAX = 256 << 10
_DIGITS_MAX = 18
_RESERVED = RESERVED_HEADER_PREFIX.encode()
_NO_LEAD = b"\x01"
"""The length -1, which no header's name has: matches no block."""


# --- headers both ways ------------------------------------------------------------------


def source_headers(exchange: str, properties: Properties) -> list[tuple[str, bytes | None]]:
    """What a stream's record says of where its message came from."""
    headers: list[tuple[str, bytes | None]] = []
    if exchange:
        headers.append((_EXCHANGE_HEADER, exchange.encode("utf-8", NAME_ENCODING_ERRORS)))
    if properties.raw:
        headers.append((RESERVED_HEADER_PREFIX + properties.protocol, properties.raw))
    return headers


def source_lead(exchange: str, protocol: str) -> tuple[int, bytes]:
    """The same for messages that differ in their property bytes: how many headers, and all up to those bytes."""
    lead = _named(RESERVED_HEADER_PREFIX + protocol)
    if not exchange:
        return 1, lead
    name = exchange.encode("utf-8", NAME_ENCODING_ERRORS)
    return 2, _named(_EXCHANGE_HEADER) + varint(len(name)) + name + lead


def _text(value: bytes) -> str:
    return value.decode("utf-8", NAME_ENCODING_ERRORS)


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _number(value: bytes) -> int:
    if len(value) > _DIGITS_MAX or not value.isdigit():
        raise ValueError(f"not a number: {value[:_DIGITS_MAX]!r}")
    return int(value)


def _octet(value: bytes) -> int:
    return min(_number(value), 255)


_READ: dict[str, Callable[[bytes], Any]] = {
    "priority": _octet, "expiration_ms": _number, "timestamp_s": _number, "correlation_id": bytes,
}  # fmt: skip
_TYPED = {header: (name, _READ.get(name, _text)) for header, name in TYPED_BY_HEADER.items()}


def neutral_of(header_block: bytes) -> NeutralProperties:
    """The inverse of `Properties.record_headers`, but for a user id, which stays a header (`TYPED_BY_HEADER`).

    A reserved header that is not what it should be is left out.
    """
    neutral = NeutralProperties(persistent=True)
    for name, value in decode_header_block(header_block):
        if name == USER_ID_HEADER or not name.startswith(RESERVED_HEADER_PREFIX):
            neutral.headers[name] = None if value is None else _text_or_bytes(value)
        elif value is not None and name in _TYPED:
            attribute, read = _TYPED[name]
            with suppress(ValueError):
                setattr(neutral, attribute, read(value))
    return neutral


register_decoder(RECORD_PROTOCOL, neutral_of)


# --- reading ----------------------------------------------------------------------------

_Source = tuple[str, str]
"""Exchange and protocol."""
_FOREIGN: _Source = ("", RECORD_PROTOCOL)


_Columns = tuple[list[int], list[str], list[bytes]]
"""Offsets, keys and bodies of a batch's records, as messages have them."""


class StreamReader:
    """Makes slabs of batches. The headers that lead to the property bytes mostly repeat, and are compared at once."""

    def __init__(self) -> None:
        self._lead = _NO_LEAD
        self._source: _Source = ("", RECORD_PROTOCOL)
        self._common: dict[str, Properties] = {}
        self._slabs: list[StreamSlab] = []
        self._begin(-1, self._source)

    def _begin(self, offset: int, source: _Source) -> None:
        """What is added now goes to slabs from `offset` on."""
        self._first = self._end = offset
        self._open_source = source
        self._keys: list[str] = []
        self._raws: list[bytes] = []
        self._bodies: list[bytes] = []

    def read(self, batches: Iterable[BytesLike]) -> tuple[list[StreamSlab], int]:
        """The slabs of some batches, and the offset behind the last of these, or before one that cannot be decoded,
        whatever its CRC says (producers compress, and nobody looks into it). Raises Damaged if that is the first.
        """
        end = 0
        self._begin(-1, self._source)
        self._slabs = []
        for batch in batches:
            header = parse_header(batch)
            if not header.is_control and header.record_count:
                try:
                    self._take(decode_fields(batch))
                except CorruptBatch as error:
                    if end:
                        break
                    raise Damaged(str(error), header.next_offset) from error
            end = header.next_offset
        self._close()
        return self._slabs, end

    def _take(self, fields: RecordFields) -> None:
        """Divide the records of a batch where what they must have in common changes."""
        offsets, blocks = fields.offsets, fields.header_blocks
        columns = offsets, _routing_keys(fields.keys), _bodies(fields.values)
        raws: list[bytes] = []
        start, source = 0, self._source
        last, raw = b"", b""
        lead = self._lead
        at = 1 + len(lead)
        contiguous = offsets[-1] - offsets[0] == len(offsets) - 1
        if contiguous and blocks.count(blocks[0]) == len(blocks):
            blocks = blocks[:1]  # one says it for all
        elif _are_foreign(blocks):
            self._lead, self._source = _NO_LEAD, _FOREIGN
            for begin, end in [(0, len(offsets))] if contiguous else _pieces(offsets):
                self._add(_FOREIGN, columns, blocks[begin:end], begin, end)
            return
        for index, block in enumerate(blocks):
            if block is not last:
                last = block
                size = -1
                if block[0] < 0x80 and block.startswith(lead, 1):
                    size, value = read_varint(block, at, len(block))
                    raw = block[value : value + size]
                if size < 0 or value + size > len(block):
                    raw = self._parse(block)
                    lead = self._lead
                    at = 1 + len(lead)
            if self._source != source or not (contiguous or not index or offsets[index - 1] + 1 == offsets[index]):
                self._add(source, columns, raws, start, index)
                start, source, raws = index, self._source, []
            raws.append(raw)
        if len(blocks) < len(offsets):
            source, raws = self._source, raws * len(offsets)
        self._add(source, columns, raws, start, len(offsets))

    def _add(self, source: _Source, columns: _Columns, raws: list[bytes], start: int, stop: int) -> None:
        """Records [start, stop), consecutive and from one source."""
        if start == stop:
            return
        offsets, keys, bodies = columns
        if offsets[start] != self._end or source != self._open_source:
            self._close()
            self._begin(offsets[start], source)
        self._keys += keys[start:stop]
        self._raws += raws
        self._bodies += bodies[start:stop]
        self._end += stop - start

    def _close(self) -> None:
        """Cut what came together into slabs that are not too long."""
        bodies = self._bodies
        if not bodies:
            return
        exchange, protocol = self._open_source
        common = self._common.get(protocol)
        if common is None:
            common = self._common[protocol] = Properties(protocol, b"", persistent=True)
        if len(bodies) <= _SLAB_MESSAGES_MAX and sum(map(len, bodies)) < _SLAB_BYTES_MAX:
            self._slabs.append(StreamSlab(self._first, exchange, common, bodies, self._keys, self._raws))
            return
        sizes = list(accumulate(map(len, bodies)))
        start = 0
        while start < len(bodies):
            full = sizes[start] - len(bodies[start]) + _SLAB_BYTES_MAX
            stop = min(bisect_left(sizes, full, start) + 1, start + _SLAB_MESSAGES_MAX, len(bodies))
            part = slice(start, stop)
            slab = StreamSlab(self._first + start, exchange, common, bodies[part], self._keys[part], self._raws[part])
            self._slabs.append(slab)
            start = stop

    def _parse(self, block: bytes) -> bytes:
        """The property bytes of a block that begins unlike the one before; `_source` and `_lead` are left behind."""
        if _are_foreign([block]):
            self._lead, self._source = _NO_LEAD, _FOREIGN
            return block
        exchange, lead = "", b""
        self._lead = _NO_LEAD
        for name, value in decode_header_block(block)[:2] if block != b"\0" else ():
            if name == _EXCHANGE_HEADER and value is not None and not lead and len(value) <= KEY_BYTES_MAX:
                exchange = _text(value)
                lead = _named(name) + varint(len(value)) + value
                continue
            protocol = name.removeprefix(RESERVED_HEADER_PREFIX)
            if protocol != name and value is not None and is_registered(protocol):
                self._source = (exchange, protocol)
                self._lead = lead + _named(name)
                return value
            break
        self._source = (exchange, RECORD_PROTOCOL)
        return block


def _are_foreign(blocks: list[bytes]) -> bool:
    """Whether header blocks are whole, and no header is one of ours: nothing else has to be known of them. False is no
    answer: then each has to be looked at.
    """
    return _RESERVED not in b"".join(blocks) and are_short(blocks)


def _pieces(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """[start, stop) of what is consecutive."""
    start = 0
    for at in range(1, len(offsets)):
        if offsets[at] != offsets[at - 1] + 1:
            yield start, at
            start = at
    yield start, len(offsets)


def _named(name: str) -> bytes:
    return varint(len(name)) + name.encode()


def _bodies(values: list[bytes | None]) -> list[bytes]:
    return [value or b"" for value in values] if None in values else cast(list[bytes], values)


def _routing_keys(keys: list[bytes | None]) -> list[str]:
    if None not in keys and max(map(len, cast(list[bytes], keys))) <= KEY_BYTES_MAX:
        return decode_keys(cast(list[bytes], keys))
    return list(map(_routing_key, keys))


def _routing_key(key: bytes | None) -> str:
    if key is None:
        return ""
    if len(key) > KEY_BYTES_MAX:
        return key[:KEY_BYTES_MAX].decode("utf-8", "ignore")
    return key.decode("utf-8", NAME_ENCODING_ERRORS)
