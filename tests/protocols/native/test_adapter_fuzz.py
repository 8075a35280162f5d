"""Damaged and random requests, straight into the adapter: it answers or closes, and never raises."""

from __future__ import annotations

import random

import pytest
import trio

from protocols.native import wire, wire_topics
from protocols.native.adapter import NativeAdapter
from protocols.native.config import NativeConfig
from protocols.native.connection import FrameReader
from tests.protocols.native.broker import batch_of, native_broker

REQUESTS: list[wire.Request] = [
    wire.Metadata(1, ["t", "u"], True),
    wire_topics.CreateTopic(2, "v", 2, {"retention.ms": "5000"}),
    wire_topics.DeleteTopic(3, "v"),
    wire_topics.DescribeTopic(4, "t"),
    wire_topics.Bind(5, "t", "amq.topic", "a.#", {}),
    wire_topics.Unbind(6, "t", "amq.topic", "a.#", {}),
    wire.Produce(7, -1, 100, [wire.ProduceEntry("t", 0, 0, memoryview(batch_of(b"a", b"b")))]),
    wire.Produce(8, 1, 0, [wire.ProduceEntry("t", 0, 0, memoryview(batch_of(b"c")))]),
    wire.Produce(9, 0, 0, [wire.ProduceEntry("t", 0, 0, memoryview(batch_of(b"d")))]),
    wire.Fetch(10, 5, 1, 1000, [wire.FetchEntry("t", 0, 0, 1000), wire.FetchEntry("u", 0, 0, 1000)]),
    wire.ListOffsets(11, [wire.ListOffsetsEntry("t", 0, which, 0) for which in (-1, -2, 1000)]),
    wire.OffsetsForEpochs(12, [("t", 0, -1, 0), ("u", 0, 0, 7)]),
    wire.CommitOffsets(12, "g", [("t", 0, 1, "")]),
    wire.FetchOffsets(13, "g", None),
]


class Collected:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.writable = True
        self.on_writable = None
        self.data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


def damaged(frame: bytes, dice: random.Random) -> bytes:
    """`frame` with a few bytes changed, cut out or put in; the length is right again, mostly."""
    body = bytearray(frame[4:])
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(body) + 1)
        new = dice.choice((b"", b"\xc0", b"\x00", b"\xff", b"\x90", dice.randbytes(3)))
        body[at : at + dice.randrange(3)] = new
    size = len(body) if dice.random() < 0.95 else dice.randrange(3000)
    return size.to_bytes(4, "big") + body


@pytest.mark.parametrize("seed", range(5))
async def test_damaged_requests(seed: int) -> None:
    dice = random.Random(seed)
    config = NativeConfig(request_bytes_max=2000, requests_in_flight_max=5)
    frames = [b"".join(wire.encode(request)) for request in REQUESTS]
    async with native_broker() as running:
        for _ in range(60):
            outbox = Collected()
            adapter = NativeAdapter(running.broker, outbox, peer="127.0.0.1:1", clock=trio.current_time, config=config)
            data = b"".join(wire.encode(wire.Hello(0, 1, 1, "", None)))
            data += b"".join(damaged(dice.choice(frames), dice) for _ in range(10))
            while data and not adapter.closed:
                size = dice.randrange(1, 200)
                await adapter.handle(data[:size])
                running.broker.end_turn()
                data = data[size:]
            adapter.connection_lost()
            replies = [wire.decode_reply(frame) for frame in FrameReader(1 << 20).feed(bytes(outbox.data))]
            assert isinstance(replies[0], wire.HelloReply)
