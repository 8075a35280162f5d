"""Queues stand as they stood, at a start: what waits goes to its lines, what has a time to live is looked at before the
first of it is over, and what is delayed is held back.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import TYPE_CHECKING

from routing.facts import DELAY_BITS, DELAYED_FROM, PRIORITY_MAX, priority_of
from routing.queues.arrivals import Arrival, deadline_ms_of
from routing.queues.fact_columns import BLOCK_BITS
from routing.queues.offset_set import Range
from routing.queues.packed_ranges import COUNT_BITS, by_blocks
from routing.queues.picked_facts import Outline, PickedFacts, deadlines
from routing.queues.priority_sort import add_singles

if TYPE_CHECKING:
    from routing.queues.line import Levels
    from routing.queues.queue import Queue

_BITE = 8192
"""So many messages of a queue are told apart together, or a few more."""


def refill(queue: Queue, packed: array[int], picked: PickedFacts) -> None:
    """What a start found that was never given out, as rising packed ranges, stands in line; delayed messages are held
    back again.
    """
    waits = array("Q")
    for number, piece in by_blocks(packed, BLOCK_BITS):
        outline = picked.outline(number)
        if outline is not None and outline.delayed:
            piece = _hold(queue, piece, picked)
        if outline is not None and piece:
            _watch(queue, outline, piece, picked)
        waits += piece
    if queue.levels is None:
        queue.line.ready.extend(waits)
    else:
        _tell_apart(queue.levels, waits, picked)
    queue.rules.arm()


def _watch(queue: Queue, outline: Outline, piece: array[int], picked: PickedFacts) -> None:
    """Messages of a block are looked at when the first that may be among them expires, or now if that is over."""
    queue_ttl_ms = queue.settings.message_ttl_ms
    lives = [life for life in (outline.life_ms, queue_ttl_ms) if life is not None]
    if not lives:
        return
    first_ms = outline.since_ms + min(lives)
    if first_ms > queue.host.now_ms():
        first = piece[0] >> COUNT_BITS + BLOCK_BITS << BLOCK_BITS
        queue.rules.need_timing().expire_slab(first_ms, first, first + (1 << BLOCK_BITS))
        return
    due_ms, mortal = deadlines(*picked.known(piece), queue_ttl_ms)
    if mortal:
        queue.rules.need_timing().expire_at(due_ms, mortal)


def _tell_apart(levels: Levels, packed: array[int], picked: PickedFacts) -> None:
    """Messages stand at the end of the lines of their priorities."""
    clamped = bytes(min(priority, levels.highest) for priority in range(PRIORITY_MAX + 1))
    sorted_out: defaultdict[int, list[int]] = defaultdict(list)
    count = 0
    for _, piece in by_blocks(packed, BLOCK_BITS):
        singles, priorities = picked.levels(piece)
        column = priorities.translate(clamped)
        if not count and column.count(column[0]) == len(column):
            levels.at(column[0]).ready.extend(piece)
            continue
        for level, single in zip(column, singles.tolist()):
            sorted_out[level].append(single)
        count += len(column)
        if count >= _BITE:
            _stand(levels, sorted_out)
            count = 0
    _stand(levels, sorted_out)


def _stand(levels: Levels, sorted_out: defaultdict[int, list[int]]) -> None:
    for level, singles in sorted_out.items():
        add_singles(levels.at(level), array("Q", singles))
    sorted_out.clear()


def _hold(queue: Queue, piece: array[int], picked: PickedFacts) -> array[int]:
    """Those that are delayed wait for their time, or are late; the others."""
    offsets, facts, times = picked.known(piece)
    due_ms = [time_ms + (fact >> DELAY_BITS) for fact, time_ms in zip(facts, times)]
    others = array("Q")
    if min(facts) < DELAYED_FROM:
        held = [fact >= DELAYED_FROM for fact in facts]
        others = array("Q", [offset << COUNT_BITS for offset, is_held in zip(offsets, held) if not is_held])
        due_ms, offsets = list(compress(due_ms, held)), list(compress(offsets, held))
    now_ms = queue.host.now_ms()
    if due_ms and min(due_ms) <= now_ms:
        waits = [due > now_ms for due in due_ms]
        queue.rules.late += [(due, offset) for due, offset in zip(due_ms, offsets) if due <= now_ms]
        due_ms, offsets = list(compress(due_ms, waits)), list(compress(offsets, waits))
    if due_ms:
        queue.rules.need_timing().delay(due_ms, offsets)
    return others


def given_back(queue: Queue, ranges: Iterable[Range]) -> Iterator[Range]:
    """What a clean stop found that had been delivered, cut into runs that agree in priority. Whatever was delayed was
    due then.
    """
    facts = queue.store.facts
    for first, count in ranges:
        at = first
        for run_first, column, time_ms in facts.between(first, count):
            if run_first > at:
                yield at, run_first - at
            at = run_first + len(column)
            yield from _part(queue, Arrival(run_first, len(column), time_ms, column), column)
        if at < first + count:
            yield at, first + count - at
    queue.rules.arm()


def _part(queue: Queue, arrival: Arrival, column: list[int]) -> Iterator[Range]:
    rules, ttl_ms = queue.rules, queue.settings.message_ttl_ms
    end = arrival.first + arrival.count
    rules.watch(arrival, arrival.first, end)
    due_ms, mortal = [], []
    at, level = arrival.first, priority_of(column[0])
    for offset, fact in enumerate(column, arrival.first):
        deadline_ms = deadline_ms_of(fact, arrival.time_ms, ttl_ms) if fact >= DELAYED_FROM else None
        if deadline_ms is not None:
            due_ms.append(deadline_ms)
            mortal.append(offset)
        if priority_of(fact) != level:
            yield at, offset - at
            at, level = offset, priority_of(fact)
    yield at, end - at
    if mortal:
        rules.need_timing().expire_at(due_ms, mortal)
