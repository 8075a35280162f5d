"""Work that takes effect once for each record, though records come again: their ids are kept with what came of them.

1. `once(store)` makes of a function that works on a record one that does so only if the record's *id* is not in the
   store. The id, and all that the function does with the transaction that it is given, take effect together or not at
   all: whatever ends the process in between, the record comes again, and is worked on again or known to be done.
2. That holds for what is written by that transaction. What a function does beside it (a mail, a request, a file) may
   be done again when the process ends before the transaction does.
3. The id is the record's message id, if its producer gave it one (the header `message-id`, or `millrace.message-id` of
   what AMQP and MQTT published): a copy in another topic, such as a dead letter that was put back, is the same message
   then. Else it is the topic, partition and offset; a topic that was deleted and made again, or that lost records in an
   unclean election, has these again with other records.
4. A store remembers the last `ids_max` ids. What comes again after more than that is worked on again.
5. Commit offsets after the work, as ever: a record whose offset was committed before never comes again.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from typing import Any, Protocol, TypeVar

from protocols.native.clients.records import ConsumerRecord, message_id_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_IDS_MAX = 1_000_000


class OnceStore(Protocol[T_co]):
    """Where ids are kept. Calls may come from several threads."""

    def transaction(self, record_id: bytes) -> AbstractContextManager[T_co | None]:
        """Keep an id, and what is done with the transaction that the block gets, when the block ends; nothing of it
        when it is left by an error. None: the id is there already.
        """


def record_id(record: ConsumerRecord) -> bytes:
    """See the module's rule 3."""
    given = message_id_of(record.headers)
    if given is not None:
        return b"id:" + given
    return f"at:{record.topic}:{record.partition}:{record.offset}".encode()


def once(store: OnceStore[T]) -> Callable[[Callable[[ConsumerRecord, T], object]], Callable[[ConsumerRecord], bool]]:
    """Decorate `handle(record, transaction)`; see the module.

    What comes of it is called with the record alone, and tells whether the record was worked on now (True) or before
    (False). It raises what `handle` and the store raise, and nothing has taken effect then. `handle` is no coroutine:
    on an event loop call it in a thread (`asyncio.to_thread`, `trio.to_thread.run_sync`), one at a time for each store.
    """

    def decorate(handle: Callable[[ConsumerRecord, T], object]) -> Callable[[ConsumerRecord], bool]:
        @functools.wraps(handle)
        def handle_once(record: ConsumerRecord) -> bool:
            with store.transaction(record_id(record)) as transaction:
                if transaction is None:
                    return False
                if hasattr(result := handle(record, transaction), "__await__"):
                    result.close()  # type: ignore[attr-defined]
                    raise TypeError("what is done once is no coroutine: it ends with its transaction")
            return True

        return handle_once

    return decorate


class SqliteOnceStore:
    """Ids in the table `millrace_once` of an SQLite database; the transaction is its `sqlite3.Connection`.

    What `handle` writes to other tables by it is durable together with the id. It must not commit, or roll back, by
    itself. Several processes may use one file, and work in turn: who waits for longer than `busy_timeout_s` is told
    by `sqlite3.OperationalError`.
    """

    def __init__(self, path: str | PathLike[str], *, ids_max: int = _IDS_MAX, busy_timeout_s: float = 30) -> None:
        self._ids_max = ids_max
        self._lock = threading.Lock()
        self.connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
        """For tables of the application; between the calls of `handle`."""
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS millrace_once (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE)"
        )

    @contextmanager
    def transaction(self, record_id: bytes) -> Iterator[sqlite3.Connection | None]:
        """See `OnceStore`. Raises `sqlite3.Error`, RuntimeError if the block has ended the transaction."""
        connection = self.connection
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                noted = connection.execute("INSERT OR IGNORE INTO millrace_once (id) VALUES (?)", (record_id,))
                if noted.rowcount:
                    oldest = (noted.lastrowid or 0) - self._ids_max
                    connection.execute("DELETE FROM millrace_once WHERE number <= ?", (oldest,))
                yield connection if noted.rowcount else None
                if not connection.in_transaction:
                    raise RuntimeError("the transaction was ended by who was to write by it")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()


class MemoryOnceStore:
    """Ids in memory, for tests and for what may be done again after a restart.

    The transaction is an empty dict; what `handle` puts there is in `results` when it has returned.
    """

    def __init__(self, *, ids_max: int = _IDS_MAX) -> None:
        self.results: dict[Any, Any] = {}
        self._ids_max = ids_max
        self._ids: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, record_id: bytes) -> Iterator[dict[Any, Any] | None]:
        """See `OnceStore`."""
        with self._lock:
            if record_id in self._ids:
                yield None
                return
            results: dict[Any, Any] = {}
            yield results
            self.results.update(results)
            self._ids[record_id] = None
            if len(self._ids) > self._ids_max:
                self._ids.popitem(last=False)
