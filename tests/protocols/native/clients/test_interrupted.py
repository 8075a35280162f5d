"""A signal anywhere in a call of a blocking client: who catches what it raises, and goes on, has lost nothing."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio

from core_log.record_batch import Compression, decode_columns
from millrace import BlockingConsumer, BlockingGroupConsumer, BlockingProducer
from protocols.native.clients import blocking, blocking_consumer, blocking_link, blocking_producer, records
from tests.protocols.native.broker import native_broker

TIMEOUT_S = 60
FILES = {one.__file__ for one in (blocking, blocking_consumer, blocking_link, blocking_producer, records)}


@contextmanager
def interrupted_at(number: int) -> Iterator[Callable[[], bool]]:
    """Raises KeyboardInterrupt, in this thread, where the line of that number among those that are run of the clients
    begins; whether it did. Where one returns nothing comes: Python looks for signals at calls and in loops.
    """
    left, before = number, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(
            "return"
        ):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield lambda: left <= 0
    finally:
        sys.settrace(before)


async def in_thread(work: Callable[[str], None], server: str) -> None:
    with trio.fail_after(TIMEOUT_S):
        await trio.to_thread.run_sync(work, server)


async def test_a_flush_that_is_interrupted_anywhere_and_called_again_stores_all_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_producer, "_RETRY_BACKOFF_S", 0.001)

    def work(server: str) -> None:
        number, values = 0, []
        with BlockingProducer(server) as producer:
            while True:
                number += 1
                for partition in (0, 1):
                    values.append(b"%d" % len(values))
                    producer.send("t", values[-1], partition=partition)
                with interrupted_at(number) as interrupted:
                    try:
                        producer.flush()
                    except KeyboardInterrupt:
                        pass
                producer.flush()
                if not interrupted():
                    break
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            found = consumer.fetch(10_000)
        assert number > 100
        assert sorted(int(record.value or b"") for record in found) == list(range(len(values)))

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        await in_thread(work, running.server)


def test_a_record_that_was_interrupted_leaves_its_time_to_no_other() -> None:
    left_behind = False
    for number in range(1, 5):
        draft = records.BatchDraft(1)
        with interrupted_at(number), pytest.raises(KeyboardInterrupt):
            draft.add(b"interrupted", b"key", None, 5, 20)
        left_behind = left_behind or bool(draft.timestamps_ms)
        draft.add(b"next", None, None, None, 20)
        columns = decode_columns(draft.build(Compression.NONE))
        assert (columns.values, columns.timestamps_ms) == ([b"next"], [1])
    assert left_behind


@pytest.mark.parametrize("most", [1, 3])
async def test_a_fetch_that_is_interrupted_anywhere_loses_nothing_and_gives_nothing_twice(most: int) -> None:
    def work(server: str) -> None:
        with BlockingProducer(server) as producer:
            for number in range(8):
                producer.send("t", b"%d" % number, partition=number % 2)
                if number % 4 == 3:
                    producer.flush()
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            number, interrupts = 0, True
            while interrupts:
                number += 1
                consumer.seek_to_beginning()
                found: list[int] = []
                with interrupted_at(number) as interrupted:
                    for _ in range(20):
                        if len(found) >= 8:
                            break
                        try:
                            found += [int(record.value or b"") for record in consumer.fetch(most, timeout_ms=1000)]
                        except KeyboardInterrupt:
                            pass
                    interrupts = interrupted()
                assert sorted(found) == list(range(8))
                assert consumer._positions == {("t", 0): 4, ("t", 1): 4}
            assert number > 100

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        await in_thread(work, running.server)


async def test_a_call_that_is_interrupted_before_its_thread_hears_of_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def work(server: str) -> None:
        with BlockingGroupConsumer(server, "g", auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            with monkeypatch.context() as patch:
                patch.setattr(trio.from_thread, "run", interrupt(trio.from_thread.run))
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(0)
            assert [record.value for record in consumer.poll(5000)] == [b"there"]
        ended.set()

    def interrupt(run: Any) -> Callable[..., Any]:
        calls = iter([KeyboardInterrupt])

        def once(*arguments: Any, **named: Any) -> Any:
            for error in calls:
                raise error
            return run(*arguments, **named)

        return once

    def fill(server: str) -> None:
        with BlockingProducer(server) as producer:
            producer.send("t", b"there")

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(fill, running.server)
        threading.Thread(target=work, args=(running.server,), daemon=True).start()
        assert await trio.to_thread.run_sync(ended.wait, 10), "it waits for what never began"


@pytest.mark.parametrize("opened", [False, True])
async def test_a_consumer_whose_opening_is_interrupted_leaves_no_thread(opened: bool) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if opened:
                super().wait(timeout)
            raise KeyboardInterrupt

    def work(server: str) -> None:
        consumer = BlockingGroupConsumer(server, "g", topics=["t"])
        consumer._started = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            consumer.__enter__()
        consumer._thread.join(10)
        assert not consumer._thread.is_alive()

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


def test_a_consumer_that_was_not_begun_says_so() -> None:
    consumer = BlockingGroupConsumer("127.0.0.1:1", "g", topics=["t"])
    for call in (consumer.commit, lambda: next(iter(consumer)), lambda: consumer.position("t", 0)):
        with pytest.raises(RuntimeError, match="within its block"):
            call()
