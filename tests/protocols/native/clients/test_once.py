"""What is done once: ids of records, stores, and processes that are killed between the work and the commit."""

from __future__ import annotations

import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from millrace import BlockingProducer, ConsumerRecord, MemoryOnceStore, SqliteOnceStore, once
from protocols.native.clients.once import record_id
from tests.protocols.native.broker import native_broker
from tests.support.broker_process import CHECKOUT

TIMEOUT_S = 20


def record(offset: int, *headers: tuple[str, bytes | None], topic: str = "t") -> ConsumerRecord:
    return ConsumerRecord(topic, 0, offset, 1000, b"k", b"%d" % offset, list(headers))


def test_what_a_record_is_known_by() -> None:
    assert record_id(record(1)) != record_id(record(2)) != record_id(record(2, topic="u"))
    given = record(1, ("message-id", b"a"))
    assert record_id(given) == record_id(record(9, ("x", b"y"), ("message-id", b"a"), topic="t.dlq"))
    assert record_id(given) == record_id(record(2, ("millrace.message-id", b"a")))
    assert (
        record_id(record(1, ("message-id", None))) == record_id(record(1, ("message-id", b""))) == record_id(record(1))
    )
    trick = record(7, ("message-id", b"t:0:1"))
    assert record_id(trick) != record_id(record(1)), "nobody's message id is the place of another record"


def stores(directory: Path, **arguments: Any) -> list[Any]:
    return [MemoryOnceStore(**arguments), SqliteOnceStore(directory / "once.db", **arguments)]


def test_work_that_fails_is_done_again_and_leaves_nothing(tmp_path: Path) -> None:
    memory, database = stores(tmp_path)
    fails = True

    @once(memory)
    def put(one: ConsumerRecord, transaction: dict[Any, Any]) -> None:
        """Documented."""
        transaction[one.offset] = one.value
        if fails:
            raise ValueError("this time")

    @once(database)
    def insert(one: ConsumerRecord, transaction: sqlite3.Connection) -> None:
        transaction.execute("INSERT INTO results VALUES (?)", (one.value,))
        if fails:
            raise ValueError("this time")

    database.connection.execute("CREATE TABLE results (value TEXT)")
    assert put.__doc__ == "Documented."
    for handle in (put, insert):
        fails = True
        with pytest.raises(ValueError, match="this time"):
            handle(record(3))
        fails = False
        assert [handle(record(3)), handle(record(3)), handle(record(4))] == [True, False, True]
    assert memory.results == {3: b"3", 4: b"4"}
    assert database.connection.execute("SELECT value FROM results").fetchall() == [(b"3",), (b"4",)]


def test_a_store_remembers_so_many(tmp_path: Path) -> None:
    for store in stores(tmp_path, ids_max=2):
        handle = once(store)(lambda one, transaction: None)
        assert [handle(record(offset)) for offset in (1, 2, 1, 3, 2, 1, 3)] == [
            True, True, False, True, False, True, False,
        ]  # fmt: skip


def test_what_cannot_be_kept_together_is_refused(tmp_path: Path) -> None:
    store = SqliteOnceStore(tmp_path / "once.db")

    @once(store)
    def commits(one: ConsumerRecord, transaction: sqlite3.Connection) -> None:
        transaction.execute("COMMIT")

    with pytest.raises(RuntimeError, match="was ended by"):
        commits(record(1))

    @once(store)
    async def waits(one: ConsumerRecord, transaction: sqlite3.Connection) -> None:
        raise AssertionError("never begun")

    with pytest.raises(TypeError, match="no coroutine"):
        waits(record(2))
    assert once(store)(lambda one, transaction: None)(record(2)), "nothing was kept"
    store.close()


def test_two_users_of_one_file_take_turns(tmp_path: Path) -> None:
    first, second = (SqliteOnceStore(tmp_path / "once.db", busy_timeout_s=0.01) for _ in range(2))
    handle = once(second)(lambda one, transaction: None)

    @once(first)
    def nested(one: ConsumerRecord, transaction: sqlite3.Connection) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            handle(one)

    assert nested(record(1))
    assert not handle(record(1))


async def test_killed_between_work_and_commit_each_record_counts_once(tmp_path: Path) -> None:
    values = ["a", "b", "again", "c", "d"]
    async with native_broker() as running:

        def fill() -> None:
            with BlockingProducer(running.server) as producer:
                for value in values:
                    producer.send("t", value.encode())
                for _ in range(2):
                    producer.send("t", b"sent twice", headers=[("message-id", b"one")])

        async def work(where: str, value: str) -> tuple[int, list[str]]:
            command = [
                sys.executable, "-u", "-m", "tests.protocols.native.clients.once_worker", running.server,
                str(tmp_path / "once.db"), "7", where, value,
            ]  # fmt: skip
            with trio.fail_after(TIMEOUT_S):
                done = await trio.run_process(command, cwd=CHECKOUT, capture_stdout=True, check=False)
            return done.returncode, done.stdout.decode().splitlines()

        await trio.to_thread.run_sync(fill)
        assert await work("within", "b") == (-signal.SIGKILL, ["0 True"])
        assert await work("behind", "again") == (-signal.SIGKILL, ["1 True", "2 True"])
        assert await work("", "") == (0, ["2 False", "3 True", "4 True", "5 True", "6 False"])
    found = SqliteOnceStore(tmp_path / "once.db").connection.execute("SELECT value FROM results").fetchall()
    assert [value for (value,) in found] == [*values, "sent twice"]
