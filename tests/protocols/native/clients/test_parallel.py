"""Records worked on by many at a time: keys keep their order, and only what is finished in a row is committed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from millrace import (
    BlockingClient,
    BlockingGroupConsumer,
    BlockingProducer,
    BlockingRebalanceListener,
    Client,
    ConnectionLost,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    Producer,
    process_in_parallel,
)
from protocols.native.clients.group_bytes import Partition
from routing.topics.offset_store import Committed
from tests.protocols.native.broker import Running
from tests.protocols.native.test_groups import Reading, Told, fill, group_broker, member, until
from tests.support.broker_process import broker_process


async def fill_keyed(running: Running, count: int, keys: int, partitions: int = 3) -> None:
    await running.broker.create_topic("t", partitions=partitions)
    async with Producer(running.server, batch_bytes=500) as producer:
        for number in range(count):
            await producer.send("t", b"%d" % number, b"key%d" % (number % keys))


@pytest.mark.parametrize("order", ["key", "partition", "none"])
async def test_each_lane_in_order_and_lanes_beside_each_other(order: Any) -> None:
    dice = random.Random(order)
    async with group_broker() as running:
        await fill_keyed(running, 300, 10)
        seen: dict[object, list[int]] = {}
        under_way: set[object] = set()
        most = 0

        async def handle(record: ConsumerRecord) -> None:
            nonlocal most
            lane = record.key if order == "key" else record.partition if order == "partition" else record.value
            assert lane not in under_way
            under_way.add(lane)
            most = max(most, len(under_way))
            await trio.sleep(dice.uniform(0, 0.002))
            under_way.remove(lane)
            seen.setdefault(lane, []).append(int(record.value or b""))

        async with member(running) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(_process, consumer, handle, order)
            await until(lambda: sum(map(len, seen.values())) == 300)
            nursery.cancel_scope.cancel()
        assert most > 1
        if order == "key":
            assert all(values == sorted(values) for values in seen.values())
        offsets = await running.broker.offsets.fetch("g")
        assert sum(at.offset for at in offsets.values()) == 300


async def _process(consumer: Consumer, handle: Callable[[ConsumerRecord], Any], order: Any) -> None:
    await process_in_parallel(consumer, handle, workers=4, order=order, in_flight_max=50, commit_interval_ms=20)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"in_flight_max": 0}, {"order": "keys"}], ids=str)
async def test_what_would_do_nothing_or_keep_no_order_is_refused(wrong: dict[str, Any]) -> None:
    async def handle(record: ConsumerRecord) -> None:
        """Does nothing."""

    async with group_broker() as running:
        await fill(running, "t", 1, 1)
        async with member(running) as consumer:
            with (
                trio.fail_after(10),
                pytest.raises(ValueError, match=f"^{'order' if 'order' in wrong else 'workers'} "),
            ):
                await process_in_parallel(consumer, handle, **wrong)


async def test_only_what_is_finished_in_a_row_is_committed() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 20)
        done: list[int] = []
        never = trio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 7:
                await never.wait()
            done.append(record.offset)

        async with member(running) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(_process, consumer, handle, "key")
            await until(lambda: len(done) == 19)
            nursery.cancel_scope.cancel()
        assert await running.broker.offsets.fetch("g") == {("t", 0): Committed(7)}


@pytest.mark.parametrize("overtaken", [True, False], ids=["retention", "cut"])
async def test_what_waits_is_worked_on_though_retention_has_overtaken_it_or_the_log_was_cut(overtaken: bool) -> None:
    """It was passed over, and nothing said so."""
    async with group_broker() as running, Client(running.server) as client:
        await fill(running, "t", 1, 20)
        done: list[int] = []
        go_on = trio.Event()

        async def handle(record: ConsumerRecord) -> None:
            await go_on.wait()
            done.append(record.offset)

        async with member(running, fetch_max_wait_ms=10) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(_process, consumer, handle, "partition")
            await until(lambda: consumer._positions and consumer.position("t", 0) == 20)
            if overtaken:
                consumer.pause([("t", 0)])
                await until(lambda: not any(consumer._fetches.values()))
                await fill(running, "t", 1, 20)
                await client.delete_records("t", 0, 30)
                consumer.resume([("t", 0)])
            else:
                consumer._cut(consumer._positions["t", 0], 15)
            behind = [*range(30, 40)] if overtaken else []
            end = 40 if overtaken else 20
            await until(lambda: consumer.position("t", 0) == end)
            go_on.set()
            await until(lambda: end - 1 in done)
            nursery.cancel_scope.cancel()
        assert done == [*range(20), *behind]
        assert await running.broker.offsets.fetch("g") == {("t", 0): Committed(end)}


async def test_the_first_error_ends_it() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 20)

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 5:
                raise KeyError("what the application raises")

        async with member(running) as consumer:
            with pytest.raises(KeyError, match="application"):
                await process_in_parallel(consumer, handle, workers=2, order="partition")
        assert await running.broker.offsets.fetch("g") == {("t", 0): Committed(5)}
        async with member(running, auto_commit_interval_ms=5) as consumer:
            with pytest.raises(ValueError, match="auto_commit"):
                await process_in_parallel(consumer, handle)


@pytest.mark.parametrize("order", ["key", "partition", "none"])
async def test_who_goes_on_after_an_error_gets_again_what_was_not_finished(order: Any) -> None:
    async with group_broker() as running:
        await fill_keyed(running, 100, 10)
        done: set[int] = set()
        failed: set[int] = set()

        async def handle(record: ConsumerRecord) -> None:
            await trio.lowlevel.checkpoint()
            number = int(record.value or b"")
            if number % 20 == 5 and number not in failed:
                failed.add(number)
                raise KeyError("what the application raises")
            done.add(number)

        async def go_on(consumer: Consumer) -> None:
            while True:
                with suppress(KeyError):
                    await _process(consumer, handle, order)

        async with member(running) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(go_on, consumer)
            await until(lambda: len(done) == 100)
            nursery.cancel_scope.cancel()
        assert failed == {5, 25, 45, 65, 85}
        offsets = await running.broker.offsets.fetch("g")
        assert sum(at.offset for at in offsets.values()) == 100


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_error_while_partitions_are_given_up_passes_nothing_over(protocol: str) -> None:
    """The consumer asked for records, and gave partitions up there, when what was under way failed."""
    async with group_broker(consumer_heartbeat_ms=20) as running:
        await fill(running, "t", 2, 20)
        done: set[tuple[int, int]] = set()
        going, failed = trio.Event(), trio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 3 and not failed.is_set():
                await going.wait()
                await trio.sleep(0.02)  # so that what is under way is waited for
                failed.set()
                raise KeyError("what the application raises")
            done.add((record.partition, record.offset))

        async with member(running, group_protocol=protocol) as consumer, trio.open_nursery() as nursery:

            async def going_on(partitions: list[Partition]) -> None:
                going.set()

            consumer._before_revoked.append(going_on)
            nursery.start_soon(_come_when, lambda: len(done) >= 6, running, protocol, done)
            with pytest.raises(KeyError):
                await _process(consumer, handle, "partition")
            await consumer.commit()
            nursery.start_soon(_process, consumer, handle, "partition")
            await until(lambda: len(done) == 40)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_who_is_put_out_while_it_finishes_what_is_under_way_is_told_that_it_has_lost_it(protocol: str) -> None:
    async with group_broker(consumer_heartbeat_ms=20) as running:
        await fill(running, "t", 2, 1)
        told, begun, finish = Told(), set(), trio.Event()

        async def handle(record: ConsumerRecord) -> None:
            begun.add(record.partition)
            await finish.wait()

        settings = {"group_protocol": protocol, "max_poll_interval_ms": 200}
        slow = member(running, listener=told, **settings)
        async with slow, trio.open_nursery() as nursery:
            nursery.start_soon(_process, slow, handle, "partition")
            await until(lambda: len(begun) == 2)
            async with member(running, **settings) as other:
                nursery.start_soon(other.poll, 10_000)
                await until(lambda: slow._membership is not None and slow._membership._out)
                finish.set()
                await until(lambda: len(told.told) > 1)
                assert [what for what, _ in told.told[:2]] == ["assigned", "lost"]
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("settings", [{"assignors": ["cooperative-sticky"]}, {"group_protocol": "consumer"}])
async def test_a_handler_that_hangs_keeps_others_waiting_for_max_poll_interval_ms(settings: dict[str, Any]) -> None:
    async with group_broker(consumer_heartbeat_ms=20) as running:
        await fill(running, "t", 2, 1)
        begun: set[int] = set()

        async def hang(record: ConsumerRecord) -> None:
            begun.add(record.partition)
            await trio.sleep_forever()

        hung = member(running, max_poll_interval_ms=300, **settings)
        async with hung, trio.open_nursery() as nursery:
            nursery.start_soon(_process, hung, hang, "partition")
            await until(lambda: len(begun) == 2)
            async with member(running, **settings) as other:
                reading = Reading(other)
                nursery.start_soon(reading.run)
                await until(lambda: len(reading.values) == 2)
                reading.scope.cancel()
                nursery.cancel_scope.cancel()


async def _come_when(condition: Any, running: Running, protocol: str, done: set[Any]) -> None:
    """Another member, which reads on with what it gets."""
    await until(condition)
    async with member(running, group_protocol=protocol) as consumer:
        while True:
            done.update((record.partition, record.offset) for record in await consumer.poll(20))


async def test_who_ends_it_and_commits_commits_nothing_that_was_not_finished() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 20)
        reached = trio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 7:
                reached.set()
                await trio.sleep_forever()

        async with member(running) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_process, consumer, handle, "partition")
                await reached.wait()
                nursery.cancel_scope.cancel()
            await consumer.commit()
            assert (await anext(consumer)).offset == 7
        assert await running.broker.offsets.fetch("g") == {("t", 0): Committed(7)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_come_and_go_and_nothing_finished_is_done_twice(protocol: str) -> None:
    async with group_broker(consumer_heartbeat_ms=30) as running, trio.open_nursery() as nursery:
        await fill_keyed(running, 600, 20, partitions=6)
        done: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            await trio.sleep(0.002)
            done.append(int(record.value or b""))

        async def work(stop: trio.Event) -> None:
            async with member(running, group_protocol=protocol) as consumer, trio.open_nursery() as inner:
                inner.start_soon(_process, consumer, handle, "key")
                await stop.wait()
                inner.cancel_scope.cancel()

        first, second = trio.Event(), trio.Event()
        nursery.start_soon(work, first)
        await until(lambda: len(done) > 50)
        nursery.start_soon(work, second)
        await until(lambda: len(set(done)) == 600)
        first.set()
        second.set()
        assert sorted(done) == list(range(600))


async def test_a_member_without_an_event_loop() -> None:
    told: list[tuple[str, list[Partition]]] = []

    def work(server: str) -> None:
        class Told(BlockingRebalanceListener):
            def on_assigned(self, partitions: list[Partition]) -> None:
                told.append(("assigned", sorted(partitions)))

            def on_revoked(self, partitions: list[Partition]) -> None:
                consumer.commit()
                told.append(("revoked", sorted(partitions)))

        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "topics": "t"}
        with BlockingGroupConsumer(server, "g", listener=Told(), **settings) as consumer:
            got = []
            for record in consumer:
                got.append((record.partition, record.offset))
                if len(got) == 7:
                    break
            consumer.commit()
            assert sum(consumer.committed().values()) == 7, "what iterating has not handed out is not consumed"
            assert sum(consumer.position("t", index) for index in range(2)) == 7
            rest = consumer.poll(2000)
            assert len(rest) + len(got) == len({(one.partition, one.offset) for one in rest} | set(got)) <= 20
            consumer.seek("t", 0, 9)
            consumer.pause([("t", 1)])
            assert [record.offset for record in consumer.poll(2000)] == [9]
            consumer.resume([("t", 1)])
            assert sorted(consumer.assignment) == [("t", 0), ("t", 1)]
            assert consumer.group_metadata().generation == 1
            consumer.seek_to_end()
            assert consumer.poll(10) == []
        assert [way for way, _ in told] == ["assigned", "revoked"]
        with BlockingGroupConsumer(server, "g", **settings) as consumer:
            assert consumer.poll(300) == []
        with BlockingGroupConsumer(server, "parallel", **settings) as consumer:
            seen: list[int] = []

            def handle(record: ConsumerRecord) -> None:
                seen.append(record.offset)
                if len(seen) == 20:
                    raise KeyError("enough")

            with pytest.raises(KeyError):
                consumer.process(handle, workers=1)
            assert sorted(seen) == sorted([*range(10)] * 2)
        with pytest.raises(ConnectionLost):
            BlockingGroupConsumer("127.0.0.1:1", "g", topics="t").__enter__()

    async with group_broker() as running:
        await fill(running, "t", 2, 10)
        await trio.to_thread.run_sync(work, running.server)
        async with Client(running.server) as client:
            assert [lag.lag for lag in await client.lag("g")] == [0, 0]


def signal_main_thread(number: signal.Signals) -> None:
    """When it sleeps: one that has let the interpreter go, and does not sleep yet, hears of it when it is woken."""
    state = Path(f"/proc/self/task/{threading.main_thread().native_id}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "S":
        pass
    os.kill(os.getpid(), number)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt: not so by itself where whoever started the tests ignores it, as a shell does for
    what it runs in the background.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_member_that_is_interrupted_has_ended_and_lost_nothing(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("native",)) as broker:
        server = f"127.0.0.1:{broker.native_port}"
        with BlockingClient(server) as client:
            client.create_topic("t")
        with BlockingProducer(server) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number)
        done: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            done.append(record.offset)
            if len(done) == 5:
                signal_main_thread(signal.SIGINT)

        class Interrupting(ConsumerInterceptor):
            armed = False

            def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
                if self.armed:
                    self.armed = False
                    signal_main_thread(signal.SIGINT)
                return records

        interceptor = Interrupting()
        settings: dict[str, Any] = {"topics": "t", "auto_offset_reset": "earliest", "interceptors": [interceptor]}
        with BlockingGroupConsumer(server, "g", **settings) as consumer:
            with pytest.raises(KeyboardInterrupt):
                consumer.process(handle, workers=1)
            assert done == list(range(len(done))), "and nothing is worked on any more"
            assert consumer.committed() == {("t", 0): len(done)}
            assert consumer.position("t", 0) == len(done)
            with BlockingProducer(server) as producer:  # all others may have been done before the signal was heard of
                producer.send("t", b"20")
            interceptor.armed = True
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(10_000)
            consumer.commit()
            assert consumer.committed() == {("t", 0): len(done)}, "what an interrupted call has got is not consumed"
            assert [record.offset for record in consumer.poll(10_000)] == list(range(len(done), 21))


def test_a_call_that_a_signals_handler_ends_has_ended(tmp_path: Path) -> None:
    def out_of_time(*_: object) -> None:
        raise TimeoutError("the time is up")

    def interrupt(consumer: BlockingGroupConsumer) -> None:
        while not waits(consumer):
            pass
        signal_main_thread(signal.SIGUSR1)

    def waits(consumer: BlockingGroupConsumer) -> bool:
        return consumer._call_sync(lambda: consumer._consumer._waiting)

    before = signal.signal(signal.SIGUSR1, out_of_time)
    try:
        with broker_process(tmp_path / "data", doors=("native",)) as broker:
            server = f"127.0.0.1:{broker.native_port}"
            with BlockingClient(server) as client:
                client.create_topic("t")
            with BlockingGroupConsumer(server, "g", topics="t", auto_offset_reset="earliest") as consumer:
                consumer.poll(0)
                interrupting = threading.Thread(target=interrupt, args=(consumer,))
                interrupting.start()
                with pytest.raises(TimeoutError, match="the time is up"):
                    consumer.poll(60_000)
                interrupting.join()
                assert not waits(consumer)
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_who_waits_while_a_member_is_closed_is_told_so() -> None:
    def work(server: str) -> None:
        said: list[BaseException] = []

        def wait(consumer: BlockingGroupConsumer) -> None:
            try:
                consumer.poll(20_000)
            except BaseException as error:
                said.append(error)

        with BlockingGroupConsumer(server, "g", topics="t") as consumer:
            consumer.poll(0)
            waiting = threading.Thread(target=wait, args=(consumer,))
            waiting.start()
            while not consumer._call_sync(lambda: consumer._consumer._waiting):
                pass
        waiting.join()
        assert [type(error) for error in said] == [ConnectionLost]

    async with group_broker() as running:
        await fill(running, "t", 1, 1)
        await trio.to_thread.run_sync(work, running.server)
