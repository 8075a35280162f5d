"""Numbers read from columns of digits, all at once: for many messages, at a third of what `int` takes for each.

A column is the digits of one place, a byte a number. Every number gets a *lane* of 8 bytes in one large integer; there
eight digits become pairs, the pairs fours, the fours one number, each with one multiplication for all lanes. What a
lane carries over falls where the next mask takes it away.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from sys import byteorder

LANE_BYTES = 8
DIGITS_MAX = 8
LANES_MAX = 4096
FEW = 16
"""For fewer numbers one after the other is as quick."""


def _in_all_lanes(value: int) -> int:
    return int.from_bytes(value.to_bytes(LANE_BYTES, "little") * LANES_MAX, "little")


_DIGITS = _in_all_lanes(0x0F0F0F0F0F0F0F0F)
_PAIRS = _in_all_lanes(0x00FF00FF00FF00FF)
_FOURS = _in_all_lanes(0x0000FFFF0000FFFF)
_NUMBERS = _in_all_lanes(0x00000000FFFFFFFF)


def combined(base: int, shift: int, digits: Sequence[bytes], low_shift: int, low: bytes) -> list[int]:
    """`base + (number << shift) + (low << low_shift)` for each number and each byte of `low`, which may be empty.

    At most `DIGITS_MAX` columns, the first that of the highest place, and `LANES_MAX` numbers. All that belongs to a
    lane must fit into it, and `shift` is the greater one.
    """
    count = len(digits[0])
    lanes = bytearray(LANE_BYTES * count)
    for place, column in enumerate(digits, LANE_BYTES - len(digits)):
        lanes[place::LANE_BYTES] = column
    numbers = int.from_bytes(lanes, "little") & _DIGITS
    numbers = (numbers * (10 << 8 | 1) >> 8) & _PAIRS
    numbers = (numbers * (100 << 16 | 1) >> 16) & _FOURS
    numbers = (numbers * (10_000 << 32 | 1) >> 32) & _NUMBERS
    numbers <<= shift - low_shift
    if low:
        lanes = bytearray(LANE_BYTES * count)
        lanes[::LANE_BYTES] = low
        numbers += int.from_bytes(lanes, "little")
    numbers <<= low_shift
    numbers += int.from_bytes(base.to_bytes(LANE_BYTES, "little") * count, "little")
    found = array("Q")
    found.frombytes(numbers.to_bytes(LANE_BYTES * count, "little"))
    if byteorder == "big":
        found.byteswap()
    return found.tolist()
