"""Everything that time, failure and transactions do to messages, at once, over pika; and what must be true of it.

Messages are numbered, a number goes to one queue or to two:

    everything            work and copy by key: "both", or "copy" alone
    everything.work       priorities, times to live, delays, a retry ladder, deduplication; dead letters to ...dead
    everything.copy       a queue's time to live, at most 300 waiting (oldest dropped), a delivery limit; the same
    everything.dead       nobody consumes it: it is looked through after each kill
    everything.left/right what a worker made of a message of `work`, in one transaction; `right` is delayed

A `Ledger` is what clients know. After a kill and a start, when nothing is delayed any more, all queues are read and

1. each confirmed message was acknowledged, or is in its queue, or died: it is in `dead`, with its history;
2. a queue delivers a message unmarked once at most; what was found to be gone stays gone;
3. of a transaction everything happened or nothing: publishes, and both results and the acknowledgement of a worker;
4. nothing came before its delay was over, and nothing expired before its time to live was.

A dead letter may be in `dead` twice if there was a kill in between (docs/queues.md), not more often.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pika
import pika.exceptions

from core_log.wall_clock import wall_clock_ms
from tests.support import HOST, BrokerProcess

EXCHANGE, DEAD_EXCHANGE = "everything", "everything.dead"
WORK, COPY, DEAD, LEFT, RIGHT = (f"everything.{name}" for name in ("work", "copy", "dead", "left", "right"))
COPY_TTL_MS = 400
DEADLY = {"x-dead-letter-exchange": DEAD_EXCHANGE}
QUEUES: dict[str, dict[str, Any]] = {
    WORK: DEADLY
    | {"x-max-priority": 5, "x-delayed": True, "x-retry": [20, 50], "x-deduplication-window-ms": 3_600_000},
    COPY: DEADLY | {"x-message-ttl": COPY_TTL_MS, "x-max-length": 300, "x-delivery-limit": 3},
    DEAD: {},
    LEFT: {},
    RIGHT: {"x-max-priority": 2, "x-delayed": True},
}
ENDED = (pika.exceptions.AMQPError, OSError)
REASONS = {WORK: {"rejected", "expired", "delivery_limit"}, COPY: {"rejected", "expired", "maxlen", "delivery_limit"}}
EARLY_MS = 1
"""Times are whole milliseconds, here and there."""


class Message(NamedTuple):
    """What was asked for when it was published first."""

    sent_ms: int
    key: str
    delay_ms: int
    ttl_ms: int | None


@dataclass
class Ledger:
    """See the module. Sets are of numbers, by queue."""

    messages: dict[int, Message] = field(default_factory=dict)
    published: Counter[int] = field(default_factory=Counter)
    """How often a number was sent."""
    confirmed: set[int] = field(default_factory=set)
    """Must not be lost."""
    told: list[int] = field(default_factory=list)
    """Those of them whose publisher was told so: from then on the queue knows them again."""
    transactions: list[range] = field(default_factory=list)
    """Nobody knows what became of these."""
    undone: set[int] = field(default_factory=set)
    """Rolled back."""
    acked: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """An acknowledgement was sent."""
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    unmarked: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    dead: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Dead letters by the queue they died in first."""
    gone: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    faults: list[str] = field(default_factory=list)
    """What clients saw that must not be."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, dice: random.Random, *, count: int = 1) -> range:
        """New messages, of all sorts."""
        with self.lock:
            first = len(self.messages)
            for number in range(first, first + count):
                delay_ms = dice.randrange(1, 600) if dice.random() < 0.3 else 0
                ttl_ms = dice.choice((1, 30, 200, 1000)) if dice.random() < 0.3 else None
                key = "copy" if dice.random() < 0.2 else "both"
                self.messages[number] = Message(wall_clock_ms(), key, delay_ms, ttl_ms)
            return range(first, first + count)

    def came(self, queue: str, number: int, redelivered: bool) -> None:
        """A client got a message."""
        message, time_ms = self.messages[number], wall_clock_ms()
        with self.lock:
            self.seen[queue].add(number)
            self.unmarked[queue][number] += not redelivered
            allowed = self.published[number] if queue == COPY else 1
            if self.unmarked[queue][number] > allowed:
                self.faults.append(f"{queue}: {number} came {self.unmarked[queue][number]} times unmarked")
            if number in self.gone[queue]:
                self.faults.append(f"{queue}: {number} came back after it was gone")
            if queue == WORK and time_ms + EARLY_MS < message.sent_ms + message.delay_ms:
                early = message.sent_ms + message.delay_ms - time_ms
                self.faults.append(f"{queue}: {number} came {early} ms early")

    def died(self, number: int, properties: Any) -> None:
        """A message was found in `dead`."""
        headers = properties.headers or {}
        deaths = headers.get("x-death") or []
        queue, reason = str(headers.get("x-first-death-queue")), headers.get("x-first-death-reason")
        entry = deaths[0] if deaths else {}
        if reason not in REASONS.get(queue, ()) or entry.get("queue") != queue or entry.get("reason") != reason:
            self.faults.append(f"{number} died with the history {headers}")
            return
        message = self.messages[number]
        if reason == "expired":
            ttl_ms, delay_ms = message.ttl_ms, message.delay_ms
            if queue == COPY:
                ttl_ms, delay_ms = min(ttl_ms or COPY_TTL_MS, COPY_TTL_MS), 0
            if ttl_ms is None or entry["time"].timestamp() * 1000 + 999 < message.sent_ms + delay_ms + ttl_ms:
                self.faults.append(f"{queue}: {number}, {message}, expired at {entry['time']}")
        self.dead[queue][number] += 1


def body_of(number: int) -> bytes:
    """Sizes differ: a few are long."""
    return b"%d " % number + b"." * (number * 7 % 300 if number % 50 else number % 7 * 20_000)


def number_of(body: bytes) -> int:
    """The inverse of `body_of`; all of it is checked."""
    number = int(body.split(b" ", 1)[0])
    assert body == body_of(number), f"message {number} was changed on the way"
    return number


def properties_of(number: int, message: Message) -> pika.BasicProperties:
    """As asked for."""
    return pika.BasicProperties(
        delivery_mode=2,
        priority=number % 7,
        message_id=str(number),
        expiration=None if message.ttl_ms is None else str(message.ttl_ms),
        headers={"x-delay": message.delay_ms} if message.delay_ms else None,
    )


def parameters(broker: BrokerProcess) -> pika.ConnectionParameters:
    """Of a connection to the broker as it is now."""
    return pika.ConnectionParameters(HOST, broker.amqp_port, heartbeat=0)


def declare(broker: BrokerProcess) -> None:
    """All that the module lists."""
    with closing(pika.BlockingConnection(parameters(broker))) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "direct", durable=True)
        channel.exchange_declare(DEAD_EXCHANGE, "fanout", durable=True)
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        for name, key in ((WORK, "both"), (COPY, "both"), (COPY, "copy")):
            channel.queue_bind(name, EXCHANGE, key)
        channel.queue_bind(DEAD, DEAD_EXCHANGE)


# --- clients: each runs in a thread until the broker is gone ----------------------------------------------------------


class Publisher:
    """Bursts with confirms; one in ten messages is one that was confirmed, again."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger, seed: float) -> None:
        self.ledger = ledger
        self.dice = random.Random(seed)
        self.open: dict[int, int] = {}
        self.tag = 0
        self.channel: Any = None
        self.connection = pika.SelectConnection(
            parameters(broker),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=lambda connection, _: connection.ioloop.stop(),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def run(self) -> None:
        """Until the connection ends."""
        with suppress(*ENDED):
            self.connection.ioloop.start()

    def opened(self, channel: Any) -> None:
        """The channel is there."""
        self.channel = channel
        channel.confirm_delivery(self.answered, callback=lambda _: self.burst())

    def burst(self) -> None:
        """Publish some."""
        count = self.dice.choice((1, 2, 10, 50, 200))
        for number in self.ledger.take(self.dice, count=count):
            self.publish(number)
            if self.open and self.dice.random() < 0.1:
                self.publish(self.dice.choice(self.ledger.told or (number,)))

    def publish(self, number: int) -> None:
        """One message."""
        message = self.ledger.messages[number]
        with self.ledger.lock:
            self.ledger.published[number] += 1
        self.tag += 1
        self.open[self.tag] = number
        self.channel.basic_publish(EXCHANGE, message.key, body_of(number), properties_of(number, message))

    def answered(self, frame: Any) -> None:
        """An ack or a nack."""
        up_to = frame.method.delivery_tag
        tags = [tag for tag in self.open if tag <= up_to] if frame.method.multiple else [up_to]
        numbers = [self.open.pop(tag) for tag in tags]
        if isinstance(frame.method, pika.spec.Basic.Ack):
            with self.ledger.lock:
                self.ledger.confirmed.update(numbers)
                self.ledger.told += numbers
        if len(self.open) < 20:
            self.burst()


def publish_in_transactions(broker: BrokerProcess, ledger: Ledger, dice: random.Random) -> None:
    """Transactions of several messages, one in five of them rolled back."""
    with suppress(*ENDED):
        channel = pika.BlockingConnection(parameters(broker)).channel()
        channel.tx_select()
        while True:
            numbers = ledger.take(dice, count=dice.choice((1, 3, 20)))
            undo = dice.random() < 0.2
            if undo:
                ledger.undone.update(numbers)
            else:
                ledger.transactions.append(numbers)
            for number in numbers:
                message = ledger.messages[number]
                ledger.published[number] += 1
                channel.basic_publish(EXCHANGE, message.key, body_of(number), properties_of(number, message))
            if undo:
                channel.tx_rollback()
            else:
                channel.tx_commit()
                with ledger.lock:
                    ledger.confirmed.update(numbers)
                    ledger.told += numbers
                ledger.transactions.remove(numbers)


def work_in_transactions(broker: BrokerProcess, ledger: Ledger, dice: random.Random) -> None:
    """Take from `work`, publish two results, acknowledge: in one transaction."""
    with suppress(*ENDED):
        channel = pika.BlockingConnection(parameters(broker)).channel()
        channel.tx_select()
        while True:
            method, _, body = channel.basic_get(WORK)
            if method is None:
                time.sleep(0.005)
                continue
            number = number_of(body)
            ledger.came(WORK, number, method.redelivered)
            for name in (LEFT, RIGHT):
                channel.basic_publish("", name, body, result_properties(number))
            channel.basic_ack(method.delivery_tag)
            if dice.random() < 0.1:
                channel.tx_rollback()
                channel.basic_nack(method.delivery_tag)
            channel.tx_commit()


def result_properties(number: int) -> pika.BasicProperties:
    """Of what is published to `left` and `right`; a header means nothing to the first."""
    return pika.BasicProperties(delivery_mode=2, priority=number % 3, headers={"x-delay": 1 + number % 150})


def consume(broker: BrokerProcess, ledger: Ledger, queue: str, dice: random.Random) -> None:
    """Acknowledge half; requeue, refuse or keep the others."""

    def take(channel: Any, method: Any, _: Any, body: bytes) -> None:
        number, draw = number_of(body), dice.random()
        ledger.came(queue, number, method.redelivered)
        if draw < 0.5:
            ledger.acked[queue].add(number)  # before it is sent: it may arrive whatever we learn
            channel.basic_ack(method.delivery_tag)
        elif draw < 0.7:
            channel.basic_nack(method.delivery_tag, requeue=True)
        elif draw < 0.85:
            channel.basic_reject(method.delivery_tag, requeue=False)

    with suppress(*ENDED):
        channel = pika.BlockingConnection(parameters(broker)).channel()
        channel.basic_qos(prefetch_count=dice.choice((5, 50, 500)))
        channel.basic_consume(queue, take)
        channel.start_consuming()


def load(broker: BrokerProcess, ledger: Ledger, dice: random.Random) -> list[threading.Thread]:
    """Begin with all of it; the threads end with the broker."""
    publishers = [Publisher(broker, ledger, dice.random()) for _ in range(2)]
    jobs: list[Callable[[], None]] = [publisher.run for publisher in publishers]

    def job(function: Callable[..., None], *arguments: Any) -> None:
        own = random.Random(dice.random())
        jobs.append(lambda: function(broker, ledger, *arguments, own))

    job(publish_in_transactions)
    for _ in range(2):
        job(work_in_transactions)
    for queue in (WORK, COPY, COPY):
        job(consume, queue)
    threads = [threading.Thread(target=function) for function in jobs]
    for thread in threads:
        thread.start()
    return threads


# --- looking ----------------------------------------------------------------------------------------------------------


def wait_for_due(broker: BrokerProcess, count: Callable[[str], int], timeout_s: float = 20) -> None:
    """Until nothing in these queues is delayed, and the dead are where they go."""
    deadline = time.monotonic() + timeout_s
    while waiting := sum(map(count, QUEUES)):
        assert broker.running, broker.log()[-4000:]
        assert time.monotonic() < deadline, f"{waiting} messages are still delayed after {timeout_s} s"
        time.sleep(0.02)


def read(channel: Any, queue: str) -> Iterator[tuple[Any, Any, bytes]]:
    """All that waits in a queue, until a while has passed in which nothing came and nothing waits."""
    other = channel.connection.channel()
    coming = channel.get_waiting_message_count
    for method, properties, body in channel.consume(queue, inactivity_timeout=0.15):
        if method is not None:
            yield method, properties, body
        elif not other.queue_declare(queue, passive=True).method.message_count and not coming():
            break  # nothing came just before that answer either
    channel.cancel()
    other.close()


def check(broker: BrokerProcess, ledger: Ledger, kills: int, dice: random.Random) -> dict[str, int]:
    """Read everything, give most of it back; how many were found in each queue. Raises AssertionError."""
    found: dict[str, set[int]] = {}
    connection = pika.BlockingConnection(parameters(broker))
    channel = connection.channel()
    for queue in (WORK, COPY, LEFT, RIGHT, DEAD):  # what dies while this is read is read last
        found[queue] = set()
        for method, properties, body in read(channel, queue):
            number = number_of(body)
            if queue == DEAD:
                ledger.died(number, properties)
                channel.basic_ack(method.delivery_tag)
                continue
            ledger.came(queue, number, method.redelivered)
            found[queue].add(number)
    connection.close()
    assert not ledger.faults, ledger.faults[:5]
    check_transactions(ledger, found)
    for queue in (WORK, COPY):
        wanted = {number for number in ledger.confirmed if queue == COPY or ledger.messages[number].key == "both"}
        settled = ledger.acked[queue] | (found[LEFT] if queue == WORK else set())
        missing = wanted - found[queue] - settled - ledger.dead[queue].keys()
        assert not missing, f"{queue}: {len(missing)} of {len(wanted)} lost, such as {sorted(missing)[:5]}"
        if queue == WORK:
            ledger.gone[queue] = set(ledger.messages) - found[queue]
        often = [(number, count) for number, count in ledger.dead[queue].items() if count > kills + 1]
        assert queue == COPY or not often, f"{queue}: died too often: {often[:5]}"
    counts = {queue: len(numbers) for queue, numbers in found.items()}
    counts[DEAD] = sum(map(len, ledger.dead.values()))
    return counts


def check_transactions(ledger: Ledger, found: dict[str, set[int]]) -> None:
    """All or nothing; what is decided is known from now on."""
    assert found[LEFT] == found[RIGHT], f"one result only: {sorted(found[LEFT] ^ found[RIGHT])[:5]}"
    again = found[LEFT] & found[WORK]
    assert not again, f"there is a result and the message is there: {sorted(again)[:5]}"
    there = set().union(*found.values(), *ledger.dead.values())
    undone = ledger.undone & there.union(*ledger.seen.values())
    assert not undone, f"rolled back, and there: {sorted(undone)[:5]}"
    for numbers in ledger.transactions:
        # What consumers saw before the kill may not have been durable: only what is there now says that all must be.
        if not there.isdisjoint(numbers):
            ledger.confirmed.update(numbers)
        else:
            for queue in (WORK, COPY):
                ledger.gone[queue].update(numbers)
    ledger.transactions.clear()
