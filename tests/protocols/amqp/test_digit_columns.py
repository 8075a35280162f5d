"""Numbers out of columns of digits."""

from __future__ import annotations

import random

import pytest

from protocols.amqp.adapter_properties import ruled_facts
from protocols.amqp.digit_columns import DIGITS_MAX, LANES_MAX, combined
from routing.facts import DELAY_MS_MAX, pack


@pytest.mark.parametrize("places", range(1, DIGITS_MAX + 1))
@pytest.mark.parametrize("count", [1, 2, 17, 500, LANES_MAX])
def test_numbers_are_those_that_the_digits_say(places: int, count: int) -> None:
    rolled = random.Random(places * count)
    numbers = [rolled.choice((0, rolled.randrange(10**places), 10**places - 1)) for _ in range(count)]
    digits = [bytes(column) for column in zip(*(b"%0*d" % (places, number) for number in numbers), strict=True)]
    assert combined(7, 9, digits, 1, b"") == [7 + (number << 9) for number in numbers]
    low = rolled.randbytes(count)
    expected = [513 + (number << 9) + (one << 1) for number, one in zip(numbers, low, strict=True)]
    assert combined(513, 9, digits, 1, low) == expected


@pytest.mark.parametrize("count", [1, 15, 16, 4096, 4097])
@pytest.mark.parametrize("places", [1, 5, 8, 9])
def test_facts_of_many_are_those_of_each(count: int, places: int) -> None:
    rolled = random.Random(count)
    lives = [rolled.randrange(10**places) for _ in range(count)]
    priorities = rolled.randbytes(count)
    digits = [bytes(column) for column in zip(*(b"%0*d" % (places, life) for life in lives), strict=True)]
    for delay_ms in (0, 5, 1 << 40):
        like = pack(True, 3, 4, delay_ms)
        of_both = [pack(True, *both, delay_ms) for both in zip(priorities, lives, strict=True)]
        assert ruled_facts(like, priorities, digits, []) == of_both
        assert ruled_facts(like, b"", digits, []) == [pack(True, 3, life, delay_ms) for life in lives]
        assert ruled_facts(like, priorities, [], []) == [pack(True, one, 4, delay_ms) for one in priorities]


@pytest.mark.parametrize("count", [1, 16, 300])
def test_delays_are_those_of_each_within_the_limits(count: int) -> None:
    rolled = random.Random(count)
    delays = [rolled.choice((-5, 0, 7, 1 << 40, DELAY_MS_MAX, DELAY_MS_MAX + 1, 1 << 62)) for _ in range(count)]
    kept = [max(0, min(delay, DELAY_MS_MAX)) for delay in delays]
    priorities = rolled.randbytes(count)
    digits = [rolled.choice((b"0", b"9")) * count]
    life = int(digits[0][:1])
    like = pack(True, 3, 4, 99)
    assert ruled_facts(like, b"", [], delays) == [pack(True, 3, 4, delay) for delay in kept]
    assert ruled_facts(like, priorities, digits, delays) == [
        pack(True, priority, life, delay) for priority, delay in zip(priorities, kept, strict=True)
    ]
