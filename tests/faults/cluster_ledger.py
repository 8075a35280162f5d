"""What the clients of a shaken cluster were told, stream by stream, and what must be so of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

KEYS = 6
SLOW_S = 0.05
"""A leader that is gone is not replaced in less."""

Message = tuple[int, int]
"""Key and number."""


class Session(NamedTuple):
    """A consumer, from its connection on: where in `received` it begins, and how many messages it may hold."""

    first: int
    prefetch: int


@dataclass
class Ledger:
    """What the world outside knows of a stream."""

    name: str
    published: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(KEYS), 0))
    """How many of each key."""
    confirmed: set[Message] = field(default_factory=set)
    retried: set[Message] = field(default_factory=set)
    received: list[tuple[Message, bool]] = field(default_factory=list)
    """In order, and whether it was marked as redelivered."""
    sessions: list[Session] = field(default_factory=list)
    settled: dict[Message, int] = field(default_factory=dict)
    """Messages whose settlement was answered, and how many had been received then."""
    slow: set[Message] = field(default_factory=set)
    """Confirmed late: brokers may have sent them to two leaders, and then there are two of them."""
    told: list[list[Message]] = field(default_factory=list)
    """What each subscriber got that has nothing but its connection."""
    checked: int = 0
    """How many of those received the last check has seen."""
    confirmed_at: float = field(default_factory=time.monotonic)
    longest_gap_s: float = 0.0
    """Between two confirmations."""

    def take(self, key: int, count: int = 1) -> list[Message]:
        """The next messages of a key."""
        first = self.published[key]
        self.published[key] += count
        return [(key, number) for number in range(first, first + count)]

    def body(self, message: Message) -> bytes:
        """A message as bytes; lengths differ."""
        return b"%s %d %d " % (self.name.encode(), *message) + b"." * (message[1] * 7 % 300)

    def parse(self, body: bytes) -> Message:
        """The inverse; all of it is checked."""
        name, key, number, _ = body.split(b" ", 3)
        message = int(key), int(number)
        assert name == self.name.encode(), f"{self.name}: {body!r} is of another stream"
        assert body == self.body(message), f"{self.name}: {message} was changed on the way"
        return message

    def note(self, messages: list[Message]) -> None:
        """They are confirmed."""
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self.confirmed_at)
        self.confirmed_at = now
        self.confirmed.update(messages)


def check_order(name: str, messages: list[Message]) -> None:
    """The first time each message is there, those of its key before it were. Raises AssertionError."""
    latest: dict[int, int] = {}
    known: set[Message] = set()
    for message in messages:
        if message in known:
            continue
        known.add(message)
        key, number = message
        assert latest.get(key, -1) < number, f"{name}: {message} after {latest[key]} of its key"
        latest[key] = number


def check_received(ledger: Ledger, seed: int) -> None:
    """All that was confirmed came, in the order of its key, and again only if marked or published again, and not after
    its settlement was answered. Raises AssertionError.
    """
    where = f"{ledger.name}, seed {seed}"
    times: dict[Message, int] = {}
    for place, (message, redelivered) in enumerate(ledger.received):
        times[message] = times.get(message, 0) + 1
        again = times[message] > 1 and message not in ledger.retried
        assert not again or redelivered, f"{where}: {message} twice and not marked"
        settled = again and message not in ledger.slow and ledger.settled.get(message, place + 1) <= place
        assert not settled, f"{where}: {message} came at {place}, settled at {ledger.settled[message]}"
    missing = ledger.confirmed - times.keys()
    assert not missing, f"{where}: {len(missing)} lost of those confirmed, such as {sorted(missing)[:5]}"
    strange = [message for message in times if message[1] >= ledger.published[message[0]]]
    assert not strange, f"{where}: {strange[:5]} were never published"
    # What a consumer had been given and not handled when its broker died comes to the next one when that is noticed,
    # behind what is given out meanwhile; it is marked.
    check_order(where, [message for message, redelivered in ledger.received if not redelivered])
    _check_late(where, ledger)
    for told in ledger.told:
        check_order(f"{where}, a subscriber", [message for message in told if message not in ledger.retried])


def _check_late(where: str, ledger: Ledger) -> None:
    """Marked messages come for the first time behind later ones of their key only if a consumer that is gone held them:
    since the last check, when the queue was empty, no more than all of these could hold.
    """
    latest: dict[int, int] = {}
    known = {message for message, _ in ledger.received[: ledger.checked]}
    late: list[Message] = []
    for message, _ in ledger.received[ledger.checked :]:
        if message in known:
            continue
        known.add(message)
        key, number = message
        if number < latest.get(key, -1) and message not in ledger.retried:
            late.append(message)
        latest[key] = max(latest.get(key, -1), number)
    held = sum(session.prefetch for session in ledger.sessions if session.first >= ledger.checked)
    assert len(late) <= held, f"{where}: {len(late)} came late, and consumers held {held} at most: {late[:5]}"
    ledger.checked = len(ledger.received)
