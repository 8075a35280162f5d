"""How messages look as records of a home partition, both ways.

    key       routing key
    value     body
    headers   `d` destination set id, uint32
              `x` exchange
              `p` protocol, a zero byte, persistent (0 or 1), a byte of no meaning, the protocol's own property bytes

Neighbours are read back as one slab if they can be, whatever their keys and properties: a backlog of varied messages is
as cheap to hand out as it was to take in.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add, itemgetter, ne
from typing import cast

from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.record_batch import RecordRun, decode_header_block, encode_headers
from core_log.record_fields import RecordFields, decode_fields
from core_log.varint import varint
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab, decode_keys
from routing.queues.slab_cache import CachedSlab
from routing.runs import Run

_REMEMBERED_MAX = 1024
_KEYS_REMEMBERED_MAX = 8192
_KEY_REMEMBERED_BYTES_MAX = 256
_LONG_RUN = 16
"""Records of one key and one set of properties that are worth a slab of their own."""
_LONG = bytes(_LONG_RUN - 1)
_SET_ID_END = 8
_SET_ID = b"\x06\x02d\x08"
"""Count 3, key length 1, "d", value length 4: one byte each, zigzag varints."""
_PROPERTIES_NAME = b"\x02p"


def encode_key(key: str) -> bytes:
    """A routing key as it stands in the log."""
    return key.encode("utf-8", NAME_ENCODING_ERRORS)


class _EncodedKeys(dict[str, bytes]):
    """What `encode_key` makes of keys; those that come again are encoded once."""

    __slots__ = ()

    def __missing__(self, key: str) -> bytes:
        if len(self) >= _KEYS_REMEMBERED_MAX:
            self.clear()
        encoded = encode_key(key)
        if len(encoded) <= _KEY_REMEMBERED_BYTES_MAX:
            self[key] = encoded
        return encoded


_encoded_keys = _EncodedKeys()


def set_id_of(header_block: bytes) -> int:
    """The destination set id in a header block. Raises CorruptBatch."""
    if header_block[:4] != _SET_ID:
        raise CorruptBatch("a record of a home partition names no destination set")
    return int.from_bytes(header_block[4:_SET_ID_END], "big")


def _pieces(fields: RecordFields) -> Iterator[tuple[int, int]]:
    """[start, stop) of the messages of consecutive offsets: what has no key is the directory."""
    offsets, keys, _, _ = fields
    count = len(offsets)
    start = 0
    if count and keys[0] is None and None not in keys[1:] and offsets[-1] - offsets[0] == count - 1:
        yield 1, count
        return
    for at in range(1, count + 1):
        if at == count or keys[at] is None or keys[at - 1] is None or offsets[at] != offsets[at - 1] + 1:
            if keys[start] is not None:
                yield start, at
            start = at


class RecordWriter:
    """Makes runs of records of the slabs for one destination set."""

    __slots__ = ("_blocks", "_prefixes", "_set_id")

    def __init__(self, set_id: int) -> None:
        self._set_id = set_id.to_bytes(4, "big")
        self._blocks: dict[tuple[str, Properties], bytes] = {}
        self._prefixes: dict[str, bytes] = {}

    def run(self, first_offset: int, slab: Slab) -> Run:
        """A slab as records from `first_offset` on."""
        keys: bytes | list[bytes]
        keys = encode_key(slab.routing_key) if slab.keys is None else list(map(_encoded_keys.__getitem__, slab.keys))
        blocks = self._block(slab) if slab.raws is None else self._varied_blocks(slab, slab.raws)
        return Run(first_offset, keys, blocks, slab.bodies, slab.size)

    def _block(self, slab: Slab) -> bytes:
        key = (slab.exchange, slab.properties)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= _REMEMBERED_MAX:
                self._blocks.clear()
            tag = slab.properties.log_tag
            block = self._blocks[key] = self._prefix(slab.exchange) + varint(len(tag)) + tag
        return block

    def _varied_blocks(self, slab: Slab, raws: list[bytes]) -> list[bytes]:
        common, prefix = slab.properties.common_tag, self._prefix(slab.exchange)
        sizes = list(map(len, raws))
        heads = {size: prefix + varint(len(common) + size) + common for size in set(sizes)}
        return list(map(add, map(heads.__getitem__, sizes), raws))

    def _prefix(self, exchange: str) -> bytes:
        """A block up to the length of the properties."""
        prefix = self._prefixes.get(exchange)
        if prefix is None:
            if len(self._prefixes) >= _REMEMBERED_MAX:
                self._prefixes.clear()
            name = exchange.encode("utf-8", NAME_ENCODING_ERRORS)
            whole = encode_headers([("d", self._set_id), ("x", name), ("p", b"")])
            prefix = self._prefixes[exchange] = whole[:-1]
        return prefix


class SlabReader:
    """Makes slabs of the records of a home partition; equal properties give equal objects while remembered."""

    def __init__(self) -> None:
        self._between = b"\0"
        self._exchange = ""
        self._common_tag = b"\0"
        self._common: dict[bytes, Properties] = {}
        self._parsed: dict[bytes, tuple[str, Properties]] = {}
        self._last_key: tuple[bytes | None, str] = None, ""

    def read(self, batch: BytesLike) -> list[CachedSlab]:
        """The slabs of a data batch, without its directory. Raises CorruptBatch."""
        fields = decode_fields(batch)
        slabs: list[CachedSlab] = []
        try:
            for start, stop in _pieces(fields):
                self._read_piece(fields, start, stop, slabs)
        except IndexError:
            raise CorruptBatch("a record of a home partition lacks its headers") from None
        return slabs

    def _read_piece(self, fields: RecordFields, start: int, stop: int, slabs: list[CachedSlab]) -> None:
        """Messages of consecutive offsets: long runs of equals by themselves, the others together."""
        keys, blocks = cast(list[bytes], fields.keys), fields.header_blocks
        # A byte for each record but the first: whether it is like the one before it, found without a loop.
        unlike = bytes(map(ne, blocks[start + 1 : stop], blocks[start:stop]))
        unlike_keys = bytes(map(ne, keys[start + 1 : stop], keys[start:stop]))
        both = int.from_bytes(unlike, "big") | int.from_bytes(unlike_keys, "big")
        unlike = both.to_bytes(len(unlike), "big")
        at = start
        while (found := unlike.find(_LONG, at - start)) >= 0:
            first, end = start + found, unlike.find(1, found)
            end = stop if end < 0 else start + end + 1
            self._read_varied(fields, at, first, slabs)
            values = fields.values[first:end]
            slabs.append(
                self._uniform(RecordRun(fields.offsets[first], end - first, keys[first], blocks[first], values))
            )
            at = end
        self._read_varied(fields, at, stop, slabs)

    def _read_varied(self, fields: RecordFields, start: int, stop: int, slabs: list[CachedSlab]) -> None:
        blocks = fields.header_blocks[start:stop]
        if blocks and blocks.count(blocks[0]) == len(blocks):
            raws = [self._raw(blocks[0])] * len(blocks)
            self._join(fields, start, raws, (self._exchange, self._common_tag), slabs)
            return
        alike = self._raws_alike(blocks) if len(blocks) >= _LONG_RUN else None
        if alike is not None:
            self._join(fields, start, alike, (self._exchange, self._common_tag), slabs)
            return
        raws = []
        add_raw = raws.append
        between, common = self._between, self._common_tag
        tag_at = _SET_ID_END + len(between)
        source = self._exchange, common
        for at, block in enumerate(blocks, start):
            if block.startswith(between, _SET_ID_END) and block.startswith(_SET_ID):
                tag = tag_at + 1 if block[tag_at] < 128 else tag_at + 2
                if block.startswith(common, tag):
                    add_raw(block[tag + len(common) :])
                    continue
            raw = self._raw(block)
            between, common = self._between, self._common_tag
            tag_at = _SET_ID_END + len(between)
            if (self._exchange, common) != source:
                self._join(fields, at - len(raws), raws, source, slabs)
                raws.clear()
                source = self._exchange, common
            add_raw(raw)
        self._join(fields, stop - len(raws), raws, source, slabs)

    def _raws_alike(self, blocks: list[bytes]) -> list[bytes] | None:
        """The property bytes of blocks that differ in nothing else, cut out without a loop; None if they do."""
        self._raw(blocks[0])
        common = self._common_tag
        at = _SET_ID_END + len(self._between)
        if min(blocks)[:at] != max(blocks)[:at]:  # what these two begin with, all others do that sort between them
            return None
        sizes = bytes(map(itemgetter(at), blocks))
        start = at + 1 if sizes.isascii() else at + 2
        if start > at + 1 and min(sizes) < 128:
            return None
        end = start + len(common)
        if set(map(itemgetter(slice(start, end)), blocks)) != {common}:
            return None
        return list(map(itemgetter(slice(end, None)), blocks))

    def one(self, run: RecordRun) -> CachedSlab:
        """A slab of a run of one whose like may never be seen again. Raises CorruptBatch."""
        raw = self._raw(run.header_block)
        common = self._common.get(self._common_tag) or Properties.from_log_tag(self._common_tag)
        name, key = self._last_key
        if run.key != name:
            key = (run.key or b"").decode("utf-8", NAME_ENCODING_ERRORS)
            self._last_key = run.key, key
        body = run.values[0] or b""
        return CachedSlab(run.first_offset, Slab(self._exchange, key, common, [body], len(body), raws=[raw]), 0)

    def _uniform(self, run: RecordRun) -> CachedSlab:
        exchange, properties = self._parse(run.header_block)
        key = (run.key or b"").decode("utf-8", NAME_ENCODING_ERRORS)
        bodies = [value or b"" for value in run.values] if None in run.values else cast(list[bytes], run.values)
        return CachedSlab(run.first_offset, Slab(exchange, key, properties, bodies), 0)

    def _join(
        self, fields: RecordFields, start: int, raws: list[bytes], source: tuple[str, bytes], slabs: list[CachedSlab]
    ) -> None:
        """Messages of one exchange, and of properties that have something in common, as a slab."""
        stop = start + len(raws)
        if not raws:
            return
        names, values = cast(list[bytes], fields.keys[start:stop]), fields.values[start:stop]
        if raws.count(raws[0]) == names.count(names[0]) == len(raws):
            run = RecordRun(fields.offsets[start], len(raws), names[0], fields.header_blocks[start], values)
            slabs.append(self._uniform(run))
        else:
            exchange, common_tag = source
            keys = decode_keys(names)
            bodies = [value or b"" for value in values] if None in values else cast(list[bytes], values)
            same_key = keys.count(keys[0]) == len(keys)
            common = self._common.get(common_tag) or Properties.from_log_tag(common_tag)
            slab = Slab(exchange, keys[0], common, bodies, keys=None if same_key else keys, raws=raws.copy())
            slabs.append(CachedSlab(fields.offsets[start], slab, 0))

    def _raw(self, block: bytes) -> bytes:
        """The property bytes of a block; exchange and what the properties have in common are left in `self`."""
        set_id_of(block)
        if not block.startswith(self._between, _SET_ID_END):
            self._exchange, _ = self._parse(block)
            name = self._exchange.encode("utf-8", NAME_ENCODING_ERRORS)
            self._between = encode_headers([("x", name)])[1:] + _PROPERTIES_NAME
        at = _SET_ID_END + len(self._between)
        while block[at : at + 1] >= b"\x80":
            at += 1
        tag = block[at + 1 :]
        if not tag.startswith(self._common_tag):
            properties = Properties.from_log_tag(tag)
            if len(self._common) >= _REMEMBERED_MAX:
                self._common.clear()
            self._common_tag = properties.common_tag
            self._common[self._common_tag] = properties
        return tag[len(self._common_tag) :]

    def _parse(self, block: bytes) -> tuple[str, Properties]:
        """Exchange and properties of a header block; equal blocks give the same objects."""
        parsed = self._parsed.get(block)
        if parsed is None:
            if len(self._parsed) >= _REMEMBERED_MAX:
                self._parsed.clear()
            headers = decode_header_block(block)
            names = [name for name, _ in headers]
            if names != ["d", "x", "p"] or headers[1][1] is None or headers[2][1] is None:
                raise CorruptBatch("a record of a home partition lacks its headers")
            exchange = headers[1][1].decode("utf-8", NAME_ENCODING_ERRORS)
            parsed = self._parsed[block] = (exchange, Properties.from_log_tag(headers[2][1]))
        return parsed
