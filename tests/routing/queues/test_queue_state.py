"""What is received and not completed, as a start and a checkpoint work it out from the log."""

from __future__ import annotations

import random
import time

import pytest

from routing.queues.packed_ranges import from_bytes, offsets_of, pack, to_bytes
from routing.queues.queue_state import State, StateChanges
from routing.queues.settlement import COMPLETED_KEY, RECEIVED_KEY, encode_settled

QUEUE = 7


def folded(held: set[int], changes: list[tuple[bool, int, int]]) -> set[int]:
    """What is held after changes: whether received or completed, first offset and count."""
    state: State = {"held": to_bytes(pack((one, 1) for one in sorted(held)))} if held else {}
    known = StateChanges()
    for received, first, count in changes:
        known.control(RECEIVED_KEY if received else COMPLETED_KEY, encode_settled([(QUEUE, first, count)]))
    found = known.fold({QUEUE: state}, {QUEUE: pack([])}, {}).get(QUEUE, {})
    return set(offsets_of(from_bytes(found.get("held", b""))))


@pytest.mark.parametrize("seed", range(30))
def test_the_last_that_is_said_of_a_message_counts(seed: int) -> None:
    rng = random.Random(seed)
    expected = set(rng.sample(range(60), rng.randrange(30)))
    changes = [(rng.random() < 0.6, rng.randrange(60), rng.randrange(1, 9)) for _ in range(rng.randrange(40))]
    before = set(expected)
    for received, first, count in changes:
        said = set(range(first, first + count))
        expected = expected | said if received else expected - said
    assert folded(before, changes) == expected


def test_many_that_are_received_and_completed_one_by_one_take_no_time() -> None:
    """30,000 messages at QoS 2 that a session got one after the other kept a start for 20 s."""
    changes = [(True, offset, 1) for offset in range(0, 20_000, 2)]
    for offset in range(0, 20_000, 2):
        changes += [(False, offset, 1), (True, 20_000 + offset, 1)]
    began = time.process_time()
    assert folded(set(), changes) == set(range(20_000, 40_000, 2))
    assert time.process_time() - began < 3
