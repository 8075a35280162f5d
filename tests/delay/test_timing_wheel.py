"""The wheel against the plainest model there is: a list, sorted."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delay import timing_wheel
from delay.timing_wheel import TimingWheel


def drain(wheel: TimingWheel, now_ms: int, limit: int | None = None) -> list[int]:
    """All that is due at `now_ms`, taken in bites of `limit`."""
    due: list[int] = []
    while (next_ms := wheel.next_due_ms()) is not None and next_ms <= now_ms:
        bite = wheel.advance(now_ms, limit)
        assert limit is None or len(bite) <= limit
        due += bite
    return due + wheel.advance(now_ms, limit)


@pytest.mark.parametrize(
    ("tick_ms", "deadline_ms", "due_at_ms"),
    [
        (1, 7, 7),
        (10, 70, 70),
        (10, 71, 80),
        (10, 0, 0),
        (10, -5, 0),
        (1, 255, 255),
        (1, 256, 256),
        (1, 1 << 40, 1 << 40),
    ],
)
def test_due_at_the_end_of_its_tick_never_early(tick_ms: int, deadline_ms: int, due_at_ms: int) -> None:
    wheel = TimingWheel(tick_ms=tick_ms, slots=4, levels=2)
    wheel.add(deadline_ms, 1)
    if due_at_ms:
        assert drain(wheel, due_at_ms - 1) == []
        assert len(wheel) == 1
    assert drain(wheel, due_at_ms) == [1]
    assert len(wheel) == 0
    assert wheel.next_due_ms() is None


@pytest.mark.parametrize(("tick_ms", "slots", "levels"), [(0, 4, 1), (1, 3, 1), (1, 1, 1), (1, 4, 0), (1, 0, 1)])
def test_impossible_sizes_are_refused(tick_ms: int, slots: int, levels: int) -> None:
    with pytest.raises(ValueError, match="no such wheel"):
        TimingWheel(tick_ms=tick_ms, slots=slots, levels=levels)


def test_deadline_beyond_64_bits_is_refused_and_leaves_the_wheel_whole() -> None:
    wheel = TimingWheel()
    with pytest.raises(OverflowError):
        wheel.add(1 << 63, 1)
    wheel.add(5, 2)
    assert drain(wheel, 10) == [2]


def test_a_clock_that_steps_back_returns_nothing() -> None:
    wheel = TimingWheel(tick_ms=1)
    assert wheel.advance(100) == []
    wheel.add(50, 1)
    assert wheel.advance(40) == []
    assert wheel.advance(100) == [1]


def test_one_tick_keeps_the_order_of_adding_across_levels_and_bites() -> None:
    wheel = TimingWheel(tick_ms=1, slots=4, levels=2)
    for key in range(50):
        wheel.add(64, key)
    assert wheel.advance(64, 10) == []  # ten were moved down
    wheel.add(64, 50)  # queues up behind the forty others
    wheel.add(3, 51)  # long past
    assert drain(wheel, 64, 7) == list(range(52))


def test_a_bite_touches_no_more_than_its_limit() -> None:
    wheel = TimingWheel(tick_ms=1, slots=4, levels=2)
    for key in range(1000):
        wheel.add(1_000_000, key)
    bites = 0
    due: list[int] = []
    while len(due) < 1000:
        due += wheel.advance(1_000_000, 10)
        bites += 1
    assert due == list(range(1000))
    assert bites >= 200, "a thousand timers moved down at least once and returned, ten at a time"


def test_a_large_slot_is_moved_before_it_begins_and_not_when_it_does() -> None:
    wheel, begin_ms, count = TimingWheel(tick_ms=1), 3 << 16, 200_000
    wheel.add_many([begin_ms + at * 65_536 // count for at in range(count)], range(count))
    assert wheel.advance(2 << 16) == []
    bites = 0
    while (next_ms := wheel.next_due_ms()) is not None and next_ms < begin_ms:
        assert wheel.advance(next_ms, 2048) == []
        bites += 1
    assert count // 2048 < bites < count // 256
    for now_ms in range(begin_ms, begin_ms + 65_536, 16):
        due = wheel.advance(now_ms, 2048)
        assert due
        assert wheel.next_due_ms() == now_ms + 1, "something is still to be moved"
        assert due[-1] == ((now_ms - begin_ms + 1) * count - 1) // 65_536
    assert len(drain(wheel, begin_ms + 65_536)) + due[-1] + 1 == count


def test_years_of_silence_are_skipped_in_one_call() -> None:
    wheel = TimingWheel(tick_ms=1, slots=4, levels=2)
    wheel.add(1 << 45, 1)
    assert wheel.advance((1 << 45) - 1, 1) == []
    assert drain(wheel, 1 << 45, 1) == [1]


def test_cancelled_timers_give_their_memory_back() -> None:
    wheel = TimingWheel(tick_ms=1)
    tracemalloc.start()
    try:
        for key in range(50_000):
            wheel.add(10_000 + key, key)
            if key >= 100:
                wheel.cancel(key - 100)
        assert len(wheel) == 100
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert drain(wheel, 1_000_000) == list(range(49_900, 50_000))


def test_a_cancelled_key_may_come_back() -> None:
    wheel = TimingWheel(tick_ms=1)
    wheel.add(10, 1)
    wheel.add(20, 2)
    wheel.cancel(1)
    wheel.add(30, 1)
    assert drain(wheel, 29) == [2]
    assert drain(wheel, 30) == [1]


def test_with_all_cancelled_there_is_no_next_wake_up() -> None:
    wheel = TimingWheel(tick_ms=1)
    for key in range(3):
        wheel.add(1 << (10 * key), key)
    for key in range(3):
        wheel.cancel(key)
    assert wheel.next_due_ms() is None
    assert drain(wheel, 1 << 50) == []


def test_a_million_timers_cost_about_their_bytes() -> None:
    tracemalloc.start()
    try:
        wheel = TimingWheel(tick_ms=10)
        for key in range(100_000):
            wheel.add(key * 36, key)
        assert tracemalloc.get_traced_memory()[0] / 100_000 < 20
    finally:
        tracemalloc.stop()


def test_an_empty_wheel_and_one_with_a_timer_are_small() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        wheels = [TimingWheel() for _ in range(100)]
        assert (tracemalloc.get_traced_memory()[0] - before) / 100 < 1200
        for wheel in wheels:
            wheel.add(100_000, 1)
        assert (tracemalloc.get_traced_memory()[0] - before) / 100 < 1536
        for wheel in wheels:
            assert drain(wheel, 100_000) == [1]
        assert (tracemalloc.get_traced_memory()[0] - before) / 100 < 1200
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("deadlines_ms", "keys", "error"),
    [([1, 1 << 63], [1, 2], OverflowError), ([1, 2], [1, 1 << 63], OverflowError), ([1, 2], [1], ValueError)],
)
def test_add_many_adds_all_or_nothing(deadlines_ms: list[int], keys: list[int], error: type[Exception]) -> None:
    wheel = TimingWheel()
    with pytest.raises(error):
        wheel.add_many(deadlines_ms, keys)
    assert len(wheel) == 0
    assert wheel.next_due_ms() is None
    wheel.add_many([], [])
    assert wheel.next_due_ms() is None


def test_keep_asks_for_rising_keys_in_bites_and_gives_the_memory_back() -> None:
    wheel = TimingWheel(tick_ms=10)
    number = 100_000
    keys = [(key * 7919) % number for key in range(number)]
    wheel.add_many([key * 36 for key in keys], keys)
    wheel.add_many([1_000_000] * number, range(number, 2 * number))  # one slot of many bites
    asked: list[int] = []

    def survives(bite: list[int]) -> list[int]:
        assert bite == sorted(bite)
        assert len(bite) <= 1 << 15
        asked.extend(bite)
        return [key for key in bite if key % 1000 == 0]

    tracemalloc.start()
    try:
        wheel.keep(survives)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert sorted(asked) == list(range(2 * number))
    assert sorted(wheel.timers()) == sorted(
        [(key * 36, key) for key in range(0, number, 1000)]
        + [(1_000_000, key) for key in range(number, 2 * number, 1000)]
    )
    assert drain(wheel, 1_000_000)[-100:] == list(range(number, 2 * number, 1000))
    wheel.keep(lambda keys: [])
    assert wheel.next_due_ms() is None


def test_a_question_that_fails_leaves_the_wheel_whole() -> None:
    wheel = TimingWheel(tick_ms=1)
    wheel.add_many(range(1, 100_001), range(100_000))
    bites = 0

    def survives(keys: list[int]) -> list[int]:
        nonlocal bites
        bites += 1
        if bites == 2:
            raise OSError("no answer")
        return []

    with pytest.raises(OSError, match="no answer"):
        wheel.keep(survives)
    left = sorted(key for _, key in wheel.timers())
    assert len(wheel) == len(left) == 100_000 - (1 << 15)
    assert drain(wheel, 200_000) == left


@given(
    deadlines=st.lists(st.integers(0, 5000), max_size=300),
    tick_ms=st.sampled_from([1, 3, 10]),
    slots=st.sampled_from([2, 4, 16]),
    levels=st.integers(1, 3),
    limit=st.one_of(st.none(), st.integers(1, 20)),
    start_ms=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_one_jump_returns_all_in_order(
    deadlines: list[int], tick_ms: int, slots: int, levels: int, limit: int | None, start_ms: int
) -> None:
    wheel = TimingWheel(tick_ms, slots, levels, start_ms)
    for key, deadline_ms in enumerate(deadlines):
        wheel.add(deadline_ms, key)
    ticks = [max(start_ms // tick_ms, -(-deadline_ms // tick_ms)) for deadline_ms in deadlines]
    assert drain(wheel, 10_000, limit) == sorted(range(len(deadlines)), key=lambda key: (ticks[key], key))


LARGE = timing_wheel._LARGE, timing_wheel._AHEAD


class WheelMachine(RuleBasedStateMachine):
    """Add, cancel, advance in any order, in whole and in bites; a dict of key to tick is the model."""

    def teardown(self) -> None:
        timing_wheel._LARGE, timing_wheel._AHEAD = LARGE

    @initialize(
        tick_ms=st.sampled_from([1, 7]),
        slots=st.sampled_from([2, 4, 8]),
        levels=st.integers(1, 4),
        large=st.sampled_from([LARGE, (1, 2), (3, 1)]),
    )
    def start(self, tick_ms: int, slots: int, levels: int, large: tuple[int, int]) -> None:
        timing_wheel._LARGE, timing_wheel._AHEAD = large
        self.tick_ms = tick_ms
        self.now_ms = 0
        self.wheel = TimingWheel(tick_ms, slots, levels)
        self.waiting: dict[int, int] = {}
        self.key = 0

    @rule(after_ms=st.one_of(st.integers(-5, 40), st.integers(0, 100_000)), count=st.integers(1, 8))
    def add(self, after_ms: int, count: int) -> None:
        for _ in range(count):
            self.key += 1
            self.wheel.add(self.now_ms + after_ms, self.key)
            self.waiting[self.key] = -(-(self.now_ms + after_ms) // self.tick_ms)

    @rule(
        afters_ms=st.one_of(
            st.lists(st.one_of(st.integers(-5, 40), st.integers(0, 100_000)), max_size=60),
            st.tuples(st.integers(-5, 500), st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1]),
        )
    )
    def add_many(self, afters_ms: list[int]) -> None:
        keys = range(self.key + 1, self.key + 1 + len(afters_ms))
        self.key += len(afters_ms)
        deadlines_ms = [self.now_ms + after_ms for after_ms in afters_ms]
        self.wheel.add_many(deadlines_ms, keys)
        for key, deadline_ms in zip(keys, deadlines_ms):
            self.waiting[key] = -(-deadline_ms // self.tick_ms)

    @rule(divisor=st.integers(1, 6), rest=st.integers(0, 1))
    def keep(self, divisor: int, rest: int) -> None:
        asked: list[int] = []

        def survives(keys: list[int]) -> list[int]:
            assert keys == sorted(keys)
            asked.extend(keys)
            return [key for key in keys if key % divisor == rest]

        self.wheel.keep(survives)
        assert sorted(asked) == sorted(self.waiting)
        self.waiting = {key: tick for key, tick in self.waiting.items() if key % divisor == rest}

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.wheel.cancel(key)
        del self.waiting[key]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_and_add_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.wheel.cancel(key)
        self.wheel.add(self.now_ms, key)
        self.waiting[key] = -(-self.now_ms // self.tick_ms)

    @rule(by_ms=st.one_of(st.integers(0, 30), st.integers(0, 50_000)), limit=st.one_of(st.none(), st.integers(1, 5)))
    def advance_fully(self, by_ms: int, limit: int | None) -> None:
        self.now_ms += by_ms
        due = drain(self.wheel, self.now_ms, limit)
        self._take(due)
        assert all(tick > self.now_ms // self.tick_ms for tick in self.waiting.values())

    @rule(by_ms=st.integers(0, 200), limit=st.integers(1, 5))
    def advance_one_bite(self, by_ms: int, limit: int) -> None:
        self.now_ms += by_ms
        due = self.wheel.advance(self.now_ms, limit)
        assert len(due) <= limit
        self._take(due)

    def _take(self, due: list[int]) -> None:
        assert len(set(due)) == len(due)
        for key in due:
            assert self.waiting.pop(key) <= self.now_ms // self.tick_ms

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "wheel"):
            return
        assert len(self.wheel) == len(self.waiting)
        next_ms = self.wheel.next_due_ms()
        if self.waiting:
            assert next_ms is not None
            assert next_ms <= max(min(self.waiting.values()), self.now_ms // self.tick_ms) * self.tick_ms
        else:
            assert next_ms is None or next_ms >= 0


TestWheelMachine = WheelMachine.TestCase
TestWheelMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=200, deadline=None)
@given(
    deadlines=st.lists(st.integers(0, 400), max_size=60, unique=True),
    now_ms=st.integers(0, 300),
    cancelled=st.sets(st.integers(0, 59), max_size=5),
    after=st.integers(0, 20),
    length=st.integers(0, 40),
    tick_ms=st.sampled_from([1, 3]),
)
def test_what_is_due_soon_can_be_asked_for_and_waits_on(
    deadlines: list[int], now_ms: int, cancelled: set[int], after: int, length: int, tick_ms: int
) -> None:
    wheel = TimingWheel(tick_ms=tick_ms, slots=64, levels=3)
    wheel.add_many(deadlines, range(len(deadlines)))
    gone = set(drain(wheel, now_ms))
    for key in sorted(cancelled - gone):
        if key < len(deadlines):
            wheel.cancel(key)
            gone.add(key)
    after_ms, until_ms = now_ms + after, now_ms + after + length
    count = len(wheel)
    found = wheel.between(after_ms, until_ms, 1000)
    ticks = [-(-deadlines[key] // tick_ms) for key in found]
    assert ticks == sorted(ticks)
    assert wheel.between(after_ms, until_ms, 2) == found[:2]
    expected = {
        key
        for key, deadline_ms in enumerate(deadlines)
        if key not in gone and after_ms // tick_ms < -(-deadline_ms // tick_ms) <= until_ms // tick_ms
    }
    assert set(found) <= expected
    # A turn of the lowest level, and the one after it in the same turn of the next.
    turn = now_ms // tick_ms | 63
    if until_ms // tick_ms <= turn:
        assert set(found) == expected
    assert len(wheel) == count
    assert set(drain(wheel, 1000)) == set(range(len(deadlines))) - gone
