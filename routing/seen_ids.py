"""The ids of messages that were published within the last while, to know a duplicate by.

1. An id is known by 64 bits of its BLAKE2 hash: two different ids of a million are taken for the same with a
   probability of 5e-14 a message.
2. Hashes stand in tables (open addressing, 8 bytes a place, at most half full), a new one every quarter of the window
   or when the last is full. A table goes as a whole: an id is remembered for the window, and a quarter longer at most.
3. Memory is bounded by `ids_max`: beyond it the oldest table goes early.
4. A row of publishes is looked up as one, table by table; twice the same id within a row counts as well.
5. A small table that is full goes into the next one: few tables are looked at, and no merging takes long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

_TABLES_A_WINDOW = 4
_PLACES_MIN, _PLACES_MAX = 1 << 8, 1 << 20
_MERGED_MAX = 1 << 13
"""About a millisecond."""


def hashes_of(ids: Iterable[bytes | None]) -> array[int]:
    """A number for each id that is the same everywhere and at any time; 0 for None."""
    hashes = array("Q")
    hashes.frombytes(b"".join([_NONE if each is None else blake2b(each, digest_size=8).digest() for each in ids]))
    return hashes


_NONE = bytes(8)
ID_HEADERS = ("message-id", "x-deduplication-header")
"""The headers by which a message is known that has no property for its id, the first of them that it has."""


class _Table:
    """Hashes that were seen from `since_ms` to `until_ms`."""

    __slots__ = ("count", "mask", "places", "since_ms", "until_ms")

    def __init__(self, places: int, now_ms: int) -> None:
        self.places = array("Q", bytes(8 * places))
        self.mask = places - 1
        self.count = 0
        self.since_ms = self.until_ms = now_ms

    @property
    def room(self) -> int:
        return (self.mask + 1 >> 1) - self.count

    def add(self, values: Sequence[int]) -> None:
        """Add hashes that are not there, none of which is 0, and for which there is room."""
        places, mask = self.places, self.mask
        for value in values:
            at = value & mask
            while places[at]:
                at = at + 1 & mask
            places[at] = value
        self.count += len(values)

    def known(self, values: Sequence[int]) -> list[int]:
        """Those of these hashes that are there."""
        places, mask = self.places, self.mask
        known = []
        for value in [value for value in values if places[value & mask]]:
            at = value & mask
            while found := places[at]:
                if found == value:
                    known.append(value)
                    break
                at = at + 1 & mask
        return known


class SeenIds:
    """See the module."""

    __slots__ = ("_ids_max", "_tables", "window_ms", "windows")

    def __init__(self, window_ms: int, ids_max: int) -> None:
        self.window_ms = window_ms
        self.windows: dict[str | None, int] = {}
        """Who asks for which window; the longest counts."""
        self._ids_max = ids_max
        self._tables: list[_Table] = []

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    def expire(self, now_ms: int) -> None:
        """Forget what is older than the window."""
        tables = self._tables
        while tables and tables[0].until_ms + self.window_ms <= now_ms:
            del tables[0]

    def admit(self, hashes: Iterable[int], now_ms: int) -> list[bool]:
        """For each message whether it is new; new ones are known from now on. Hash 0 is always new."""
        self.expire(now_ms)
        return self._admit(list(hashes), now_ms)

    def _admit(self, values: list[int], now_ms: int) -> list[bool]:
        known = self.known(values)
        if not known and 0 not in values and len(set(values)) == len(values):
            self._add(values, now_ms)
            return [True] * len(values)
        fresh, new = [], []
        for value in values:
            is_new = value not in known
            fresh.append(is_new)
            if value and is_new:
                known.add(value)
                new.append(value)
        self._add(new, now_ms)
        return fresh

    def known(self, values: Sequence[int]) -> set[int]:
        """Which of these hashes are remembered. `expire` says what is too old."""
        return {value for table in self._tables for value in table.known(values)}

    def _add(self, values: list[int], now_ms: int) -> None:
        start = 0
        while start < len(values):
            table = self._table(now_ms)
            stop = start + table.room
            table.add(values[start:stop])
            start = stop

    def _table(self, now_ms: int) -> _Table:
        """The table for what is seen now, which has room."""
        tables = self._tables
        last = tables[-1] if tables else None
        is_over = last is not None and now_ms - last.since_ms >= self.window_ms / _TABLES_A_WINDOW
        if last is None or is_over or last.room <= 0:
            while tables and len(self) >= self._ids_max:
                del tables[0]
            places = _PLACES_MIN if last is None else 2 * last.count if last.room > 0 else 4 * last.count
            places = min(max(1 << places.bit_length(), _PLACES_MIN), _PLACES_MAX)
            table = _Table(places, now_ms)
            if tables and not is_over and tables[-1].count <= _MERGED_MAX:
                small = tables.pop()
                table.since_ms = small.since_ms
                table.add([value for value in small.places if value])
            tables.append(table)
            last = table
        last.until_ms = max(last.until_ms, now_ms)
        return last

    def forget(self, hashes: Iterable[int]) -> None:
        """These were not taken after all; the next with the same id is new. Rare."""
        gone = set(hashes)
        for table in self._tables:
            if any(value in gone for value in table.places):
                kept = [value for value in table.places if value and value not in gone]
                table.places = array("Q", bytes(8 * (table.mask + 1)))
                table.count = 0
                table.add(kept)

    def dump(self, now_ms: int) -> Iterator[tuple[int, bool, bytes]]:
        """What is remembered, for `restore`: until when each lot was seen, that it is a table, and its places."""
        self.expire(now_ms)
        for table in self._tables:
            yield table.until_ms, True, table.places.tobytes()

    def restore(self, lots: Iterable[tuple[int, bool, bytes]], now_ms: int) -> None:
        """Take over what `dump` gave, and then rows of hashes and when they were new, all in their order."""
        for seen_ms, is_table, data in lots:
            if seen_ms + self.window_ms <= now_ms:
                continue
            hashes = array("Q")
            hashes.frombytes(data[: len(data) // 8 * 8])
            if is_table and len(hashes) & len(hashes) - 1 == 0:
                table = _Table(0, seen_ms)
                table.places, table.mask = hashes, len(hashes) - 1
                table.count = len(hashes) - hashes.count(0)
                table.since_ms = seen_ms - self.window_ms  # takes no others, whose time would become its own
                self._tables.append(table)
            else:
                self._admit(list(hashes), seen_ms)


SETTINGS = ""
"""Those of a queue, where others are named that ask it to know ids; None: somebody before a start."""


def asked(seen: SeenIds | None, who: str | None, window_ms: int, ids_max: int) -> SeenIds | None:
    """What a queue remembers once `who` asks for this window; None when nobody asks for one."""
    windows = {} if seen is None else seen.windows
    if windows.get(who, 0) == window_ms:
        return seen
    if who != SETTINGS:
        windows.pop(None, None)
    windows[who] = window_ms
    if not any(windows.values()):
        return None
    if seen is None:
        seen = SeenIds(window_ms, ids_max)
        seen.windows = windows
    seen.window_ms = max(windows.values())
    return seen
