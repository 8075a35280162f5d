"""Single messages that an operator publishes, or looks at where they wait.

What a user may publish or read by any other door he may here; no tag is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import trio
from msgspec import Meta

from routing.administration.forwarded import ask_leader
from routing.administration.operations import LOOKS, has_tag, operation, plain, require_short
from routing.administration.queues import delayed_first
from routing.administration.shown import BODY_BYTES, shown_message
from routing.commits import storage_errors
from routing.errors import (
    BrokerError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    StorageUnavailable,
    TimedOut,
)
from routing.facts import TTL_MS_MAX, asked_delay_ms, pack
from routing.message import NeutralProperties, Properties, Slab
from routing.message_makers import Made, maker_of
from routing.property_editors import NEUTRAL, to_neutral_raw

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.line import Line
    from routing.queues.queue import Queue
    from routing.session import Consumer, Session

_PATIENCE_S = 20.0
"""The client waits for its answer."""
_HEADERS_MAX = 1000
PEEKED_MAX = 100


class Said(msgspec.Struct, forbid_unknown_fields=True):
    """Properties of a message; what is left out it does not have."""

    persistent: bool = True
    content_type: str | None = None
    content_encoding: str | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration_ms: Annotated[int, Meta(ge=0, le=TTL_MS_MAX)] | None = None
    message_id: str | None = None
    timestamp_s: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    type: str | None = None
    app_id: str | None = None


class Encoded(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: bytes


class _Publisher:
    """The sink of a session that publishes one message."""

    def __init__(self) -> None:
        self.routed = True
        self.failure: BrokerError | None = None
        self.done = trio.Event()

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Nothing is consumed."""

    def confirm(self, up_to: int) -> None:
        self.done.set()

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        self.failure = error
        self.done.set()

    def returned(self, slab: Slab, reason: str) -> None:
        self.routed = False

    def cancelled(self, consumer: Consumer) -> None:
        """Nothing is consumed."""

    def writable(self) -> bool:
        return True


@operation("messages.publish", tags=None)
async def publish(
    broker: Broker,
    user: str,
    exchange: str = "",
    routing_key: str = "",
    body: str | Encoded = "",
    properties: Said | None = None,
    headers: dict[str, Any] | None = None,
    mqtt_topic: str | None = None,
    retain: bool = False,
    vhost: str = "/",
) -> dict[str, bool]:
    """Publish a message, as the user who asks, and say whether it was routed to anybody, once it is safe.

    With `mqtt_topic` it is one of an MQTT client, in place of exchange and key, and may be retained: with an empty body
    nothing is kept of the topic any more. A header `x-delay` counts as an AMQP client's.
    """
    said, more = properties or Said(), headers or {}
    if len(more) > _HEADERS_MAX:
        raise InvalidArgument(f"a message has at most {_HEADERS_MAX:,} headers here")
    neutral = _neutral(said, more)
    try:
        raw = to_neutral_raw(neutral)
    except (OverflowError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"headers that no message can have: {error}") from None
    if mqtt_topic is not None:
        if exchange or routing_key:
            raise InvalidArgument("a message has a topic, or an exchange and a routing key")
        made = maker_of("mqtt")(mqtt_topic, neutral, retain)
    elif retain:
        raise InvalidArgument("only messages with an `mqtt_topic` are retained")
    else:
        facts = pack(said.persistent, said.priority or 0, said.expiration_ms, asked_delay_ms(more.get("x-delay")))
        made = Made(exchange, routing_key, Properties(NEUTRAL, raw, persistent=said.persistent, facts=facts), None)
    require_short("a routing key", made.routing_key)
    broker.rights.grants(user, vhost).require_publish(made.exchange, (made.routing_key,))
    if broker.blocked is not None:
        raise StorageUnavailable(f"publishers have to wait: {broker.blocked}")
    return {"routed": await _published(broker, vhost, made, bytes_of(body))}


def _neutral(said: Said, headers: dict[str, Any]) -> NeutralProperties:
    values = msgspec.structs.asdict(said)
    if said.correlation_id is not None:
        values["correlation_id"] = said.correlation_id.encode("utf-8", "replace")
    return NeutralProperties(**values, headers=headers)


def bytes_of(text: str | Encoded) -> bytes:
    """What was given as text or in base64."""
    return text.encode("utf-8", "replace") if isinstance(text, str) else text.base64


async def _published(broker: Broker, vhost: str, made: Made, body: bytes) -> bool:
    """Whether it was routed. Raises BrokerError."""
    publisher = _Publisher()
    session = broker.session(publisher, protocol="administration", owner=publisher, vhost=vhost)
    try:
        slab = Slab(made.exchange, made.routing_key, made.properties, [body])
        if made.kept is None:
            session.publish(slab, mandatory=True, confirm=True)
        else:
            _publish_kept(session, slab, Slab(made.exchange, made.routing_key, made.kept, [body]))
        broker.end_turn()
        broker.want_turn()
        with trio.move_on_after(_PATIENCE_S):
            await publisher.done.wait()
    finally:
        session.close()
        broker.end_turn()
    if publisher.failure is not None:
        raise publisher.failure
    if not publisher.done.is_set():
        raise TimedOut(f"the message was published, and is not safe after {_PATIENCE_S:.0f} s: it may be or not")
    return publisher.routed


def _publish_kept(session: Session, slab: Slab, kept: Slab) -> None:
    """Publish a message, and have it retained. Raises BrokerError."""
    broker, keeping = session.broker, session.broker.keeping
    if keeping is not None:
        keeping.require_writable()
        session.publish(slab, mandatory=True, confirm=True)
        keeping.keep(session, kept, confirm=True, may_refuse=True)
        return
    retained = broker.retained
    retained.require_writable()
    puts = retained.plan(session.vhost.name, kept)
    session.publish(slab, mandatory=True, confirm=True)
    with storage_errors():
        retained.put(puts)
    session.confirms.require(slab, [(retained.log, retained.log.log_end_offset)])


@operation("queues.peek", tags=None)
async def peek(
    broker: Broker,
    user: str,
    name: str,
    vhost: str = "/",
    limit: int = 10,
    bytes_max: int = BODY_BYTES,
    delayed: bool = False,
) -> list[dict[str, Any]]:
    """The messages that come next out of a queue, at most `limit` and `PEEKED_MAX`, with at most `bytes_max` bytes of
    each body. They stay where they are, and nobody can tell that they were looked at. `returns` is how often one came
    back, in queues that count it. A connection's own queue is shown to users with the tag `monitoring` or
    `administrator`. Or, if told so, those that wait for their time, due first, with the `id` and `due_at_ms` that
    `delayed.list` has.
    """
    if user:  # else another broker asks, which has seen to it
        broker.rights.grants(user, vhost).require("read", "queue", name)
    found = broker.topology.vhost(vhost)
    queue = found.queues.get(name) or (None if name in found.streams else found.away.get(name))
    if queue is None:
        if name in found.streams:
            raise PreconditionFailed(f"'{name}' is a stream: read its topic '{found.streams[name].topic.name}'")
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if queue.exclusive and user and not has_tag(broker, user, LOOKS):
        raise ResourceLocked(f"queue '{name}' in vhost '{vhost}' belongs to a connection alone")
    if queue.elsewhere:
        told = {"name": name, "vhost": vhost, "limit": limit, "bytes_max": bytes_max}
        if delayed:  # a broker of an earlier version knows of no such thing
            told["delayed"] = True
        there: list[dict[str, Any]] = await ask_leader(broker, queue, "queues.peek", told)
        return there
    if queue.settings.view_of is not None:
        raise PreconditionFailed(f"'{name}' is a view: read its topic '{queue.settings.view_of}'")
    queue.require_led()
    with trio.move_on_after(_PATIENCE_S):
        return await _peeked(queue, min(max(limit, 0), PEEKED_MAX), bytes_max, delayed)
    raise StorageUnavailable(f"the messages of queue '{name}' could not be read in {_PATIENCE_S:.0f} s")


async def _peeked(queue: Queue, limit: int, bytes_max: int, delayed: bool) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    named: dict[int, dict[str, int]] = {}
    if delayed:
        named = {offset: {"id": offset, "due_at_ms": due_ms} for due_ms, offset in delayed_first(queue, limit)}
        looked_at = [(offset, False) for offset in named]
    else:
        looked_at = list(islice(_next(queue), limit))
    for offset, again in looked_at:
        entry = queue.store.find(offset)
        if entry is None:
            await queue.store.load_now(offset, queue)
            entry = queue.store.find(offset)
        if entry is None:  # it has just gone
            continue
        slab, at = entry.slab, offset - entry.first
        tries = None if queue.returns is None else queue.returns.tries.get(offset)
        where = {
            "exchange": plain(slab.exchange),
            "key": plain(slab.key_of(at)),
            "bytes": len(slab.bodies[at]),
            "redelivered": again or offset < queue.redelivered_before,
            "returns": None if queue.returns is None else 0 if tries is None else tries.returns,
        }
        shown.append(
            {**named.get(offset, {}), **where, **shown_message(slab.properties_of(at), slab.bodies[at], bytes_max)}
        )
    return shown


def _next(queue: Queue) -> Iterator[tuple[int, bool]]:
    """What waits, in the order in which it goes out, and whether it was given back."""
    levels = queue.levels
    lines = [queue.line] if levels is None else [levels.fresh, *levels.descending()]
    if queue.groups is not None:
        lines.append(queue.groups.aside)
    for line in lines:
        yield from _next_in(line)


def _next_in(line: Line) -> Iterator[tuple[int, bool]]:
    ready = ((offset, offset, False) for first, count in line.ready.ranges() for offset in range(first, first + count))
    given_back = [
        (
            (offset, offset, again)
            for first, count in line.placed.ranges_of(redelivered=again)
            for offset in range(first, first + count)
        )
        for again in (False, True)
    ]
    due = ((position, offset, False) for position, offset in line.due)
    for _, offset, again in merge(ready, *given_back, due):
        yield offset, again
