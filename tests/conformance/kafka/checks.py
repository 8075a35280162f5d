"""What every client in Python goes through, over one interface, so that all are asked the same.

1. Topics, groups and transactional ids have names that no earlier run had: any broker may be checked, again and again.
2. A check knows nothing of the client but `Client`; what a client does not have raises `Lacking` and is told.
3. Nothing waits for a time: `until` looks until it is so, or fails with what it saw.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

PATIENCE_S = 30.0
BEGAN_MS = int(time.time() * 1000)
_NUMBERS = itertools.count()


class Lacking(Exception):
    """A client has no such thing."""


class Record(NamedTuple):
    """A record as a client gives it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class Member(Protocol):
    """A consumer in a group that reads and commits in a thread of its own."""

    seen: list[bytes]
    has: set[int]

    def stop(self) -> None:
        """Commit and leave the group."""


class Client(Protocol):
    """What a client can do, in partition 0 unless there is another one named."""

    name: str
    codecs: Sequence[str]
    null_headers: bool
    """Whether headers may have no value."""

    def produce(self, topic: str, records: Sequence[Record], codec: str = "none", partition: int = 0) -> list[int]:
        """Send and wait; their offsets."""

    def read(self, topic: str, offset: int, count: int) -> list[Record]:
        """So many records from an offset on that a reader of what is committed sees."""

    def end(self, topic: str) -> int:
        """The offset after the last record."""

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """Of the first record not older than this."""

    def member(self, group: str, topic: str) -> Member:
        """A new member."""

    def commit(self, group: str, topic: str, offset: int) -> None:
        """As a consumer without members."""

    def committed(self, group: str, topic: str) -> int | None:
        """None if there is no offset."""

    def transact(
        self, name: str, topic: str, values: Sequence[bytes], group: str, source: str, offset: int, *, commit: bool
    ) -> None:
        """A transaction of records for a topic and an offset of a group in `source`."""

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        """Make a topic."""

    def partitions(self, topic: str) -> int:
        """How many it has."""

    def grow(self, topic: str, partitions: int) -> None:
        """Give it more."""

    def configure(self, topic: str, name: str, value: str) -> None:
        """Set one thing."""

    def config(self, topic: str) -> dict[str, str]:
        """All of them."""

    def topics(self) -> set[str]:
        """Their names."""

    def delete_records(self, topic: str, offset: int) -> None:
        """Those below an offset."""

    def delete(self, topic: str) -> None:
        """Delete it."""

    def groups(self) -> set[str]:
        """Their names."""

    def group_state(self, group: str) -> str:
        """As the client names it."""

    def delete_group(self, group: str) -> None:
        """Delete it with its offsets."""


def name_of(client: Client, what: str) -> str:
    """A name that nobody had before."""
    return f"{client.name}-{what}-{BEGAN_MS}-{os.getpid()}-{next(_NUMBERS)}"


def until(what: Callable[[], object], said: Callable[[], object] = lambda: "", seconds: float = PATIENCE_S) -> None:
    """Wait until it is so. Raises AssertionError with what is said then."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"still not after {seconds:.0f} s: {said()}"
        time.sleep(0.05)


def sample(count: int, *, null_headers: bool = False) -> list[Record]:
    """Records of all kinds, a second apart in the last hour: no key or no value, empty ones, headers of one name."""
    first = BEGAN_MS - 3_600_000
    keys = [None, b"", b"key", b"\xff\x00"]
    found = []
    for number in range(count):
        value = None if number % 7 == 3 and number % 4 else b"" if number % 7 == 5 else b"value %d " % number * 10
        headers: list[tuple[str, bytes | None]] = [("h", b"\xff"), ("h", b"again"), ("empty", b"")]
        if null_headers:
            headers.append(("none", None))
        found.append(Record(keys[number % 4], value, headers if number % 3 else [], first + number * 1000))
    return found


def check_records(client: Client) -> None:
    """All codecs; keys, values, headers and times as they were sent; from any offset on."""
    for codec in client.codecs:
        topic, sent = name_of(client, codec), sample(300, null_headers=client.null_headers)
        client.create(topic, 1, {})
        assert client.produce(topic, sent, codec) == list(range(300)), codec
        assert client.read(topic, 0, 300) == sent, codec
        assert client.read(topic, 137, 5) == sent[137:142], codec
    large = [Record(None, os.urandom(900_000), [], BEGAN_MS) for _ in range(3)]
    assert client.produce(topic, large, "none") == [300, 301, 302]
    assert client.read(topic, 299, 4) == [sent[-1], *large]


def check_places(client: Client) -> None:
    """Ends, and where records of a time are."""
    topic, sent = name_of(client, "times"), sample(100)
    client.create(topic, 1, {})
    assert client.end(topic) == 0
    for first in range(0, 100, 10):
        client.produce(topic, sent[first : first + 10])
    assert client.end(topic) == 100
    assert client.offset_at(topic, 0) == 0
    assert client.offset_at(topic, sent[42].timestamp_ms) == 42
    assert client.offset_at(topic, sent[42].timestamp_ms + 1) == 43
    assert client.offset_at(topic, sent[99].timestamp_ms + 1) is None


def check_groups(client: Client) -> None:
    """Members come and go: all partitions are read, by one member each, and each record once."""
    topic, group, sent = name_of(client, "shared"), name_of(client, "group"), list[bytes]()
    client.create(topic, 4, {})

    def more(count: int) -> None:
        values = [b"%d" % number for number in range(len(sent), len(sent) + count)]
        for partition in range(4):
            client.produce(topic, [Record(None, one, [], BEGAN_MS) for one in values[partition::4]], "none", partition)
        sent.extend(values)

    members: list[Member] = []

    def settled(*counts: int) -> None:
        latest = members[-len(counts) :]
        until(lambda: sorted(len(one.has) for one in latest) == list(counts), lambda: [one.has for one in members])

    def read() -> None:
        seen = lambda: sorted(int(value) for one in members for value in one.seen)  # noqa: E731
        until(lambda: len(set(seen())) == len(sent), lambda: f"{len(seen())} of {len(sent)}")
        assert seen() == list(range(len(sent))), "some came twice"

    try:
        more(40)
        members.append(client.member(group, topic))
        settled(4)
        read()
        members.append(client.member(group, topic))
        settled(2, 2)
        assert not members[0].has & members[1].has
        more(40)
        read()
        assert members[1].seen
        members[0].stop()
        settled(4)
        more(40)
        read()
    finally:
        for member in members:
            member.stop()
    more(4)
    members.append(client.member(group, topic))
    try:
        read()
    finally:
        members[-1].stop()
    assert len(members[-1].seen) == 4, "from where the group had come"
    assert group in client.groups()
    assert client.group_state(group).upper() == "EMPTY"
    client.delete_group(group)
    until(lambda: group not in client.groups())


def check_commits(client: Client) -> None:
    """An offset that is committed, also a second time, and none."""
    topic, group = name_of(client, "commits"), name_of(client, "group")
    client.create(topic, 1, {})
    client.produce(topic, sample(50))
    assert client.committed(group, topic) is None
    for offset in (42, 17):
        client.commit(group, topic, offset)
        assert client.committed(group, topic) == offset


def check_transactions(client: Client) -> None:
    """Records and offsets of a transaction are there together or not at all."""
    source, topic, group = name_of(client, "source"), name_of(client, "copy"), name_of(client, "group")
    for one in (source, topic):
        client.create(one, 1, {})
    client.produce(source, sample(30))
    name = name_of(client, "transactions")
    client.transact(name, topic, [b"a", b"b"], group, source, 10, commit=True)
    client.transact(name, topic, [b"x", b"y"], group, source, 20, commit=False)
    assert client.committed(group, source) == 10
    client.transact(name, topic, [b"c"], group, source, 30, commit=True)
    assert client.committed(group, source) == 30
    assert [one.value for one in client.read(topic, 0, 3)] == [b"a", b"b", b"c"]


def check_admin(client: Client) -> None:
    """A topic from its making to its end."""
    topic = name_of(client, "admin")
    client.create(topic, 2, {"retention.ms": "12345678"})
    until(lambda: topic in client.topics())
    assert client.partitions(topic) == 2
    client.grow(topic, 5)
    until(lambda: client.partitions(topic) == 5)
    assert client.config(topic)["retention.ms"] == "12345678"
    client.configure(topic, "max.message.bytes", "20000")
    until(lambda: client.config(topic)["max.message.bytes"] == "20000")
    client.produce(topic, sample(10))
    client.delete_records(topic, 4)
    assert client.offset_at(topic, 0) == 4
    assert len(client.read(topic, 4, 6)) == 6
    client.delete(topic)
    until(lambda: topic not in client.topics())


CHECKS: tuple[Callable[[Client], None], ...] = (
    check_records, check_places, check_groups, check_commits, check_transactions, check_admin,
)  # fmt: skip


def check(client: Client, checks: Sequence[Callable[[Client], None]] = CHECKS) -> str:
    """All of it, or some; what was done. Raises AssertionError."""
    done, lacking = [], []
    for one in checks:
        what = one.__name__.removeprefix("check_")
        try:
            one(client)
        except Lacking as error:
            lacking.append(f"{what}: {error}")
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        done.append(what)
    return f"{', '.join(done)}; codecs {' '.join(client.codecs)}" + "".join(f"; without {one}" for one in lacking)
