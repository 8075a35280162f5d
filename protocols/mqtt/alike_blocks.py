"""Property blocks of publishes that are built like others but never come again: each has a time of its own, say.

A block is compared with one that was checked before and begins alike: identifiers and lengths, all that is not a value,
by one operation on the whole. What is left to check are the texts among the values. Only blocks in ASCII can be
recognised, and none with a response topic, which may be wrong in ways of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from protocols.mqtt.properties import Property

_USER, _CORRELATION, _EXPIRY = int(Property.USER_PROPERTY), int(Property.CORRELATION_DATA), int(Property.MESSAGE_EXPIRY)
_STRINGS = {_USER: 2, int(Property.CONTENT_TYPE): 1, _CORRELATION: 1}
"""How many of them a property has."""
_NUMBERS = {_EXPIRY: 4, int(Property.TOPIC_ALIAS): 2}
"""Bytes of what the broker obeys and does not pass on."""
_START_BYTES = 4
"""Length of the block, first identifier and its length: most blocks that begin alike are alike."""
_BLUEPRINTS_MAX = 1024
_MISSES_MAX = 32


class _Blueprint:
    """What blocks that are alike have in common."""

    __slots__ = ("fixed", "mask", "misses", "numbers", "size", "start", "texts", "zeros")

    def __init__(self, block: bytes, start: int, mask: bytes, texts: list[slice], numbers: dict[int, int]) -> None:
        self.size = len(block)
        self.start = start
        self.mask = int.from_bytes(mask, "big")
        self.fixed = int.from_bytes(block, "big") & self.mask
        # With two slices the getter answers with a tuple, whatever there is between them.
        self.texts: Callable[[bytes], Any] = itemgetter(slice(0, 0), *texts, slice(0, 0))
        free, in_texts = mask.count(0), sum(one.stop - one.start for one in texts)
        self.zeros = block.count(0) if free == in_texts and block.isascii() else -1
        """How many there are in each of them, if what differs are texts alone, and the rest is no reason either to look
        at these by themselves."""
        self.numbers = numbers
        self.misses = 0

    def read(self, block: bytes) -> tuple[int, int | None, bytes] | None:
        """See `read_alike`."""
        if len(block) != self.size or int.from_bytes(block, "big") & self.mask != self.fixed:
            self.misses += 1
            return None
        if self.zeros >= 0:
            if block.count(0) != self.zeros or not block.isascii():
                return None
        else:
            text: bytes = b"".join(self.texts(block))
            if b"\0" in text or not text.isascii():
                return None
        if not self.numbers:
            return 0, None, block[self.start :]
        alias, expiry_s, rest, kept = 0, None, b"", self.start
        for identifier, at in self.numbers.items():
            stop = at + 1 + _NUMBERS[identifier]
            number = int.from_bytes(block[at + 1 : stop], "big")
            if identifier == _EXPIRY:
                expiry_s = number
            elif number:
                alias = number
            else:
                return None
            rest += block[kept:at]
            kept = stop
        return alias, expiry_s, rest + block[kept:]


_blueprints: dict[bytes, _Blueprint | None] = {}
"""By how blocks begin; None where the like of a block cannot be recognised."""


def read_alike(block: bytes) -> tuple[int, int | None, bytes] | None:
    """What a block says, with its length in front, if one like it was found to be in order: as in a `PublishBlock`.
    None for any other, of which nothing is known.
    """
    blueprint = _blueprints.get(block[:_START_BYTES])
    return None if blueprint is None else blueprint.read(block)


def note_alike(block: bytes) -> None:
    """A block, with its length in front, was checked: recognise others by it, if that can be."""
    start = block[:_START_BYTES]
    known = _blueprints.get(start)
    if start in _blueprints and (known is None or known.misses < _MISSES_MAX):
        return
    if len(_blueprints) >= _BLUEPRINTS_MAX:
        _blueprints.clear()
    _blueprints[start] = _blueprint_of(block)


def _blueprint_of(block: bytes) -> _Blueprint | None:
    """That of a block that was checked."""
    position, end = 1, len(block)
    while block[position - 1] > 127:
        position += 1
    begin, mask, texts, numbers = position, bytearray(b"\xff" * end), [], {}
    while position < end:
        identifier = block[position]
        if identifier in _NUMBERS:
            stop = position + 1 + _NUMBERS[identifier]
            numbers[identifier] = position
            mask[position + 1 : stop] = bytes(stop - position - 1)
            position = stop
        elif identifier == Property.PAYLOAD_FORMAT:
            position += 2
        elif identifier in _STRINGS:
            position += 1
            for _ in range(_STRINGS[identifier]):
                start = position + 2
                position = start + (block[position] << 8 | block[position + 1])
                mask[start:position] = bytes(position - start)
                if identifier != _CORRELATION:
                    texts.append(slice(start, position))
        else:
            return None
    return _Blueprint(block, begin, bytes(mask), texts, numbers)
