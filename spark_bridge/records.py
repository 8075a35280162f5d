"""Columns of rows as record batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from core_log.batch_header import NO_PRODUCER
from core_log.compression import Compression
from core_log.record_batch import NO_HEADERS, BatchBuilder, encode_headers
from spark_bridge.option_values import OptionError


class ColumnDraft:
    """The records of one batch while it is filled by columns; `size` is an upper bound in bytes, before compression."""

    __slots__ = ("_blocks", "_keys", "_values", "count", "size", "timestamp_ms")

    def __init__(self, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms
        self.count = 0
        self.size = 0
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._blocks: list[bytes] = []

    def add(
        self, values: list[bytes | None], keys: list[bytes | None] | None, blocks: list[bytes] | None, size: int
    ) -> None:
        """Put records in; without keys or header blocks they have none."""
        count = len(values)
        self._values += values
        self._keys += [None] * count if keys is None else keys
        self._blocks += [NO_HEADERS] * count if blocks is None else blocks
        self.count += count
        self.size += size

    def build(
        self, compression: Compression, producer: tuple[int, int, int] = NO_PRODUCER, attributes: int = 0
    ) -> bytes:
        """The batch, with base offset 0."""
        builder = BatchBuilder(0, -1, self.timestamp_ms, compression=compression, attributes=attributes)
        values, keys, blocks = self._values, self._keys, self._blocks
        if None not in keys and None not in values:
            builder.add_varied(0, keys, values, blocks)  # type: ignore[arg-type]
        else:
            cuts = [0, *(at for at in range(1, len(keys)) if (keys[at], blocks[at]) != (keys[at - 1], blocks[at - 1]))]
            for start, stop in pairwise([*cuts, len(keys)]):
                builder.add_run(start, keys[start], values[start:stop], blocks[start])
        return builder.build(producer)


def header_pairs(headers: Iterable[Mapping[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    """A row's headers. Raises `OptionError` for one without a name."""
    pairs = []
    for one in headers or ():
        if one is None or one["key"] is None:
            raise OptionError("a header is null, or its key is")
        pairs.append((one["key"], one["value"]))
    return pairs


def header_blocks(column: pa.Array) -> list[bytes]:
    """The header block of each row of a column of (key, value); null is none."""
    known: dict[tuple[tuple[str, bytes | None], ...], bytes] = {}
    found = []
    for row in column.to_pylist():
        if not row:
            found.append(NO_HEADERS)
            continue
        pairs = tuple(header_pairs(row))
        block = known.get(pairs)
        if block is None:
            if len(known) >= 1024:
                known.clear()
            block = known[pairs] = encode_headers(pairs)
        found.append(block)
    return found
