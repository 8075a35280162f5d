"""What a log knows of idempotent producers, against a model that remembers everything."""

from __future__ import annotations

import random

import msgpack
import pytest

from core_log.batch_header import BatchHeader
from core_log.errors import CoordinatorFenced, OutOfOrderSequence, ProducerFenced
from core_log.producer_states import REMEMBERED, ProducerStates, Written

WRAP = 1 << 31


def header(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, 0, count - 1, 0, 0, producer, epoch, sequence, count)


def noted(*batches: BatchHeader) -> ProducerStates:
    states, offset = ProducerStates(), 0
    for batch in batches:
        assert states.check(batch) is None
        states.note(batch, offset, 1000)
        offset += batch.last_offset_delta + 1
    assert states.offset == offset
    return states


def test_numbers_go_on() -> None:
    states = noted(header(0, 3), header(3), header(4, 2))
    assert states.check(header(6)) is None
    for wrong in (5, 7, 8):
        with pytest.raises(OutOfOrderSequence):
            states.check(header(wrong, 3))


def test_a_batch_that_is_there_says_where_and_only_the_last_are_remembered() -> None:
    states = noted(*(header(2 * number, 2) for number in range(8)))
    for number in range(8 - REMEMBERED, 8):
        assert states.check(header(2 * number, 2)) == Written(2 * number, 2 * number + 1, 2 * number, 2 * number + 2)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(2 * (7 - REMEMBERED), 2))
    with pytest.raises(OutOfOrderSequence):
        states.check(header(14, 1))


def test_numbers_begin_anew_after_the_last() -> None:
    states = noted(header(WRAP - 2, 1), header(WRAP - 1, 3), header(2, 1))
    assert states.check(header(WRAP - 1, 3)) == Written(WRAP - 1, 1, 1, 4)
    assert states.check(header(3)) is None


def test_a_new_epoch_begins_with_nothing_and_ends_the_old_one() -> None:
    states = noted(header(0), header(1))
    with pytest.raises(OutOfOrderSequence):
        states.check(header(2, epoch=1))
    assert states.check(header(0, epoch=1)) is None
    states.note(header(0, epoch=1), 2, 1000)
    with pytest.raises(ProducerFenced):
        states.check(header(2))
    assert states.check(header(1, epoch=1)) is None


def test_who_is_not_known_may_begin_anywhere_and_who_is_silent_is_forgotten() -> None:
    states = noted(header(500))
    states.note(header(0, producer=8), 1, 5000)
    states.forget(2000)
    assert len(states) == 1
    assert states.check(header(3)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(header(3, producer=8))


def test_a_marker_is_no_older_than_its_producer_and_than_the_marker_before() -> None:
    states = noted(header(0, epoch=2), header(1, epoch=2))
    end = header(-1, epoch=2)
    states.check_marker(end, 4)
    states.note_marker(end, 4, 2, 1000)
    assert (states.offset, [one.coordinator_epoch for one in states.active()]) == (3, [4])
    again, _ = ProducerStates.decode(states.encode(0))
    for known in (states, again):
        known.check_marker(end, 4)
        known.check_marker(header(-1, epoch=3), 5)
        known.check_marker(header(-1, producer=8), 0)
        for late in (end, header(-1, epoch=3)):
            with pytest.raises(CoordinatorFenced):
                known.check_marker(late, 3)
        with pytest.raises(ProducerFenced):
            known.check_marker(header(-1, epoch=1), 4)
        assert known.check(header(2, epoch=2)) is None, "its numbers go on"


def test_whom_another_ended_is_fenced() -> None:
    states = noted(header(0))
    states.note_marker(header(-1, epoch=1), 0, 1, 1000)
    with pytest.raises(ProducerFenced):
        states.check(header(1))
    states.note(header(0, epoch=2), 2, 1000)
    with pytest.raises(CoordinatorFenced):
        states.check_marker(header(-1, epoch=2), -1)


def test_what_was_written_down_before_markers_were_noted_is_understood() -> None:
    content = msgpack.packb((1, 5, 0, [(7, 0, 1000, [(0, 4, 0, 5)])]))
    states, _ = ProducerStates.decode(content)
    assert states.check(header(0, 5)) == Written(0, 4, 0, 5)
    states.check_marker(header(-1), 0)


def test_what_is_written_down_is_what_is_known() -> None:
    dice = random.Random(3)
    states, offset, next_of = ProducerStates(), 0, dict.fromkeys(range(20), 0)
    for _ in range(500):
        producer, count = dice.randrange(20), dice.randrange(1, 5)
        batch = header(next_of[producer], count, producer=producer)
        states.note(batch, offset, 1000)
        next_of[producer] += count
        offset += count
    again, epoch = ProducerStates.decode(states.encode(9))
    assert (again.offset, epoch, again.encode(9)) == (states.offset, 9, states.encode(9))
    for content in (b"", b"\xc0", states.encode(9)[:-3], b"\x94\x03\0\0\x90"):
        with pytest.raises(ValueError):
            ProducerStates.decode(content)
