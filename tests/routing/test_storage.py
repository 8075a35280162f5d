"""What keeps memory and disk within bounds: the cache, cold reads, spilling, checkpoints and dead prefixes."""

from __future__ import annotations

import errno

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing import storage
from routing.message import Properties
from routing.session import Outcome
from tests.routing.harness import TRANSIENT, Client, Engine, engine

SMALL = {"stripes": 1, "stripe_cache_bytes": 2000, "cold_read_bytes": 1000}


async def consume_all(running: Engine, client: Client, count: int) -> list[str]:
    """Take `count` deliveries, acknowledging as they come."""
    bodies: list[str] = []
    while len(bodies) < count:
        running.turn()
        if not client.deliveries:
            await running.until(lambda: bool(client.deliveries))
        taken, client.deliveries = client.deliveries, []
        bodies += [delivery.body for delivery in taken]
        if client.session.outstanding:
            client.ack(taken[0].id, taken[-1].id)
    return bodies


def numbers(count: int) -> list[str]:
    return [f"{number:050}" for number in range(count)]


def log_bytes(files: MemoryFiles, directory: str) -> int:
    return sum(files.size(f"{directory}/{name}") for name in files.list(directory) if name.endswith(".log"))


@pytest.mark.parametrize("prefetch", [0, 1, 7, 300])
@pytest.mark.parametrize("slab", [1, 10])
async def test_a_backlog_colder_than_the_cache_is_delivered_in_order(prefetch: int, slab: int) -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        await running.queue("q")
        client = running.client()
        bodies = numbers(400)
        for at in range(0, len(bodies), slab):
            client.publish("q", *bodies[at : at + slab], confirm=True)
            if at % 20 == 0:
                running.turn()
        running.turn()
        await running.until(lambda: client.confirmed == 400)
        running.turn()
        assert running.home("q")._cache.bytes <= 2000
        client.session.set_prefetch(prefetch, per_session=False)
        await client.consume("q")
        assert await consume_all(running, client, 400) == bodies
        assert client.session.outstanding == 0
        assert running.home("q").first_live_offset == running.home("q").next_offset


async def test_publishing_goes_on_while_a_cold_backlog_is_consumed_by_several() -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        await running.queue("q")
        publisher = running.client()
        bodies = numbers(600)
        publisher.publish("q", *bodies[:300], confirm=True)
        running.turn()
        await running.until(lambda: publisher.confirmed == 300)
        consumers = [running.client() for _ in range(3)]
        for consumer in consumers:
            consumer.session.set_prefetch(5, per_session=False)
            await consumer.consume("q")
        seen: list[str] = []
        while len(seen) < 600:
            if publisher.session.confirms.published < 600:
                at = publisher.session.confirms.published
                publisher.publish("q", *bodies[at : at + 10], confirm=True)
            running.turn()
            if not any(consumer.deliveries for consumer in consumers):
                await running.until(lambda: any(consumer.deliveries for consumer in consumers))
            for consumer in consumers:
                taken, consumer.deliveries = consumer.deliveries, []
                assert not any(delivery.redelivered for delivery in taken)
                mine = [delivery.body for delivery in taken]
                assert mine == sorted(mine)
                seen += mine
                consumer.session.settle_up_to(0, Outcome.ACK)
        assert sorted(seen) == bodies


async def test_cold_messages_of_several_queues_and_gets() -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        client = running.client()
        for name in ("a", "b", "c"):
            await running.queue(name)
        for number in range(300):
            client.publish("abc"[number % 3], f"{number:050}")
            running.turn()
        await running.synced()
        for at, name in enumerate("abc"):
            assert await running.drain(name) == [(f"{number:050}", False) for number in range(at, 300, 3)]


async def test_requeued_cold_messages_come_back_in_order() -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        await running.queue("q")
        client = running.client()
        bodies = numbers(200)
        client.publish("q", *bodies)
        await running.synced()
        client.session.set_prefetch(50, per_session=False)
        await client.consume("q")
        running.turn()
        await running.until(lambda: len(client.deliveries) == 50)
        client.deliveries.clear()
        client.session.recover()
        client.session.set_prefetch(0, per_session=True)
        running.turn()
        await running.until(lambda: len(client.deliveries) == 50)
        assert all(delivery.redelivered for delivery in client.deliveries)
        assert await consume_all(running, client, 200) == bodies


async def test_a_read_that_fails_is_tried_again_and_loses_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, **SMALL) as running:
        await running.queue("q")
        client = running.client()
        bodies = numbers(100)
        client.publish("q", *bodies)
        await running.synced()
        files.failing["read"] = errno.EIO
        failures: list[str] = []
        failed = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def note(operation: str, path: str) -> None:
            if operation == "read":
                failures.append(path)
                token.run_sync_soon(failed.set)

        files.hook = note
        await client.consume("q")
        running.turn()
        await failed.wait()
        files.hook = None
        files.failing.clear()
        assert await consume_all(running, client, 100) == bodies


async def test_damage_costs_what_is_damaged() -> None:
    files = MemoryFiles()
    bodies = [str(number) * 100_000 for number in range(10)]
    async with engine(files, **SMALL) as running:
        await running.queue("q")
        for body in bodies:
            await running.client().publish_safely("q", body, body[:3])
        directory = running.home("q").log.directory
    (path,) = [f"{directory}/{name}" for name in files.list(directory) if name.endswith(".log")]
    file = files.open(path)
    file.pwritev([b"X"], file.pread(files.size(path), 0).index(b"55555"))
    async with engine(files, **SMALL) as running:
        drained = [body for body, _ in await running.drain("q")]
        assert drained == [each for body in bodies if body != bodies[5] for each in (body, body[:3])]
        assert running.count("q") == 0


@pytest.mark.parametrize("properties", [Properties("test", b"", persistent=True), TRANSIENT])
async def test_transient_queues_spill_and_keep_their_order(properties: Properties) -> None:
    files = MemoryFiles()
    async with engine(files, transient_memory_bytes=4000, cold_read_bytes=1000) as running:
        await running.queue("q", durable=False)
        client = running.client()
        bodies = numbers(500)
        for at in range(0, 500, 5):
            client.publish("q", *bodies[at : at + 5], properties=properties, confirm=True)
            running.turn()
            await trio.lowlevel.checkpoint()
        assert client.confirmed == 500
        home = running.home("q")
        await running.until(lambda: home._cache.bytes <= 4000)
        assert log_bytes(files, "scratch/0") > 10_000
        client.session.set_prefetch(20, per_session=False)
        await client.consume("q")
        assert await consume_all(running, client, 500) == bodies
        assert home._cache.bytes == 0
        assert home.first_live_offset == home.next_offset
        client.publish("q", "still", "here")
        assert client.take_bodies() == ["still", "here"]
    assert not files.exists("scratch/1")
    async with engine(files) as running:
        assert log_bytes(files, "scratch/0") == 0


async def test_transient_messages_stay_in_memory_while_the_scratch_disk_fails() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, transient_memory_bytes=2000, cold_read_bytes=1000) as running:
        await running.queue("q", durable=False)
        client = running.client()
        bodies = numbers(300)
        home = running.home("q")
        files.failing["write"] = errno.ENOSPC
        for at in range(0, 200, 10):
            client.publish("q", *bodies[at : at + 10], confirm=True)
            running.turn()
        await running.until(lambda: home.log.error is not None)
        client.publish("q", *bodies[200:], confirm=True)
        running.turn()
        assert client.confirmed == 300
        await client.consume("q")
        assert await consume_all(running, client, 300) == bodies
        files.failing.clear()


async def test_a_spilled_prefix_is_deleted_from_scratch() -> None:
    files = MemoryFiles()
    config = {"transient_memory_bytes": 2000, "cold_read_bytes": 1000, "queue_segment_bytes": 4096}
    async with engine(files, housekeeping_interval_ms=1, **config) as running:
        await running.queue("q", durable=False)
        client = running.client()
        await client.consume("q")
        for round_ in range(30):
            client.session.pause(True)
            for at in range(0, 1000, 50):
                client.publish("q", *[f"{round_}.{number:050}" for number in range(at, at + 50)])
                running.turn()
            client.session.pause(False)
            assert len(await consume_all(running, client, 1000)) == 1000
        await running.until(lambda: log_bytes(files, "scratch/0") < 100_000)


async def test_what_is_larger_than_messages_may_be_by_now_goes_on_to_another_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "_BATCH_ROOM_BYTES", 1000)
    files, letters = MemoryFiles(), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    async with engine(files) as running:
        await running.queue("dead")
        queues = running.broker.topology.queues
        for name in map(str, range(10)):
            await running.queue(name, arguments=letters)
            if queues[name].partition is not queues["dead"].partition:
                break
        client = running.client()
        client.publish(name, "x" * 50_000, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 1)
    async with engine(files, message_bytes_max=1000) as running:
        client = running.client()
        await client.consume(name)
        running.turn()
        await running.until(lambda: client.deliveries)
        client.session.settle(1, 1, Outcome.DISCARD)
        running.turn()
        client.publish("dead", "y", confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 1)
        assert await running.drain("dead") == [("x" * 50_000, False), ("y", False)]
