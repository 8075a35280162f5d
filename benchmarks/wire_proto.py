"""The client side of AMQP 0-9-1 that the load generator needs, and no more, and what `wire_mqtt` shares with it.

Each protocol class opens connections, encodes a tape of messages to publish, counts what the broker acknowledges, finds
the size of one delivery and encodes acknowledgements.

A tape is either uniform (one message again and again) or varied: `VARIETY` body sizes in turn, and a message id (AMQP)
or a topic (MQTT, fan-out) that changes from message to message. `VARIETY` divides 65,535, the number of MQTT packet
ids, so that a varied tape can be repeated and deliveries keep a period of `VARIETY`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Self

TAPE_SIZE = 1 << 18  # bytes of whole messages encoded to be published over and over
VARIETY = 85
VARIED_MESSAGES = 65535  # so many different message ids that memoising all of them does not help
serial = itertools.count(1)

Step = tuple[bytes, int] | None


RULES = b"".join(
    (
        b"\x0ex-max-priorityI" + struct.pack(">i", 10),
        b"\x0dx-message-ttlI" + struct.pack(">i", 90_000),
        b"\x16x-dead-letter-exchangeS" + struct.pack(">I", 10) + b"amq.fanout",
    )
)
"""The queue of a plan with `rules`: priorities, a time to live, dead letters."""


@dataclass
class Plan:
    """What a scenario asks of publishers and subscribers."""

    body: int = 100
    publishers: int = 1
    subscribers: int = 1
    reliable: bool = False  # AMQP: durable, persistent, confirms, acks.  MQTT: QoS 1.
    topic: bool = False  # AMQP: through a topic exchange, one queue per subscriber
    varied: bool = False
    ids: bool = False  # AMQP: a message id that changes, bodies of one size
    rules: bool = False  # AMQP: `ids`, and a random priority and expiration on each message, on a queue that heeds them
    qos: int = -1  # MQTT: 2, and `reliable`; -1 says 1 or 0, as `reliable` is
    session: bool = False  # MQTT: the subscribers' sessions last
    version: int = 4  # MQTT: 5 has a content type, a user property and a topic alias on every message
    window: int = 1000
    prefetch: int = 300
    ack_every: int = 100
    rate: float = 0  # messages a second in latency mode, 0 for as fast as possible
    backlog: bool = False

    @property
    def period(self) -> int:
        """After so many deliveries their sizes repeat."""
        return VARIETY if self.varied else 1

    @property
    def mixed(self) -> bool:
        """Deliveries have no period: other packets are among them, or several publishers' are."""
        return self.qos == 2 or (self.varied and self.publishers > 1)

    def body_of(self, index: int) -> bytes:
        """The body of message `index` of a tape: 50 to 500 bytes when varied."""
        return b"x" * (50 + index * 37 % VARIETY * 450 // (VARIETY - 1) if self.varied else self.body)


class Tape:
    """Whole messages ready to be sent; `starts[i]` is where message i begins, with the end as last entry.

    `prelude` are the first messages as they are sent the first time, where that differs.
    """

    def __init__(self, messages: list[bytes], prelude: Sequence[bytes] = ()) -> None:
        self.prelude = b"".join(prelude)
        self.prelude_count = len(prelude)
        self.data = b"".join(messages)
        self.starts = [0, *accumulate(map(len, messages))]
        self.count = len(messages)


class BrokerError(Exception):
    """The broker answered something other than what the scenario needs."""


class Conn:
    """One blocking client connection; subclasses know the protocol.

    A subclass has `trailer`, the bytes of a message after its body, and `head`, the leading bytes that are the same in
    all deliveries of one size. Its `handshake` is a generator of pairs (bytes to send, expected reply) that is sent
    each reply's arguments, so that one connection or a whole batch in lockstep can be driven by it.
    """

    trailer: ClassVar[int]
    head: ClassVar[int]

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sock = socket.create_connection((options.host, options.port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)
        self.confirmed, self.rest = 0, b""

    def handshake(self) -> Generator[Step, bytes, None]:
        """See the class."""
        raise AssertionError("a subclass knows the protocol")

    def read_reply(self) -> tuple[int, bytes]:
        """One whole reply: its kind and arguments."""
        raise AssertionError("a subclass knows the protocol")

    @classmethod
    def open_many(cls, options: argparse.Namespace, count: int, batch: int = 50) -> list[Self]:
        """Open `count` connections, `batch` of them shaking hands at a time."""
        conns: list[Self] = []
        while len(conns) < count:
            group = [cls(options) for _ in range(min(batch, count - len(conns)))]
            dialogs = [conn.handshake() for conn in group]
            steps = [next(dialog) for dialog in dialogs]
            while steps[0] is not None:
                wanted = [step for step in steps if step is not None]
                for conn, (data, _) in zip(group, wanted):
                    conn.sock.sendall(data)
                replies = [conn.expect(reply) for conn, (_, reply) in zip(group, wanted)]
                steps = [dialog.send(reply) for dialog, reply in zip(dialogs, replies)]
            conns += group
        return conns

    @classmethod
    def open(cls, options: argparse.Namespace) -> Self:
        """Open one connection."""
        return cls.open_many(options, 1)[0]

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, and not one more: deliveries may follow a reply."""
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise BrokerError(f"connection closed by the broker after {data!r}")
            data += part
        return data

    def expect(self, wanted: int) -> bytes:
        """The arguments of the next reply, which must be of kind `wanted`."""
        got, args = self.read_reply()
        if got != wanted:
            raise BrokerError(f"expected {wanted:#x}, broker sent {got:#x} {args[:200]!r}")
        return args

    def call(self, data: bytes, wanted: int) -> bytes:
        """Send a request and return its reply's arguments."""
        self.sock.sendall(data)
        return self.expect(wanted)


def shortstr(text: str) -> bytes:
    """AMQP short string."""
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """AMQP frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, ident: int, args: bytes = b"") -> bytes:
    """AMQP method frame."""
    return frame(1, channel, struct.pack(">I", ident) + args)


# AMQP method identifiers, (class << 16) | method; each synchronous one is answered by id + 1.
START, START_OK, TUNE, TUNE_OK, OPEN = 0x0A000A, 0x0A000B, 0x0A001E, 0x0A001F, 0x0A0028
CHANNEL_OPEN, CONFIRM_SELECT = 0x14000A, 0x55000A
EXCHANGE_DECLARE, EXCHANGE_DELETE = 0x28000A, 0x280014
QUEUE_DECLARE, QUEUE_BIND, QUEUE_DELETE = 0x32000A, 0x320014, 0x320028
QOS, CONSUME, PUBLISH, DELIVER, ACK, REJECT, NACK = 0x3C000A, 0x3C0014, 0x3C0028, 0x3C003C, 0x3C0050, 0x3C005A, 0x3C0078
ACK_FRAME = struct.Struct(">BHIIQBB")


class Amqp(Conn):
    """AMQP 0-9-1 on one channel."""

    trailer = 1  # the frame-end octet
    head = 11  # frame header, class and method

    def handshake(self) -> Generator[Step, bytes, None]:
        o = self.options
        yield b"AMQP\0\0\x09\x01", START
        plain = f"\0{o.user}\0{o.password}".encode()
        args = bytes(4) + shortstr("PLAIN") + struct.pack(">I", len(plain)) + plain
        tune = yield method(0, START_OK, args + shortstr("en_US")), TUNE
        channel_max, frame_max, _ = struct.unpack(">HIH", tune)
        tune_ok = method(0, TUNE_OK, struct.pack(">HIH", channel_max, frame_max, 0))
        yield tune_ok + method(0, OPEN, shortstr(o.vhost) + b"\0\0"), OPEN + 1
        yield method(1, CHANNEL_OPEN, b"\0"), CHANNEL_OPEN + 1
        yield None

    def read_reply(self) -> tuple[int, bytes]:
        _, _, size = struct.unpack(">BHI", self.read(7))
        payload = self.read(size + 1)
        return int.from_bytes(payload[:4], "big"), payload[4:-1]

    def request(self, ident: int, args: bytes) -> bytes:
        """A synchronous method on channel 1."""
        return self.call(method(1, ident, args), ident + 1)

    def publisher(self, plan: Plan, name: str) -> Tape:
        """Prepare to publish; what to publish."""
        self.confirmed, self.rest = 0, b""
        self.early: set[int] = set()
        if plan.reliable:
            self.request(CONFIRM_SELECT, b"\0")
        if plan.varied or plan.ids or plan.rules:
            return Tape([self.message(plan, name, index) for index in range(VARIED_MESSAGES)])
        one = self.message(plan, name, 0)
        return Tape([one] * max(plan.window, TAPE_SIZE // len(one)))

    @staticmethod
    def message(plan: Plan, name: str, index: int) -> bytes:
        """All frames of one publish."""
        body = plan.body_of(index)
        exchange, key = (name, f"bench.{index % VARIETY:03}.out") if plan.topic else ("", name + ".0")
        mode = b"\2" if plan.reliable else b"\1"
        if plan.varied:  # content type, delivery mode and message id
            flags, values = 0x9080, shortstr("application/json") + mode + shortstr(f"message-{index:08}")
        elif plan.rules:  # priority and expiration besides
            rolled = random.Random(index)
            expiration = shortstr(f"{rolled.randrange(60_000, 99_999)}")
            values = mode + bytes([rolled.randrange(10)]) + expiration + shortstr(f"message-{index:08}")
            flags, values = 0x9980, shortstr("application/json") + values
        elif plan.ids:
            flags, values = 0x9080, shortstr("application/json") + mode + shortstr(f"message-{index:08}")
        else:
            flags, values = (0x1000, mode) if plan.reliable else (0, b"")
        header = struct.pack(">HHQH", 60, 0, len(body), flags) + values
        publish = b"\0\0" + shortstr(exchange) + shortstr(key) + b"\0"
        return method(1, PUBLISH, publish) + frame(2, 1, header) + frame(3, 1, body)

    def acknowledged(self, data: bytes) -> int:
        """Feed bytes the broker sent to a publisher; how many messages it has confirmed."""
        data = self.rest + data
        whole = len(data) // ACK_FRAME.size * ACK_FRAME.size
        self.rest = data[whole:]
        low, early = self.confirmed, self.early
        for _, _, _, ident, tag, multiple, _ in ACK_FRAME.iter_unpack(data[:whole]):
            if ident != ACK:
                raise BrokerError(f"publisher was sent {ident:#x} in {data[:200]!r}")
            if not multiple:
                early.add(tag)
            elif tag > low:
                low = tag
                early = {tag for tag in early if tag > low}
        while low + 1 in early:
            low += 1
            early.discard(low)
        self.confirmed, self.early = low, early
        return low + len(early)

    def subscriber(self, plan: Plan, name: str, index: int) -> None:
        """Start to consume."""
        self.acked = 0
        queue = f"{name}.{index if plan.topic else 0}"
        if plan.reliable:
            self.request(QOS, struct.pack(">IHB", 0, plan.prefetch, 0))
        no_ack = b"\0" if plan.reliable else b"\2"
        self.request(CONSUME, b"\0\0" + shortstr(queue) + shortstr("c") + no_ack + bytes(4))

    @staticmethod
    def measure(buf: bytearray, start: int, end: int) -> int | None:
        """Wire size of the delivery that starts at `start` of `buf`, None while it is incomplete."""
        pos, missing = start, None
        while missing is None or missing > 0:
            if end - pos < 11:
                return None
            kind, _, size, ident = struct.unpack_from(">BHII", buf, pos)
            if pos == start and (kind, ident) != (1, DELIVER):
                raise BrokerError(f"consumer was sent {bytes(buf[start : min(end, start + 200)])!r}")
            if pos + size + 8 > end:
                return None
            if kind == 2:
                missing = struct.unpack_from(">Q", buf, pos + 11)[0]
            elif kind == 3:
                missing -= size
            pos += size + 8
        return pos - start

    def acks(
        self, plan: Plan, buf: bytearray, starts: Sequence[int], size: int, total: int, last: bool = False
    ) -> bytes:
        """What to send when `total` deliveries have been read: one `multiple` ack per batch."""
        upto = total if last else total - total % plan.ack_every
        if upto <= self.acked:
            return b""
        self.acked = upto
        return ACK_FRAME.pack(1, 1, 13, ACK, upto, 1, 0xCE)

    @classmethod
    def prepare(cls, options: argparse.Namespace, plan: Plan, name: str) -> Callable[[], None]:
        """Declare what the scenario needs; return a function that removes it again."""
        conn = cls.open(options)
        queues = [f"{name}.{i}" for i in range(plan.subscribers if plan.topic else 1)]
        durable = 2 if plan.reliable else 0
        if plan.topic:
            kind = shortstr(name) + shortstr("topic")
            conn.request(EXCHANGE_DECLARE, b"\0\0" + kind + b"\0" + bytes(4))
        arguments = RULES if plan.rules else b""
        for queue in queues:
            table = struct.pack(">I", len(arguments)) + arguments
            conn.request(QUEUE_DECLARE, b"\0\0" + shortstr(queue) + bytes([durable]) + table)
            if plan.topic:
                binding = shortstr(queue) + shortstr(name) + shortstr("bench.*.out")
                conn.request(QUEUE_BIND, b"\0\0" + binding + b"\0" + bytes(4))
        conn.sock.close()

        def remove() -> None:
            conn = cls.open(options)  # anew: the broker may have been restarted meanwhile
            for queue in queues:
                conn.request(QUEUE_DELETE, b"\0\0" + shortstr(queue) + b"\0")
            if plan.topic:
                conn.request(EXCHANGE_DELETE, b"\0\0" + shortstr(name) + b"\0")
            conn.sock.close()

        return remove
