"""Publishers and subscribers of the load generator, each in a process of its own.

The generator is meant to be far cheaper than any broker, so that the broker is what is measured. Publishers send slices
of a tape of whole messages in big writes. Subscribers learn the wire sizes of one period of deliveries from the first
ones (one size for uniform messages), then only divide byte counts, checking after every read that the last whole
delivery starts where it should. Acknowledgements are built by strided slicing (MQTT) or are one `multiple` frame per
batch (AMQP). Each role reports its own CPU use: when one is near 100 % of a core, the generator, not the broker, set
the figure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import select
import socket
import struct
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.wire_mqtt import Mqtt, qos_of
from benchmarks.wire_proto import Amqp, BrokerError, Plan, Tape

now = time.monotonic
READ_SIZE = 1 << 20  # with the pause below, a smaller one would cap what a subscriber can take
WRITE_SIZE = 1 << 16
COALESCE_S = 0.002  # between reads where no acknowledgement is due: fewer, bigger reads
FORK = multiprocessing.get_context("fork")

Figures = dict[str, Any]
Sync = Callable[[object], None]
Role = Callable[..., Figures]


class Stream:
    """The receiving side of one subscribed connection."""

    def __init__(self, conn: Amqp | Mqtt, plan: Plan) -> None:
        self.conn, self.plan = conn, plan
        self.buf = bytearray(READ_SIZE)
        self.view = memoryview(self.buf)
        self.fill = self.count = self.learnt = 0
        self.starts = [0]  # of the deliveries of one period, with its size as last entry
        self.heads: list[bytes] = []
        self.latencies: list[int] = []

    def learn(self, end: int) -> bool:
        """Measure deliveries until a whole period is known; whether it is."""
        while len(self.heads) < self.plan.period:
            start = self.starts[-1]
            size = self.conn.measure(self.buf, start, end)
            if size is None:
                return False
            self.heads.append(bytes(self.buf[start : start + self.conn.head]))
            self.starts.append(start + size)
        return True

    def pull(self) -> bool:
        """Read once; count, check and acknowledge what is complete. Whether the buffer was filled: more is waiting."""
        room = READ_SIZE - self.fill
        got = self.conn.sock.recv_into(self.view[self.fill :])
        if not got:
            raise BrokerError(f"subscriber disconnected after {self.count} messages")
        if self.learn(self.fill + got):
            self.take(self.fill + got)
        else:
            self.pull_first(self.fill + got)
        return got == room

    def take(self, end: int) -> None:
        """The deliveries that are complete in the first `end` bytes of the buffer."""
        period, sizes = self.plan.period, self.starts
        base = sizes[self.count % period]  # where in its period the buffer starts
        rounds, part = divmod(base + end, sizes[-1])
        index = bisect_right(sizes, part) - 1
        count = rounds * period + index - self.count % period
        if count <= 0:
            self.fill = end
            return
        whole = rounds * sizes[-1] + sizes[index] - base
        last = whole - (sizes[index] - sizes[index - 1] if index else sizes[-1] - sizes[-2])
        head = self.heads[index - 1]
        if self.buf[last : last + len(head)] != head:
            raise BrokerError(f"not a delivery: {bytes(self.buf[last : last + 200])!r}")
        if self.plan.rate:
            stamp = time.monotonic_ns()
            start = sizes[-1] - self.conn.trailer - self.plan.body
            for at in range(start, whole, sizes[-1]):
                self.latencies.append(stamp - struct.unpack_from(">Q", self.buf, at)[0])
        self.acknowledge(count, whole)
        self.fill = end - whole
        if self.fill:
            self.buf[: self.fill] = self.buf[whole:end]

    def pull_first(self, end: int) -> None:
        """Less than a period is there: count what is new, keep the bytes until the period is known."""
        known = len(self.heads)
        self.fill = end
        if known > self.learnt and self.plan.reliable:  # or no more may come
            starts = self.starts[self.learnt : known]
            self.conn.sock.sendall(self.conn.acks(self.plan, self.buf, starts, 0, known, last=True))
        self.learnt = known

    def acknowledge(self, count: int, whole: int) -> None:
        """Acknowledge the `count` deliveries that end at `whole`, where the plan asks for it."""
        starts: Sequence[int]
        already, before, self.learnt = self.learnt, self.count, 0
        self.count += count
        if not self.plan.reliable:
            return
        if not self.plan.varied:
            size = self.starts[1]
            starts = range(0, whole, size)
        elif isinstance(self.conn, Amqp):
            size, starts = 0, ()
        else:
            size, starts, at = 0, [], 0
            for index in range(before, before + count):
                starts.append(at)
                step = index % self.plan.period
                at += self.starts[step + 1] - self.starts[step]
            starts = starts[already:]
        if replies := self.conn.acks(self.plan, self.buf, starts, size, self.count):
            self.conn.sock.sendall(replies)


class PacketStream(Stream):
    """Deliveries that come in no period: each packet is looked at."""

    conn: Mqtt

    def pull(self) -> bool:
        """Read once; count and answer what is complete."""
        room = READ_SIZE - self.fill
        got = self.conn.sock.recv_into(self.view[self.fill :])
        if not got:
            raise BrokerError(f"subscriber disconnected after {self.count} messages")
        end = self.fill + got
        whole, count, answers = self.conn.packets(self.buf, end, qos_of(self.plan))
        if answers:
            self.conn.sock.sendall(answers)
        self.count += count
        self.fill = end - whole
        if self.fill:
            self.buf[: self.fill] = self.buf[whole:end]
        return got == room


def consume(sync: Sync, options: argparse.Namespace, plan: Plan, name: str, total: Any) -> Figures:
    """Receive until every subscriber has `total` messages, or nothing comes any more."""
    streams: dict[int, Stream] = {}
    options = argparse.Namespace(**vars(options) | {"persistent_session": options.persistent_session or plan.session})
    poll = select.epoll()
    for index, conn in enumerate(options.client.open_many(options, plan.subscribers)):
        conn.subscriber(plan, name, index)
        streams[conn.sock.fileno()] = (PacketStream if plan.mixed else Stream)(conn, plan)
        poll.register(conn.sock.fileno(), select.EPOLLIN)
    sync(streams)
    began, cpu = now(), time.process_time()
    last, silence = began, 0.0
    unhurried = not (plan.reliable or plan.rate)  # nothing waits for what is read
    while True:
        ready = poll.poll(0.1)
        full = [streams[fd].pull() for fd, _ in ready]
        if ready:
            last, silence = now(), 0.0
            if unhurried and not any(full):
                time.sleep(COALESCE_S)
        elif total.value >= 0:
            silence += 0.1
            done = min(stream.count + stream.learnt for stream in streams.values()) >= total.value
            if silence > options.patience or done:
                break
    cpu = time.process_time() - cpu
    for stream in streams.values():
        if plan.session and isinstance(stream.conn, Mqtt):
            stream.conn.forget()
        elif plan.reliable and not plan.mixed:
            stream.conn.sock.sendall(stream.conn.acks(plan, stream.buf, (), 0, stream.count, last=True))
    return {
        "count": sum(stream.count + stream.learnt for stream in streams.values()),
        "began": began,
        "ended": last,
        "cpu": cpu,
        "latencies": [value for stream in streams.values() for value in stream.latencies],
    }


def publish(sync: Sync, options: argparse.Namespace, plan: Plan, name: str, total: Any) -> Figures:
    """Publish for `duration` seconds, or the number of messages that make the backlog."""
    limit = options.backlog if plan.backlog else options.max_messages
    conns = options.client.open_many(options, plan.publishers)
    for conn in conns:  # keep the backlog with the broker, not in the kernel
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITE_SIZE)
        tape = conn.publisher(plan, name)
    sync(conns)
    began, cpu = now(), time.process_time()
    until = began + (3600 if plan.backlog else options.duration)
    for conn in conns:
        conn.sock.sendall(tape.prelude)
    late = 0.0
    if plan.rate:
        count, late = pace(conns[0], plan, tape, options.duration)
    elif plan.reliable:
        count = windowed(conns[0], plan, tape, until, limit)
    else:
        count = blast(conns, tape, until, limit)
    total.value = count
    cpu = time.process_time() - cpu
    return {"count": count, "began": began, "ended": now(), "cpu": cpu, "late_ms": late * 1e3}


def blast(conns: list[Amqp] | list[Mqtt], tape: Tape, until: float, limit: int) -> int:
    """Write the tape over and over on every connection, as fast as each accepts it."""
    view, size = memoryview(tape.data), len(tape.data)
    quota = limit // len(conns) * size // tape.count
    poll = select.epoll()
    by_fd = {conn.sock.fileno(): conn.sock for conn in conns}
    sent = dict.fromkeys(by_fd, tape.starts[tape.prelude_count])
    for fd, sock in by_fd.items():
        sock.setblocking(False)
        poll.register(fd, select.EPOLLOUT)
    while now() < until and min(sent.values()) < quota:
        for fd, _ in poll.poll(0.1):
            at = sent[fd] % size
            sent[fd] += by_fd[fd].send(view[at : at + WRITE_SIZE])
    count = 0
    for fd, sock in by_fd.items():  # complete the message that was cut
        rounds, at = divmod(sent[fd], size)
        index = bisect_right(tape.starts, at) - 1
        if at > tape.starts[index]:
            sock.settimeout(60)
            index += 1
            sock.sendall(view[at : tape.starts[index]])
        count += rounds * tape.count + index
    return count


def windowed(conn: Amqp | Mqtt, plan: Plan, tape: Tape, until: float, limit: int) -> int:
    """Publish with at most `plan.window` messages unconfirmed; wait for the last one."""
    view, sock, starts = memoryview(tape.data), conn.sock, tape.starts
    sent, done = tape.prelude_count, 0
    while True:
        if sent < limit and now() < until:
            room = plan.window - sent + done
            if room >= plan.window // 4:
                at = sent % tape.count
                count = min(room, limit - sent, tape.count - at)
                sock.sendall(view[starts[at] : starts[at + count]])
                sent += count
                continue
        elif done >= sent:
            return sent
        data = sock.recv(READ_SIZE)
        if not data:
            raise BrokerError(f"publisher disconnected, {done} of {sent} confirmed")
        done = conn.acknowledged(data)


def pace(conn: Amqp | Mqtt, plan: Plan, tape: Tape, seconds: float) -> tuple[int, float]:
    """Send `plan.rate` time-stamped messages a second; how many, and the worst delay in seconds."""
    size, late = tape.starts[1], 0.0
    stamp_at = size - conn.trailer - plan.body
    began, total = now(), int(plan.rate * seconds)
    for i in range(total):
        wait = began + i / plan.rate - now()
        if wait > 0:
            time.sleep(wait)
        late = max(late, -wait)
        at = i % tape.count * size
        message = bytearray(tape.data[at : at + size])
        struct.pack_into(">Q", message, stamp_at, time.monotonic_ns())
        conn.sock.sendall(message)
        while plan.reliable and select.select([conn.sock], [], [], 0)[0]:
            if not conn.sock.recv(READ_SIZE, socket.MSG_DONTWAIT):
                raise BrokerError("publisher disconnected")
    return total, late


class Child:
    """A role in a process: it connects, waits for `go`, runs, and sends its result."""

    def __init__(self, role: Role, *args: object) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self.main, args=(theirs, role, args), daemon=True)
        self.process.start()
        self.receive()

    @staticmethod
    def main(pipe: Connection, role: Role, args: Sequence[object]) -> None:
        """The process."""
        kept = []

        def sync(conns: object) -> None:
            kept.append(conns)
            pipe.send("ready")
            pipe.recv()

        try:
            pipe.send(role(sync, *args))
        except BaseException:
            pipe.send(BrokerError(traceback.format_exc(limit=3)))
        pipe.recv()  # until the parent ends this process, `kept` connections stay open

    def receive(self) -> Any:
        """The next thing the role says. Raises what it raised."""
        result = self.pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()
