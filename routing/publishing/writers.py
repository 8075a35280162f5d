"""Writers that publish in steps (`published_once.py`): which step of each was the last, in a store of redo records.

What was said of a writer goes when it has not been heard of for as long as offsets of groups are kept.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from routing.log_transactions.store import ONCE_PREFIX
from routing.message import NAME_ENCODING_ERRORS

if TYPE_CHECKING:
    from core_log.keyed_store import KeyedStore

_STEP = struct.Struct(">QQ")
"""Number, and when in ms since 1970; the key of its redo record follows."""
_TIDY_ABOVE = 1000


class Last(NamedTuple):
    """The last step of a writer that was decided."""

    number: int
    """-1: there was none."""
    record: bytes
    """The key of the redo record that it had, or has."""


class Writers:
    """See the module."""

    def __init__(self, store: KeyedStore, kept_ms: int) -> None:
        self._store = store
        self._kept_ms = kept_ms
        self._tidy_at = _TIDY_ABOVE
        self._count = sum(1 for key, _ in store.items() if key.startswith(ONCE_PREFIX))

    def last(self, writer: str) -> Last:
        """Its last step."""
        value = self._store.get(_key(writer))
        if value is None:
            return Last(-1, b"")
        return Last(int(_STEP.unpack_from(value)[0]), value[_STEP.size :])

    def note(self, writer: str, number: int, record: bytes, now_ms: int) -> tuple[bytes, bytes]:
        """What to put along with the redo record of a step. Forgets other writers. Raises LogUnavailable."""
        key = _key(writer)
        if self._store.get(key) is None:
            self._count += 1
            if self._count > self._tidy_at:
                gone = [one for one, value in self._store.items() if self._is_over(one, value, now_ms)]
                self._store.put_all([(one, None) for one in gone])
                self._count -= len(gone)
                self._tidy_at = max(2 * self._count, _TIDY_ABOVE)
        return key, _STEP.pack(number, now_ms) + record

    def _is_over(self, key: bytes, value: bytes, now_ms: int) -> bool:
        return key.startswith(ONCE_PREFIX) and int(_STEP.unpack_from(value)[1]) + self._kept_ms <= now_ms


def _key(writer: str) -> bytes:
    return ONCE_PREFIX + writer.encode("utf-8", NAME_ENCODING_ERRORS)
