"""Requests of clients that mean harm, for everything that is served: valid ones with odd values, and what can be made
of them by cutting, changing and lying.

    python -m tests.protocols.kafka.hostile --seconds 120 --seed 1

1. What is valid is answered as its version says, later perhaps, or ends the connection; what is not ends the
   connection, or is another valid request. Nothing raises, and a request takes no more memory than it may.
2. Meanwhile, and afterwards, a client that means none is served.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from functools import partial
from struct import pack, unpack_from
from typing import Any

import structlog
import trio

import protocols.kafka.adapter  # noqa: F401  it has everything registered
from core_log.compression import Compression
from protocols.kafka import codec
from protocols.kafka.codec import Entity
from protocols.kafka.registry import SERVED, Served
from protocols.kafka.schema import Field
from routing.broker import Broker
from tests.protocols.kafka.door import Peer, batch_of, idempotent, kafka_broker, records_of

SETTINGS = {"partitions_max": 4, "topics_max": 20}
MEMORY_BYTES_MAX = 8 << 20
"""What one request of some kilobytes may take on its way."""
_NAMES = ["t", "t", "t2", "missing", "", "no/ne", "__offsets", "x" * 300, "é", "\0", "g", "m"]
_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_LIES = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff" * 4, b"\x80\0\0\0", b"\xff" * 10, bytes(8)]
_PEERS_MAX = 8
_CORRELATION = 7
_ANSWER_S = 10


def versions() -> Iterator[tuple[Served, int]]:
    """Everything that is served."""
    for _, served in sorted(SERVED.items()):
        for version in range(served.version_min, served.version_max + 1):
            yield served, version


class Maker:
    """Makes requests."""

    def __init__(self, dice: random.Random, ids: list[bytes]) -> None:
        self._dice = dice
        self._ids = ids
        whole = batch_of([b"a", b"b"])
        self._batches = [
            whole,
            whole + batch_of([b"c"], compression=Compression.GZIP),
            whole[:-1],
            whole[:20],
            whole[:57] + b"\xff" * (len(whole) - 57),
            whole[:8] + b"\x7f\xff\xff\xff" + whole[12:],
            whole[:16] + b"\1" + whole[17:],
            idempotent(whole, 5, 0, 0),
            idempotent(whole, 5, 0, 77),
            b"",
        ]

    def frame(self, served: Served, version: int) -> bytes:
        """A valid request, without its length."""
        entity = self._entity(served.api.request, version)
        head = head_of(served, version)
        return b"".join(codec.write_message(codec.request_writer(served.api, version), head, entity))

    def _entity(self, fields: tuple[Field, ...], version: int) -> Entity:
        return Entity(**{field.name: self._value(field, version) for field in fields if field.is_in(version)})

    def _value(self, field: Field, version: int) -> Any:
        dice = self._dice
        if field.is_nullable(version) and dice.random() < 0.2:
            return None
        if field.is_array:
            count = dice.choice((0, 1, 1, 2, 3, 40 if field.type == "{}" else 2))
            return [self._one(field, version) for _ in range(count)]
        return self._one(field, version)

    def _one(self, field: Field, version: int) -> Any:
        dice, kind = self._dice, field.type
        if kind == "{}":
            return self._entity(field.fields, version)
        if kind in _BITS:
            low = 0 if kind.startswith("u") else -(1 << _BITS[kind] - 1)
            high = low + (1 << _BITS[kind]) - 1
            small = (0, 0, 0, 1, 1, 2, 3, max(low, -1), max(low, -2), 100)
            return dice.choice((*small, low, high, dice.randint(low, high)))
        if kind == "bool":
            return dice.random() < 0.5
        if kind == "float64":
            return dice.choice((0.0, -1.0, 1e300, float("nan")))
        if kind == "uuid":
            return dice.choice([*self._ids, bytes(16), dice.randbytes(16)])
        if kind == "string":
            return dice.choice(_NAMES)
        if kind == "records":
            return [dice.choice(self._batches)]
        return dice.choice((b"", b"\0guest\0guest", b"x", dice.randbytes(50)))

    def spoilt(self, frame: bytes) -> bytes:
        """What can be made of a frame."""
        dice = self._dice
        at = dice.randrange(8, len(frame)) if len(frame) > 8 else 8
        match dice.randrange(6):
            case 0:
                return frame[:at]
            case 1:
                return frame[:at] + dice.choice(_LIES) + frame[at:]
            case 2:
                lie = dice.choice(_LIES)
                return frame[:at] + lie + frame[at + len(lie) :]
            case 3:
                changed = bytearray(frame)
                for _ in range(dice.randrange(1, 4)):
                    changed[dice.randrange(8, len(frame))] = dice.randrange(256)
                return bytes(changed)
            case 4:
                return frame + dice.randbytes(dice.randrange(1, 30))
            case _:
                return frame[:at] + frame[8:] + frame[at:]


def head_of(served: Served, version: int) -> bytes:
    """The header of a request."""
    head = pack(">hhih", served.api.key, version, _CORRELATION, 4) + b"test"
    return head + b"\0" if served.api.is_flexible(version) else head


async def tell(peer: Peer, frame: bytes) -> None:
    """Send a request, whatever it is."""
    with trio.fail_after(_ANSWER_S):
        await peer.receive(pack(">i", len(frame)) + frame)


def check_replies(peer: Peer, served: Served, version: int) -> None:
    """What has come is what that version says."""
    data = bytes(peer.pipe.data)
    peer.pipe.data.clear()
    while data:
        size, correlation_id = unpack_from(">ii", data)
        assert correlation_id == _CORRELATION
        assert size <= len(data) - 4
        flexible = served.api.is_flexible(version) and served.api.key != 18
        reader = codec.reply_reader(served.api, version)
        _, end = reader(data[: 4 + size], 8 + flexible, 4 + size)
        assert end == 4 + size, f"{served.api.name} {version}"
        data = data[4 + size :]


async def attack(broker: Broker, maker: Maker, served: Served, version: int, count: int) -> int:
    """So many valid requests, and as many spoilt ones, on connections that stay for a while; how many of the valid were
    answered.
    """
    answered = 0
    peers: deque[tuple[Peer, bool]] = deque()

    def end_one() -> int:
        peer, is_valid = peers.popleft()
        came = is_valid and bool(peer.pipe.data)
        if is_valid:
            check_replies(peer, served, version)
        peer.adapter.connection_lost()
        return came

    for _ in range(count):
        frame = maker.frame(served, version)
        valid, spoilt = Peer(broker), Peer(broker)
        peers += [(valid, True), (spoilt, False)]
        await tell(valid, frame)
        for _ in range(3):
            if not spoilt.adapter.closed:
                await tell(spoilt, maker.spoilt(frame))
        if len(peers) > _PEERS_MAX:
            answered += end_one()
        await honest(broker)
    while peers:
        answered += end_one()
    broker.end_turn()
    return answered


async def strangers(broker: Broker, dice: random.Random, count: int) -> None:
    """Keys and versions that are not served, and lengths that lie."""
    for _ in range(count):
        peer = Peer(broker)
        key = dice.choice([-1, 4, 5, 7, 99, 32767, *SERVED])
        version = dice.choice([-1, 99, 32767, -32768])
        await tell(peer, pack(">hhih", key, version, 1, dice.choice([-1, 0, 3, 32767, -5])) + dice.randbytes(20))
        assert peer.adapter.closed or (key == 18 and peer.pipe.data)
        peer.adapter.connection_lost()
        peer = Peer(broker)
        await peer.receive(dice.choice(_LIES) + dice.randbytes(30))
        peer.adapter.connection_lost()


async def honest(broker: Broker) -> None:
    """A client that means no harm writes and reads."""
    peer = Peer(broker)
    await peer.produce("t", batch_of([b"x"]))  # what waits for a record has one
    produced = await peer.produce("control", batch_of([b"x"]))
    assert produced.error_code == 0
    found = records_of(await peer.fetch("control", produced.base_offset))
    assert [one.value for one in found][-1:] == [b"x"]
    peer.adapter.connection_lost()


async def lies(broker: Broker, maker: Maker, dice: random.Random, served: Served, version: int, places: int) -> None:
    """Lengths that lie in many places of a request; none takes memory."""
    frame = maker.frame(served, version)
    start = len(head_of(served, version))
    for at in dice.sample(range(start, len(frame)), min(places, len(frame) - start)):
        for lie in _LIES[:2]:
            peer = Peer(broker)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            await tell(peer, frame[:at] + lie + frame[at + len(lie) :])
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < MEMORY_BYTES_MAX, (served.api.name, version, at, lie)
            peer.adapter.connection_lost()


async def prepared(broker: Broker, dice: random.Random) -> Maker:
    """Topics that requests may be about."""
    for name, partitions in (("t", 2), ("t2", 1), ("control", 1)):
        if name not in broker.topics:
            await broker.create_topic(name, partitions=partitions, config={"retention.ms": "-1"})
    return Maker(dice, [broker.topics[name].id for name in ("t", "t2")])


async def rounds(seed: int, *, seconds: float) -> None:
    """Round after round on one broker, until the time is over."""
    dice, until = random.Random(seed), time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        async with kafka_broker(**SETTINGS) as broker:
            for served, version in versions():
                maker = await prepared(broker, dice)
                await attack(broker, maker, served, version, 5)
                if time.monotonic() > until:
                    break
            await strangers(broker, dice, 50)
            await honest(broker)
        number += 1
        print(f"round {number}: no surprise", flush=True)


def main() -> None:
    """See the module."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trio.run(partial(rounds, options.seed, seconds=options.seconds))


if __name__ == "__main__":
    main()
