"""Short forms of the requests most tests make of a `Peer`."""

from __future__ import annotations

import trio

from protocols.log_waits import LogWaits
from protocols.native import wire
from tests.protocols.native.broker import Peer, Running, values_of


def produce(*entries: tuple[str, int, bytes], acks: int = -1, turn: int = 0, timeout_ms: int = 5000) -> wire.Produce:
    made = [wire.ProduceEntry(topic, partition, turn, memoryview(batch)) for topic, partition, batch in entries]
    return wire.Produce(0, acks, timeout_ms, made)  # type: ignore[arg-type]


def fetch(
    *entries: tuple[str, int, int], wait_ms: int = 0, bytes_min: int = 1, bytes_max: int = 1 << 20, each: int = 1 << 20
) -> wire.Fetch:
    return wire.Fetch(0, wait_ms, bytes_min, bytes_max, [wire.FetchEntry(*entry, each) for entry in entries])


async def produced(peer: Peer, *entries: tuple[str, int, bytes], acks: int = -1) -> list[tuple[int | None, int]]:
    """(error code, base offset) of each entry."""
    reply = await peer.ask(produce(*entries, acks=acks))
    assert isinstance(reply, wire.ProduceReply)
    return [(error and error[0], base_offset) for error, base_offset in reply.entries]


async def fetched(peer: Peer, request: wire.Fetch) -> list[tuple[int | None, list[bytes | None]]]:
    """(error code, values) of each entry."""
    reply = await peer.ask(request)
    assert isinstance(reply, wire.FetchReply)
    return [(entry.error and entry.error[0], values_of(entry.records)) for entry in reply.entries]


async def refused(peer: Peer, request: wire.Request) -> int:
    reply = await peer.ask(request)
    assert isinstance(reply, wire.ErrorReply), reply
    return reply.error[0]


def parked(running: Running, topic: str, partition: int = 0) -> int:
    """How many fetches wait for a partition."""
    return len(LogWaits.of(running.broker.topics[topic].partitions[partition].log))


async def until_parked(running: Running, topic: str, count: int = 1) -> None:
    while parked(running, topic) != count:
        await trio.lowlevel.checkpoint()
