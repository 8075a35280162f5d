"""Control records: to bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.queues.packed_ranges import merged, unpack
from routing.queues.settlement import (
    DESTINATIONS_KEY,
    SETTLED_KEY,
    decode_destinations,
    decode_settled,
    decode_sizes,
    encode_destinations,
    encode_settled,
    encode_sizes,
    packed_settled,
    unpack_sizes,
)

_UINT32 = st.integers(0, (1 << 32) - 1)


def test_keys_are_not_those_of_transaction_markers() -> None:
    assert DESTINATIONS_KEY == b"\0\0\x4d\x01"
    assert SETTLED_KEY == b"\0\0\x4d\x02"


@pytest.mark.parametrize(
    ("set_id", "queue_ids", "value"),
    [
        (1, (), b"\0\0\0\1"),
        (1, (2, 3), b"\0\0\0\1\0\0\0\2\0\0\0\3"),
        ((1 << 32) - 1, (0,), b"\xff\xff\xff\xff\0\0\0\0"),
    ],
)
def test_destinations(set_id: int, queue_ids: tuple[int, ...], value: bytes) -> None:
    assert encode_destinations(set_id, queue_ids) == value
    assert decode_destinations(value) == (set_id, queue_ids)


@pytest.mark.parametrize(
    ("settled", "value"),
    [
        ([], b""),
        ([(1, 2, 3)], b"\0\0\0\1" + b"\0" * 7 + b"\2" + b"\0\0\0\3"),
        ([(7, 1 << 40, 1)], b"\0\0\0\7\0\0\1\0\0\0\0\0\0\0\0\1"),
    ],
)
def test_settled(settled: list[tuple[int, int, int]], value: bytes) -> None:
    assert encode_settled(settled) == value
    assert list(decode_settled(value)) == settled


@given(_UINT32, st.lists(_UINT32, max_size=50, unique=True).map(tuple))
def test_destinations_round_trip(set_id: int, queue_ids: tuple[int, ...]) -> None:
    assert decode_destinations(encode_destinations(set_id, queue_ids)) == (set_id, queue_ids)


def test_a_queue_that_is_named_twice_is_one() -> None:
    assert decode_destinations(encode_destinations(1, (3, 2, 3))) == (1, (3, 2))


@given(st.lists(st.tuples(_UINT32, st.integers(0, (1 << 63) - 1), st.integers(1, (1 << 32) - 1)), max_size=50))
def test_settled_round_trip(settled: list[tuple[int, int, int]]) -> None:
    assert list(decode_settled(encode_settled(settled))) == settled


def test_more_than_32_bits_of_messages_are_settled_in_pieces() -> None:
    count = (1 << 33) + 5
    pieces = list(decode_settled(encode_settled([(9, 100, count)])))
    assert sum(piece[2] for piece in pieces) == count
    position = 100
    for queue_id, first, number in pieces:
        assert (queue_id, first) == (9, position)
        position += number


def test_trailing_bytes_are_ignored() -> None:
    assert list(decode_settled(encode_settled([(1, 2, 3)]) + b"\0" * 15)) == [(1, 2, 3)]
    assert decode_destinations(encode_destinations(1, (2,)) + b"\0\0\0") == (1, (2,))


@given(st.lists(st.tuples(_UINT32, st.integers(0, (1 << 63) - 1), st.lists(_UINT32, max_size=9)), max_size=20))
def test_sizes_round_trip(noted: list[tuple[int, int, list[int]]]) -> None:
    encoded = encode_sizes(noted)
    assert [(queue_id, first, list(unpack_sizes(one))) for queue_id, first, one in decode_sizes(encoded)] == noted
    assert len(list(decode_sizes(encoded + b"\0" * 15))) == len(noted)


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 1 << 47), st.sampled_from([1, 2, 3, 70, 1 << 17])), max_size=30
    ),
    st.booleans(),
)
def test_packed_settlements_are_the_same(settled: list[tuple[int, int, int]], alike: bool) -> None:
    if alike:  # as of a queue that settles one here and one there
        settled = [(7, first, count % 255 + 1) for _, first, count in settled]
    wanted: dict[int, list[tuple[int, int]]] = {}
    for queue_id, first, count in settled:
        wanted.setdefault(queue_id, []).append((first, count))
    found = packed_settled(encode_settled(settled))
    assert {one: merged(unpack(packed)) for one, packed in found} == {one: merged(all_) for one, all_ in wanted.items()}
    assert len(found) == len(wanted), "each queue once"
