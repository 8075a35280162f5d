"""Which messages of a stream a consumer is given: those that are marked with one of some values.

A publisher marks a message by the header `x-stream-filter-value`; a consumer says what it wants by `x-stream-filter`, a
text or several, and by `x-stream-match-unfiltered` whether also what is not marked. RabbitMQ looks at chunks, by what
may be in them, so that clients have to look again (https://www.rabbitmq.com/docs/streams#filtering); here each message
is looked at, and nothing else comes.
"""

from __future__ import annotations

from collections.abc import Collection

from routing.message import NAME_ENCODING_ERRORS, Properties, StreamSlab
from routing.property_editors import editor_of

VALUE_HEADER = "x-stream-filter-value"
_VALUE_BYTES = VALUE_HEADER.encode()
_KNOWN_MAX = 4096
"""So many property bytes are remembered, until all are forgotten."""


def text_of(value: object) -> str | None:
    """A value as it is compared; None if it is no text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", NAME_ENCODING_ERRORS)
    return value if isinstance(value, str) else None


class StreamFilter:
    """See the module; of one consumer."""

    __slots__ = ("_known", "_unfiltered", "_values")

    def __init__(self, values: Collection[str], *, unfiltered: bool) -> None:
        self._values = frozenset(values)
        self._unfiltered = unfiltered
        self._known: dict[bytes, bool] = {}

    def stretch(self, slab: StreamSlab, start: int, most: int) -> tuple[int, int]:
        """The first messages from `start` on that are wanted, without a gap and not more than `most`: where they begin
        and end.
        """
        there = len(slab.bodies)
        while start < there and not self._wants(slab, start):
            start += 1
        stop, last = start, min(start + most, there)
        while stop < last and self._wants(slab, stop):
            stop += 1
        return start, stop

    def _wants(self, slab: StreamSlab, index: int) -> bool:
        assert slab.raws is not None
        raw = slab.raws[index]
        if _VALUE_BYTES not in raw:
            return self._unfiltered
        found = self._known.get(raw)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[raw] = self._looked_at(slab.properties_of(index))
        return found

    def _looked_at(self, properties: Properties) -> bool:
        editor = editor_of(properties.protocol)
        headers = properties.neutral.headers if editor is None else editor.headers(properties.raw, (VALUE_HEADER,))
        value = text_of(headers.get(VALUE_HEADER))
        return self._unfiltered if value is None else value in self._values
