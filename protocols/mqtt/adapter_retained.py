"""Retained messages: what clients publish to be retained is kept by the engine, and given to those who subscribe.

1. A message is kept with the raw bytes that those who subscribe later are sent it by (`raw.GIVEN`), so that giving it
   out changes nothing in it. It goes into the client's queue like any other message: the window, acknowledgements and
   a session that lasts count for it. A piece at a time goes in, while the disk keeps up.
2. A publish is acknowledged when the message is kept, too. What there is no room for is refused (MQTT 5, at QoS 1 and
   2), else it is delivered and not retained: the broker counts it and logs it once a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from protocols.mqtt.adapter_dollar import OWN_TOPICS, Kind, Mixed, NotReady, divided, to_later
from protocols.mqtt.adapter_sessions import sessions_of
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions
from protocols.mqtt.events import SubscriptionRequest
from protocols.mqtt.raw import GIVEN, RETAIN, mark_in, mark_of, with_flags, with_mark, with_qos_max
from protocols.mqtt.reasons import ReasonCode
from routing.commits import storage_errors
from routing.errors import AccessRefused, BrokerError, LimitExceeded
from routing.kept.giving_out import Subscriber
from routing.message import Properties, Slab
from routing.republishing.later import register_publisher
from routing.session import Session

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter

EXCHANGE = "amq.topic"
QOS_MAX = 2
NEVER = 2
"""A retain handling: nothing is given out."""
GIVEN_FROM = bytes((GIVEN,))
"""Raw properties below this say of nothing that it is given out because it is retained."""

log = logging.getLogger(__name__)


class Retaining:
    """The retained messages that one connection publishes and gets, from CONNECT on; see the module."""

    __slots__ = ("_adapter", "_refused", "_retained", "_session", "_vhost")

    def __init__(self, adapter: MqttAdapter, session: Session) -> None:
        self._adapter = adapter
        self._session = session
        self._retained = adapter.broker.retained
        self._vhost = adapter.config.virtual_host
        self._refused = False

    def publish(self, slab: Slab, *, retain: bool, confirm: bool = False, mandatory: bool = False) -> None:
        """Publish messages that are to be kept, or whose topics may begin with `$`. Raises as `Session.publish`;
        LimitExceeded, StorageUnavailable; Mixed, NotReady, before anything was done.
        """
        session, parts, found = self._session, list[tuple[Slab, bool]](), divided(slab)
        if len(found) > 1 and confirm and self._adapter.wire.has_properties:
            raise Mixed  # each is answered for itself
        for kind, part in found:
            if kind is Kind.ORDINARY:
                parts.append((part, retain))
            elif kind is Kind.DELAYED:
                self._plan_delayed(part, parts)
            else:
                self._refuse(AccessRefused(OWN_TOPICS), part)
        for part, kept in parts:
            if kept:
                self._publish_kept(part, confirm=confirm, mandatory=mandatory)
            else:
                session.publish(part, confirm=confirm, mandatory=mandatory and part.exchange == EXCHANGE)
        dropped = len(slab.bodies) - sum(len(part.bodies) for part, _ in parts)
        if dropped and confirm:
            session.confirms.published += dropped
            session.broker.confirming[session] = None

    def _plan_delayed(self, slab: Slab, parts: list[tuple[Slab, bool]]) -> None:
        """What is to be published of messages for `$delayed`."""
        broker = self._adapter.broker
        if not broker.later.is_ready(self._vhost):
            raise NotReady
        found, refused = to_later(slab, broker.clock.wall_ms())
        if refused is not None:
            self._refuse(refused, slab)
        if found is not None:
            parts.append((found, False))

    def _refuse(self, error: BrokerError, slab: Slab) -> None:
        """Messages are dropped, if their publisher cannot be told otherwise."""
        if self._adapter.wire.has_properties and slab.properties.persistent:
            raise error
        log.warning("MQTT %s: dropped: %s", self._adapter.peer, error)

    async def make_ready(self) -> None:
        """See `NotReady`. Raises BrokerError."""
        await self._adapter.broker.later.make_ready(self._vhost)

    def _publish_kept(self, slab: Slab, *, confirm: bool, mandatory: bool) -> None:
        retained, kept = self._retained, to_keep(slab, mark_of(self._adapter.connect.client_id))
        keeping = self._adapter.broker.keeping
        if keeping is not None:
            keeping.require_writable()
            self._session.publish(slab, confirm=confirm, mandatory=mandatory)
            keeping.keep(self._session, kept, confirm=confirm, may_refuse=self._adapter.wire.has_properties)
            return
        retained.require_writable()
        puts: Mapping[bytes, bytes | None] | None = None
        try:
            puts = retained.plan(self._vhost, kept)
        except LimitExceeded as error:
            if confirm and self._adapter.wire.has_properties:
                retained.refused += len(slab.bodies) == 1  # several are tried again one by one
                raise
            if not self._refused:
                self._refused = True
                log.warning("MQTT %s: messages are not retained: %s", self._adapter.peer, error)
        self._session.publish(slab, confirm=confirm, mandatory=mandatory)
        _keep(self._session, kept, puts, confirm=confirm)

    async def give_out(self, queue_name: str, asked: Sequence[tuple[str, SubscriptionOptions]]) -> None:
        """Put what is retained for new subscriptions, by pattern, into the client's queue (MQTT-3.3.1-6), each on
        the terms of the subscription that asks for it, whatever others the client has (MQTT-3.8.4-8). Returns when all
        is there, or two pieces of more: then it goes on, and the client is served meanwhile.
        """
        broker, asking = self._adapter.broker, object()
        giving, keeping = sessions_of(broker).giving, broker.keeping
        if keeping is not None:
            found = [(pattern, options, list[str]()) for pattern, options in asked]
        else:
            matching = partial(self._retained.matching, self._vhost, syntax="mqtt")
            found = [(pattern, options, names) for pattern, options in asked if (names := matching(pattern))]
        mine = dict.fromkeys(((queue_name, pattern) for pattern, _, _ in found), asking)
        giving |= mine

        def is_wanted(key: tuple[str, str]) -> bool:
            # The client may have unsubscribed at another broker since, which has not told this one.
            return giving.get(key) is asking and (keeping is None or _is_bound(self._session, *key))

        async def give(may_return: Callable[[], None]) -> None:
            try:
                if keeping is not None:
                    await keeping.all_told()
                subscriber = Subscriber(self._session, queue_name, may_return)
                for pattern, options, names in found:
                    subscriber.is_wanted = partial(is_wanted, (queue_name, pattern))
                    await self._give(subscriber, pattern, names, partial(self._as_wanted, options))
            finally:
                for key in mine:
                    if giving.get(key) is asking:
                        del giving[key]

        if found:
            await broker.giving_out.begin(give)

    async def _give(
        self,
        subscriber: Subscriber,
        pattern: str,
        names: Sequence[str],
        as_wanted: Callable[[Iterable[list[Slab]]], Iterator[Iterable[Slab]]],
    ) -> None:
        """Give out what is retained for one subscription: of these names, or in a cluster what matches, a page at a
        time as there is room for it.
        """
        keeping = self._adapter.broker.keeping
        try:
            if keeping is None:
                await subscriber.give(as_wanted(self._retained.pieces(self._vhost, names, EXCHANGE)))
                return
            async with aclosing(keeping.pages(self._vhost, pattern, EXCHANGE)) as pages:
                while await subscriber.may_have() and (page := await anext(pages, None)) is not None:
                    await subscriber.give(as_wanted([page]))
        except BrokerError as error:
            log.warning("MQTT %s: retained messages are lost on the way: %s", self._adapter.peer, error)

    def _as_wanted(self, options: SubscriptionOptions, pieces: Iterable[list[Slab]]) -> Iterator[Iterable[Slab]]:
        """Messages as a subscription wants them."""
        own_mark = mark_of(self._adapter.connect.client_id)
        for piece in pieces:
            slabs: Iterable[Slab] = piece
            if options.qos < QOS_MAX:
                slabs = [with_raws(slab, capped, options.qos, capped(options.qos)) for slab in piece]
            yield filter(None, (without(slab, own_mark) for slab in slabs)) if options.no_local else slabs


def _is_bound(session: Session, queue_name: str, pattern: str) -> bool:
    bindings = session.vhost.bindings_to.get(("queue", queue_name), ())
    return any(one.pattern == pattern and one.exchange == EXCHANGE for one in bindings)


def _keep(session: Session, slab: Slab, puts: Mapping[bytes, bytes | None] | None, *, confirm: bool) -> None:
    """Keep messages that were published: what was planned, or what there is room for."""
    retained, keeping = session.broker.retained, session.broker.keeping
    if keeping is not None:
        keeping.keep(session, slab, confirm=confirm, may_refuse=False)
        return
    with storage_errors():
        if puts is not None:
            retained.put(puts)
        else:
            for index in range(len(slab.bodies)):
                try:
                    retained.keep(session.vhost.name, slab.part(index, index + 1))
                except LimitExceeded:
                    retained.refused += 1
    if confirm:
        session.confirms.require(slab, [(retained.log, retained.log.log_end_offset)])


def publish_due(session: Session, slab: Slab) -> None:
    """Publish messages that were delayed; those that are to be retained are. Raises BrokerError."""
    raws = [slab.properties.raw] * len(slab.bodies) if slab.raws is None else slab.raws
    (session.broker.keeping or session.broker.retained).require_writable()
    session.publish(slab, confirm=True)
    for at, raw in enumerate(raws):
        if raw and raw[0] & RETAIN:
            _keep(session, to_keep(slab.part(at, at + 1)), None, confirm=True)


register_publisher("mqtt", publish_due)


def wanted(requests: Sequence[SubscriptionRequest], codes: Sequence[int], known: Collection[str]) -> Iterator[str]:
    """The filters of a SUBSCRIBE for which retained messages are given out; `known` were there before it. One that
    comes twice is there the second time, as if it had come in two packets (MQTT-3.8.4-5).
    """
    there = set(known)
    for request, code in zip(requests, codes, strict=False):
        if code > ReasonCode.GRANTED_QOS_2:
            continue
        again = request.retain_handling and request.topic_filter in there
        there.add(request.topic_filter)
        if request.retain_handling != NEVER and not again:
            yield request.topic_filter


def capped(qos: int) -> Callable[[bytes], bytes]:
    """Raw bytes as of a message that was published at this QoS at most."""
    return lambda raw: with_qos_max(raw, qos)


def to_keep(slab: Slab, mark: bytes | None = None) -> Slab:
    """Messages as they are kept; with the mark of their publisher, so that who wants no own ones is given none."""
    flags = RETAIN | GIVEN
    if mark is None:
        return with_raws(slab, to_keep, mark, lambda raw: with_flags(raw, flags))
    return with_raws(slab, to_keep, mark, lambda raw: with_mark(with_flags(raw, flags), mark))


def with_raws(slab: Slab, name: object, value: object, change: Callable[[bytes], bytes]) -> Slab:
    """The same messages with other raw bytes. What becomes of common properties is remembered there, for the last value
    of each name: properties are shared by all clients, and stay when these have gone.
    """
    properties = slab.properties
    known: tuple[object, Properties] | None = properties.wire.get(name)
    if known is None or known[0] != value:
        raw = change(properties.raw)
        found = Properties(properties.protocol, raw, persistent=properties.persistent, facts=properties.facts)
        known = properties.wire[name] = value, found
    found = known[1]
    raws = None if slab.raws is None else list(map(change, slab.raws))
    changed = Slab(
        slab.exchange, slab.routing_key, found, slab.bodies, slab.size, keys=slab.keys, raws=raws, facts=slab.facts
    )
    changed.once = slab.once
    return changed


def without(slab: Slab, mark: bytes) -> Slab | None:
    """The messages that do not have this mark; None if all have."""
    raws = [slab.properties.raw] * len(slab.bodies) if slab.raws is None else slab.raws
    left = [at for at, raw in enumerate(raws) if mark_in(raw) != mark]
    if len(left) == len(raws):
        return slab
    if not left:
        return None
    return Slab(
        slab.exchange,
        slab.key_of(left[0]),
        slab.properties,
        [slab.bodies[at] for at in left],
        keys=None if slab.keys is None else [slab.keys[at] for at in left],
        raws=None if slab.raws is None else [slab.raws[at] for at in left],
        facts=None if slab.facts is None else [slab.facts[at] for at in left],
    )


def given(slab: Slab, start: int, stop: int) -> list[int] | None:
    """For each of these messages 1 if it is given out because it is retained; None: none is."""
    if slab.raws is None:
        raw = slab.properties.raw
        if raw < GIVEN_FROM or not raw[0] & GIVEN or slab.properties.protocol != "mqtt":
            return None
        return [1] * (stop - start)
    if slab.properties.protocol != "mqtt":
        return None
    found = [1 if raw and raw[0] & GIVEN else 0 for raw in slab.raws[start:stop]]
    return found if 1 in found else None
