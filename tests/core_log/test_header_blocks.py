"""Header blocks: read as they were written, and from no bytes anything but CorruptBatch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.errors import CorruptBatch
from core_log.header_blocks import Header, are_short, decode_header_block
from core_log.record_batch import encode_headers
from core_log.varint import encode_varint

SHORT: list[list[Header]] = [
    [], [("a", b"1")], [("", b"")], [("a", None)], [("n" * 63, b"v" * 63), ("b", None), ("c", b"")],
    [(f"h{number}", b"v") for number in range(63)],
]  # fmt: skip
LONG: list[list[Header]] = [
    [("n" * 64, b"v")], [("a", b"v" * 64)], [("a", b"v" * 10_000), ("b", None)], [("h", b"v")] * 64,
]  # fmt: skip


@pytest.mark.parametrize("headers", SHORT + LONG)
def test_both_ways_and_cut_short_anywhere(headers: list[Header]) -> None:
    block = encode_headers(headers)
    assert decode_header_block(block) == headers
    assert are_short([block]) == (headers in SHORT)
    for wrong in (*(block[:end] for end in range(0, len(block), 1 + len(block) // 300)), block + b"\0"):
        assert not are_short([block, wrong])
        with pytest.raises(CorruptBatch):
            decode_header_block(wrong)


@pytest.mark.parametrize(
    "block",
    [
        b"\1", b"\3a", b"\2\1\0", b"\2\3\0\0", b"\2\0\3", b"\2\0\5", b"\x80", b"\x02\x80", b"\2\0\x80",
        encode_varint(-1), encode_varint(1 << 40), b"\2" + encode_varint(1 << 40) + b"a\0", b"\2\0" + encode_varint(-2),
        b"\2\0" + encode_varint(1 << 62) + b"abc", b"\x80" * 12,
    ],
)  # fmt: skip
def test_lengths_that_lie(block: bytes) -> None:
    assert not are_short([block])
    with pytest.raises(CorruptBatch):
        decode_header_block(block)


@given(st.binary(max_size=40) | st.lists(st.integers(0, 6), max_size=40).map(bytes))
def test_what_is_short_is_read(noise: bytes) -> None:
    try:
        headers = decode_header_block(noise)
    except CorruptBatch:
        assert not are_short([noise])
    else:
        assert decode_header_block(encode_headers(headers)) == headers


def test_changed_bytes() -> None:
    dice = random.Random(3)
    for headers in SHORT[1:] + LONG:
        block = bytearray(encode_headers(headers))
        for _ in range(300):
            changed = block.copy()
            changed[dice.randrange(len(block))] = dice.choice([0, 1, 2, 127, 128, 255, dice.randrange(256)])
            try:
                decode_header_block(bytes(changed))
            except CorruptBatch:
                assert not are_short([bytes(changed)])
