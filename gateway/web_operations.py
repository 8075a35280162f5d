"""Operations over HTTP that are made of several requests of the native protocol, as the commands of `millrace` are:
topics, their records, and groups.

Bytes of records are text where they are UTF-8, else base64: `{"text": ...}` or `{"base64": ...}`, and `null` where
there are none. What is longer than asked for is cut, and says how long it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import trio
from msgspec import Meta

from gateway.described import described_group, described_topic
from gateway.errors import Refused
from protocols.native.errors import ErrorCode, MillraceError
from routing.administration.listed import listed
from routing.administration.messages import Encoded, bytes_of
from routing.administration.operations import OPERATIONS, Operation, operation, plain, table
from routing.administration.shown import BODY_BYTES, shown_bytes
from routing.topics.topic_config import KEY_INDEX, is_true
from routing.version import OWN_VERSION

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gateway.config import Config
    from gateway.own_door import OwnDoor
    from gateway.web_login import Login
    from protocols.native.clients.client import Client
    from protocols.native.clients.producer import Producer
    from protocols.native.clients.records import ConsumerRecord

RECORDS_MAX = 500
_SHARE = 0.9
FOUND_MAX = 1000

Number = Annotated[int, Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Distance = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

WEB_OPERATIONS: dict[str, Operation] = {}


Text = str | Encoded


class ToOffset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group is to go on: exactly one of these."""

    offset: Offset | None = None
    shift: Distance | None = None
    """So many records further, or back if below 0."""
    time_ms: Offset | None = None
    """The first record not before."""


@dataclass(slots=True, frozen=True)
class Asked:
    """Who asks, and whom he can ask."""

    door: OwnDoor
    config: Config
    login: Login | None
    user: str
    peer: str

    def client(self) -> AbstractAsyncContextManager[Client]:
        """A client in his name."""
        return self.door.client(self.login, self.peer)

    def producer(self) -> AbstractAsyncContextManager[Producer]:
        """The same, to append."""
        return self.door.producer(self.login, self.peer)


def _invalid(reason: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, reason)


@operation("whoami", into=WEB_OPERATIONS)
async def whoami(asked: Asked, user: str) -> dict[str, Any]:
    """For whom it is asked, which broker is, and why publishers have to wait there (None: they need not)."""
    cluster, known = asked.door.broker.cluster, asked.door.broker.rights.user(user)
    return {
        "user": plain(user),
        "tags": [] if known is None else sorted(known.tags),
        "version": OWN_VERSION,
        "cluster": asked.config.cluster.name or None,
        "broker_id": 0 if cluster is None else cluster.broker_id,
        "blocked": asked.door.broker.blocked,
    }


@operation("operations.list", into=WEB_OPERATIONS)
async def list_operations(asked: Asked, user: str, start: int = 0) -> dict[str, Any]:
    """All that may be asked for over HTTP."""
    return listed(OPERATIONS | {name: replace(one, tags=None) for name, one in WEB_OPERATIONS.items()}, start)


@operation("topics.list", into=WEB_OPERATIONS)
async def list_topics(asked: Asked, user: str, start: int = 0) -> dict[str, Any]:
    """All topics that the user may do something with."""
    async with asked.client() as client:
        return table(("name", "partitions"), sorted((await client.list_topics()).items()), start)


@operation("topics.describe", into=WEB_OPERATIONS)
async def describe_topic(asked: Asked, user: str, topic: str) -> Any:
    """As `millrace topics describe --json`."""
    async with asked.client() as client:
        return plain(described_topic(await client.describe_topic(topic)))


@operation("topics.create", into=WEB_OPERATIONS)
async def create_topic(
    asked: Asked,
    user: str,
    topic: str,
    partitions: Count = 1,
    config: dict[str, str] = {},  # noqa: B006
) -> None:
    """Create a topic durably."""
    async with asked.client() as client:
        await client.create_topic(topic, partitions=partitions, config=config)


@operation("topics.partitions", into=WEB_OPERATIONS)
async def create_partitions(asked: Asked, user: str, topic: str, partitions: Count) -> None:
    """Have a topic have so many partitions, never fewer."""
    async with asked.client() as client:
        await client.create_partitions(topic, partitions)


@operation("topics.delete", into=WEB_OPERATIONS)
async def delete_topic(asked: Asked, user: str, topic: str) -> None:
    """Delete a topic and all its records."""
    async with asked.client() as client:
        await client.delete_topic(topic)


@operation("topics.delete_records", into=WEB_OPERATIONS)
async def delete_records(
    asked: Asked, user: str, name: str, partition: Number, before: Offset | Literal[-1] = -1
) -> int:
    """Delete what lies before an offset of a partition, or everything (-1), whoever leads it; where it begins then."""
    async with asked.client() as client:
        await client.places([f"{name}:{partition}"])
        return await client.delete_records(name, partition, None if before < 0 else before)


@operation("topics.find", into=WEB_OPERATIONS)
async def find_records(
    asked: Asked,
    user: str,
    topic: str,
    key: Text,
    partition: Number | None = None,
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 20,
) -> dict[str, Any]:
    """Where a topic has records with a key; the log is looked through."""
    async with asked.client() as client:
        found = await client.find_records(topic, _bytes(key) or b"", limit=limit, partition=partition)
    rows = (
        (one.partition, one.offset, one.timestamp_ms, None if one.value is None else len(one.value)) for one in found
    )
    return table(("partition", "offset", "timestamp_ms", "bytes"), rows, 0)


@operation("messages.find", into=WEB_OPERATIONS)
async def find_messages(
    asked: Asked, user: str, key: Text, topic: str = "", limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 100
) -> dict[str, Any]:
    """Every stored copy of a message, by its key, in one topic or in all that the user may read: those with an index
    of keys first. Which topics were searched, and whether that was to their ends: the limit, or nine tenths of
    `http.operation_timeout_ms`, may have come before.
    """
    searched: list[dict[str, Any]] = []
    found: list[ConsumerRecord] = []
    complete = False
    known, wanted = asked.door.broker.topics, _bytes(key) or b""
    indexed = {name for name in known if is_true(KEY_INDEX, known[name].config.get(KEY_INDEX, "false"))}
    async with asked.client() as client:
        with trio.move_on_after(asked.config.http.operation_timeout_ms * _SHARE / 1000):
            names = [topic] if topic else sorted(await client.list_topics())
            for name in sorted(names, key=lambda name: name not in indexed):
                try:
                    found += await client.find_records(name, wanted, limit=limit + 1 - len(found))
                except MillraceError as error:
                    if topic or error.code not in (ErrorCode.ACCESS_REFUSED, ErrorCode.UNKNOWN_TOPIC):
                        raise
                    continue
                searched.append({"topic": plain(name), "indexed": name in indexed})
                if len(found) > limit:
                    break
            else:
                complete = True
    rows = (
        (plain(one.topic), one.partition, one.offset, one.timestamp_ms, None if one.value is None else len(one.value))
        for one in found[:limit]
    )
    shown = table(("topic", "partition", "offset", "timestamp_ms", "bytes"), rows, 0)
    return {**shown, "searched": searched, "complete": complete}


@operation("records.read", into=WEB_OPERATIONS)
async def read_records(
    asked: Asked,
    user: str,
    topic: str,
    partition: Number,
    offset: Offset | None = None,
    time_ms: Offset | None = None,
    last: Count | None = None,
    limit: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] = 50,
    bytes_max: Annotated[int, Meta(ge=0, le=1 << 20)] = BODY_BYTES,
) -> dict[str, Any]:
    """Records of a partition from an offset on, from the first one not before a time on, or the last ones; from the
    beginning if none of these is said. `bytes_max` is of a key, a value or a header.
    """
    if [offset, time_ms, last].count(None) < 2:
        raise _invalid("records.read: one of offset, time_ms and last says where to begin")
    async with asked.client() as client:
        places = await client.places([f"{topic}:{partition}"])
        (first,) = await client.list_offsets(places, "earliest")
        (end,) = await client.list_offsets(places, "latest")
        begin, end = first or 0, end or 0
        if offset is not None:
            begin = max(begin, offset)
        elif last is not None:
            begin = max(begin, end - last)
        elif time_ms is not None:
            (found,) = await client.list_offsets(places, time_ms)
            begin = end if found is None else found
        most = asked.config.http.records_bytes_max
        records, behind = await client.read_records(topic, partition, begin, end, limit=limit, bytes_max=most)
    return {
        "records": [_record(one, bytes_max) for one in records],
        "start_offset": first or 0,
        "end_offset": end,
        "next_offset": behind,
    }


def _record(record: ConsumerRecord, bytes_max: int) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _shown(record.key, bytes_max),
        "value": _shown(record.value, bytes_max),
        "headers": [[plain(name), _shown(value, bytes_max)] for name, value in record.headers],
    }


def _shown(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    return None if data is None else shown_bytes(data, bytes_max)


def _bytes(text: Text | None) -> bytes | None:
    return None if text is None else bytes_of(text)


@operation("records.produce", into=WEB_OPERATIONS)
async def produce(
    asked: Asked,
    user: str,
    topic: str,
    value: Text | None,
    key: Text | None = None,
    partition: Number | None = None,
    headers: list[tuple[str, Text | None]] = [],  # noqa: B006
) -> dict[str, Any]:
    """Append a record to a topic that is there; where it is, once it is as safe as the topic promises."""
    async with asked.client() as client:
        await client.places([topic if partition is None else f"{topic}:{partition}"])
    named = [(name, _bytes(content)) for name, content in headers]
    async with asked.producer() as producer:
        stored = await (await producer.send(topic, _bytes(value), _bytes(key), named or None, partition))
    return {"partition": stored.partition, "offset": stored.offset}


@operation("groups.list", into=WEB_OPERATIONS)
async def list_groups(asked: Asked, user: str, start: int = 0) -> dict[str, Any]:
    """All groups, of the Kafka door as well."""
    async with asked.client() as client:
        rows = ((one.group, one.state, one.members, one.type) for one in await client.list_groups())
        return table(("group", "state", "members", "type"), rows, start)


@operation("groups.describe", into=WEB_OPERATIONS)
async def describe_group(asked: Asked, user: str, group: str) -> Any:
    """As `millrace groups describe --json`."""
    async with asked.client() as client:
        described, lags = await client.describe_group(group), await client.lag(group)
        return plain(described_group(described, lags, await client.queue_lag(group)))


@operation("groups.reset", into=WEB_OPERATIONS)
async def reset_group(
    asked: Asked,
    user: str,
    group: str,
    to: Literal["earliest", "latest"] | ToOffset,
    topics: list[str] = [],  # noqa: B006
    dry_run: bool = False,
) -> dict[str, Any]:
    """Have a group without members go on somewhere else, where it has come or in these topics (TOPIC or TOPIC:0,1);
    what is not there is cut to what is. Where it goes on then.
    """
    chosen = ToOffset() if isinstance(to, str) else to
    which = to if isinstance(to, str) else chosen.time_ms
    if [which, chosen.offset, chosen.shift].count(None) != 2:
        raise _invalid("groups.reset: to is 'earliest', 'latest', or one of offset, shift and time_ms")
    async with asked.client() as client:
        found = await client.reset_offsets(
            group,
            which,
            offset=chosen.offset,
            shift=chosen.shift,
            partitions=await client.places(topics) if topics else None,
            dry_run=dry_run,
        )
    rows = ((*place, offset) for place, offset in sorted(found.items()))
    return {"columns": ["topic", "partition", "offset"], "rows": [[plain(one) for one in row] for row in rows]}


@operation("groups.delete", into=WEB_OPERATIONS)
async def delete_group(asked: Asked, user: str, group: str) -> None:
    """Forget a group, and how far it has come. It must have no members."""
    async with asked.client() as client:
        await client.delete_group(group)
