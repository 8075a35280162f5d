"""Publishes whose keys and properties differ, found in one pass and kept together as one run.

1. Runs go together (`join`, `MixedRuns.extend`) as long as channel, exchange and mandatory flag stay. `facts_of` gives
   for property bytes what the engine decides by, as an integer: those of a run agree in bit 0, and where they differ in
   others they are one more column. None: a message that has to be looked at alone. A long uniform stretch ends a run.
2. Most publishes look like one before them: same lengths of method and header frame, and property lists that differ in
   texts, times, priority, expiration and delay alone (`properties.fixed_parts`). Such a `_Shape` is remembered by those
   two lengths: the next publish like it is one `struct` call and a few comparisons, and its facts are known, or follow
   from priority, expiration and delay, which are read in columns (`RuledFacts`).
3. A publish that fits no shape is walked frame by frame and makes a shape, unless shapes of these lengths hardly ever
   fit. What is no whole publish in single frames with a known method frame ends the run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from protocols.amqp.properties import fixed_parts
from protocols.amqp.publish_run import UNIFORM_MIN, Family, PublishRun, Route

Facts = Callable[[bytes], int | None]
RuledFacts = Callable[[int, bytes, list[bytes], list[int]], list[int]]
"""Given the facts of one property list, and the priorities, expirations and delays of others that differ from it in
these alone: the facts of those. Priorities are a byte each; expirations have one number of digits, and are given as
columns of them, the highest place first; delays may be out of all limits. Each is empty where they have none."""

_FRAME_HEAD = struct.Struct(">BHI")
_CONTENT_HEAD = struct.Struct(">BHIIQ")
"""Of a header frame: kind, channel, size, class and weight, body size."""
_PUBLISH_BYTES_MIN = 7 + 4 + 5 + 1 + 22
_END = 0xCE
_SHAPES_MAX = 64
_SHAPED_BYTES_MAX = 4096
"""Of method frame and properties: longer ones have no shape."""
_REMADE_EVERY = 16


class _Columns:
    """What is found: an entry for each message."""

    __slots__ = ("bodies", "keys", "raws", "uniform")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.raws: list[bytes] = []
        self.bodies: list[bytes] = []
        self.uniform = False
        """The last ones were all alike: what follows is better off as a run of its own."""

    def drop_from(self, index: int, head_bytes: int) -> int:
        """These do not belong here; how many bytes they took, with so many for what is around a body."""
        bodies = self.bodies[index:]
        if bodies:
            del self.keys[index:], self.raws[index:], self.bodies[index:]
        return sum(map(len, bodies)) + head_bytes * len(bodies)


class _Shape:
    """What publishes of a family with method frames of one length and header frames of one length look like."""

    __slots__ = (
        "between",
        "facts",
        "family",
        "fixed",
        "head",
        "head_bytes",
        "missed",
        "raw_bytes",
        "read_fixed",
        "ruling",
        "taken",
        "unpack",
    )

    def __init__(self, family: Family, method_bytes: int, raw: bytes, facts: int) -> None:
        channel = family[0]
        self.family = family
        self.facts = facts
        self.head = _FRAME_HEAD.pack(2, channel, 12 + len(raw)) + b"\x00\x3c\x00\x00"
        self.between = b"\xce\x03" + channel.to_bytes(2, "big")
        self.raw_bytes = len(raw)
        self.read_fixed, self.ruling = fixed_parts(raw)
        self.fixed = self.read_fixed(raw)
        layout = struct.Struct(f">{method_bytes}s11sQ{len(raw)}s4sI")
        self.head_bytes = layout.size
        self.unpack = layout.unpack_from
        self.taken = self.missed = 0

    def take(
        self, data: bytes, pos: int, end: int, routes: Mapping[bytes, Route], body_bytes_max: int, columns: _Columns
    ) -> int:
        """Take the publishes of this shape that are at `pos`; returns where they end."""
        unpack, head_bytes, read_fixed = self.unpack, self.head_bytes, self.read_fixed
        head, between, fixed, family = self.head, self.between, self.fixed, self.family
        keys, raws, bodies = columns.keys, columns.raws, columns.bodies
        known, last, key, equal = b"", b"", "", 0
        start = pos + head_bytes
        while start < end:
            frame, header, size, raw, middle, length = unpack(data, pos)
            if header != head or middle != between or size != length or read_fixed(raw) != fixed:
                break
            if frame != known:
                route = routes.get(frame)
                if route is None or route.family != family:
                    break
                known, key, last = frame, route.routing_key, raw
            elif raw == last:
                equal += 1
                if equal == UNIFORM_MIN:
                    columns.uniform = True
                    break
            else:
                last, equal = raw, 0
            stop = start + size
            if stop >= end or data[stop] != _END or not 0 < size <= body_bytes_max:
                break
            keys.append(key)
            raws.append(raw)
            bodies.append(data[start:stop])
            pos = stop + 1
            start = pos + head_bytes
        return pos

    def facts_from(self, start: int, columns: _Columns, ruled_facts: RuledFacts) -> list[int]:
        """The facts of what was taken into the columns from `start` on; stops before an expiration that is none."""
        ruling, raws = self.ruling, columns.raws[start:] if start else columns.raws
        if ruling is None or not raws:
            return [self.facts] * len(raws)
        at, expiration, size = ruling.priority_at, ruling.expiration, self.raw_bytes
        joined = b"".join(raws)
        digits = [] if expiration is None else [joined[place::size] for place in expiration]
        if digits and not b"".join(digits).isdigit():
            wrong = min(index for column in digits for index, one in enumerate(column) if not 48 <= one <= 57)
            joined = joined[: wrong * size]
            digits = [column[:wrong] for column in digits]
        if not joined:
            return []
        delays = [] if ruling.delay is None else [delay_ms for (delay_ms,) in ruling.delay.iter_unpack(joined)]
        return ruled_facts(self.facts, b"" if at is None else joined[at::size], digits, delays)

    @property
    def is_misleading(self) -> bool:
        """Publishes of its lengths look different now. Making another is worth it only if they do not change often."""
        self.missed += 1
        return self.missed <= self.taken or not self.missed % _REMADE_EVERY


class MixedRuns:
    """Makes the runs of a connection longer; `routes` are its known method frames."""

    __slots__ = ("_facts_of", "_routes", "_ruled_facts", "_shapes")

    def __init__(self, routes: Mapping[bytes, Route], facts_of: Facts, ruled_facts: RuledFacts) -> None:
        self._routes = routes
        self._facts_of = facts_of
        self._ruled_facts = ruled_facts
        self._shapes: dict[tuple[Family, int, int], _Shape] = {}

    def join(self, run: PublishRun, more: PublishRun) -> bool:
        """Add a short run to the one before it, if they go together."""
        if (
            more.is_long_and_uniform
            or run.is_long_and_uniform
            or run.channel != more.channel
            or run.exchange != more.exchange
            or run.mandatory != more.mandatory
        ):
            return False
        count = len(more.bodies)
        column = None
        if run.raw != more.raw:
            facts, others = self._facts_of(run.raw), self._facts_of(more.raw)
            if facts is None or others is None or (facts ^ others) & 1:
                return False
            if facts != others or run.facts is not None:
                column = [others] * count
                run.facts = run.facts or [facts] * len(run.bodies)
        elif run.facts is not None:
            column = [run.facts[0]] * count
        _append_columns(run, [more.routing_key] * count, [more.raw] * count, column, more.bodies)
        return True

    def extend(self, data: bytes, pos: int, end: int, run: PublishRun, body_bytes_max: int) -> int:
        """Add to a run the publishes that follow it, each with a known method frame; returns where they end."""
        if run.is_long_and_uniform:
            return pos
        first_facts = self._facts_of(run.raw) if run.facts is None else run.facts[0]
        if first_facts is None:
            return pos
        family = (run.channel, run.exchange, run.mandatory)
        columns = _Columns()
        bodies = columns.bodies
        each: list[int] | None = None if run.facts is None else []
        while end - pos >= _PUBLISH_BYTES_MIN and not columns.uniform:
            count = len(bodies)
            header_at = pos + _FRAME_HEAD.unpack_from(data, pos)[2] + 8
            if end - header_at < _CONTENT_HEAD.size:
                break
            kind = family, header_at - pos, _FRAME_HEAD.unpack_from(data, header_at)[2]
            shape = self._shapes.get(kind)
            found = [first_facts]
            if shape is not None and not (shape.facts ^ first_facts) & 1:
                pos = shape.take(data, pos, end, self._routes, body_bytes_max, columns)
                found = shape.facts_from(count, columns, self._ruled_facts)
                pos -= columns.drop_from(count + len(found), shape.head_bytes + 1)
                shape.taken += len(found)
            if len(bodies) == count and not columns.uniform:
                reached = self._take_one(data, pos, header_at, end, family, body_bytes_max, columns)
                if reached == pos:
                    break
                raw = columns.raws[-1]
                facts = first_facts if raw == run.raw else self._facts_of(raw)
                if facts is None or (facts ^ first_facts) & 1:
                    columns.drop_from(count, 0)
                    break
                pos, found = reached, [facts]
                if shape is None or shape.is_misleading:
                    self._remember(kind, raw, facts)
            if each is None and found.count(first_facts) < len(found):
                each = [first_facts] * count
            if each is not None:
                each += found
        if bodies:
            if each is not None and run.facts is None:
                run.facts = [first_facts] * len(run.bodies)
            _append_columns(run, columns.keys, columns.raws, each, bodies)
        return pos

    def _take_one(
        self, data: bytes, pos: int, header_at: int, end: int, family: Family, body_bytes_max: int, columns: _Columns
    ) -> int:
        """Take one publish of the family whatever it looks like; returns where it ends, `pos` if there is none."""
        route = self._routes.get(data[pos:header_at])
        if route is None or route.family != family:
            return pos
        kind, channel, size, class_and_weight, body_size = _CONTENT_HEAD.unpack_from(data, header_at)
        body_at: int = header_at + size + 8
        if kind != 2 or channel != family[0] or class_and_weight != 0x3C0000 or size < 14:
            return pos
        if body_size > body_bytes_max or body_at > end or data[body_at - 1] != _END:
            return pos
        start = stop = body_at
        if body_size:
            start = body_at + 7
            stop = start + body_size + 1
            if (
                stop > end
                or data[stop - 1] != _END
                or _FRAME_HEAD.unpack_from(data, body_at) != (3, channel, body_size)
            ):
                return pos
        columns.keys.append(route.routing_key)
        columns.raws.append(data[header_at + 19 : body_at - 1])
        columns.bodies.append(data[start : start + body_size])
        return stop

    def _remember(self, kind: tuple[Family, int, int], raw: bytes, facts: int) -> None:
        family, method_bytes, header_bytes = kind
        if method_bytes + header_bytes <= _SHAPED_BYTES_MAX:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[kind] = _Shape(family, method_bytes, raw, facts)


def _append_columns(
    run: PublishRun, keys: list[str], raws: list[bytes], facts: list[int] | None, bodies: list[bytes]
) -> None:
    before, count = len(run.bodies), len(bodies)
    if run.keys is None and keys.count(run.routing_key) != count:
        run.keys = [run.routing_key] * before
    if run.keys is not None:
        run.keys += keys
    if run.raws is None and raws.count(run.raw) != count:
        run.raws = [run.raw] * before
    if run.raws is not None:
        run.raws += raws
    if facts is not None and run.facts is not None:
        run.facts += facts
    run.bodies += bodies
