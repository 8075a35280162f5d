"""A channel: one session of the engine, its consumers, and the sink the engine delivers to.

1. Delivery tags are the session's delivery ids, publish sequence numbers the session's: both start at 1 on a channel.
2. The sink's methods only append to the outbox.
3. Control methods answer with their `-ok` unless the peer asked for none (`nowait`). Errors are raised, the engine's or
   `AmqpError`; the connection's adapter closes.
"""

from __future__ import annotations

import base64
import secrets
import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol

from protocols.amqp import methods
from protocols.amqp.adapter_properties import PROTOCOL, REPLY_TO, SpecialProperties, raw_of
from protocols.amqp.adapter_record_lists import lists_of
from protocols.amqp.adapter_streams import stream_arguments, stream_raws
from protocols.amqp.config import AmqpConfig
from protocols.amqp.deliveries import (
    SEPARATE_BYTES_MIN,
    DeliveryPrefix,
    content,
    encode_large,
    encode_run,
    method_frame,
)
from protocols.amqp.errors import SOFT, AmqpError
from protocols.amqp.method_codec import Method
from protocols.amqp.mixed_deliveries import DeliveryHeads, LastRun, MixedRun, shared_ends
from protocols.amqp.property_edits import with_reply_to
from protocols.amqp.publish_run import PublishRun
from protocols.amqp.wire import fitting
from routing.access.grants import Grants
from routing.broker import Broker
from routing.errors import BrokerError
from routing.message import Properties, Slab
from routing.queues.queue import Queue
from routing.session import Consumer, Outcome
from routing.topics.stream import Stream
from routing.topics.stream_records import RECORD_PROTOCOL, StreamSlab

_PREFIXES_MAX = 64
_PREFIX_BYTES_MAX = 1024
_CONFIRMATION = struct.Struct(">BHIIQBB")
_ACK, _NACK = 0x3C0050, 0x3C0078
_PUBLISH = 0x3C0028


_PrefixKey = tuple[str, str, bool, Properties]


class _Prefixes(dict[_PrefixKey, DeliveryPrefix]):
    """What deliveries of a consumer begin with: as a mapping for runs that are all alike, `heads` for all others."""

    __slots__ = ("_once", "heads")

    def __init__(self, heads: DeliveryHeads) -> None:
        super().__init__()
        self.heads = heads
        self._once: set[int] = set()
        """Properties that were there once, by their hash."""

    def keep(self, key: _PrefixKey, raw: bytes, prefix: DeliveryPrefix) -> None:
        """Remember one whose properties come for the second time: where every message has its own, as replies have,
        none do, and a consumer would hold what is of no use for as long as it is there.
        """
        properties = hash(raw)
        if properties not in self._once:
            if len(self._once) >= _PREFIXES_MAX:
                self._once.clear()
            self._once.add(properties)
            return
        if len(self) >= _PREFIXES_MAX:
            self.clear()
        self[key] = prefix


_last_run = LastRun()


class Link(Protocol):
    """The connection as its channels see it."""

    broker: Broker
    config: AmqpConfig
    notifies_cancel: bool
    vhost: str
    grants: Grants

    @property
    def frame_bytes_max(self) -> int:
        """The negotiated frame size."""

    def write(self, data: bytes | memoryview) -> None:
        """Append to the outbox."""

    def writable(self) -> bool:
        """Whether the outbox takes deliveries."""

    def end_channel(self, number: int, error: BrokerError) -> None:
        """Close a channel in the middle of nothing."""


class Channel:
    """See the module; implements `routing.session.DeliverySink`."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.write = link.write
        self.writable: Callable[[], bool] = link.writable
        self.queue = ""
        """The queue last declared, which an empty name means (AMQP 0-9-1, domain `queue-name`)."""
        self.closed = False
        self._confirming = False
        self._confirmed = 0
        self._consumers: dict[str, Consumer] = {}
        self._reply_tag: str | None = None
        self._reply_address: str | None = None
        """The queue behind `REPLY_TO`, while it has its one consumer."""
        self._joined_bytes_max = min(SEPARATE_BYTES_MIN - 1, link.frame_bytes_max - 8)
        self.session = link.broker.session(self, protocol="amqp", owner=link, vhost=link.vhost)
        self.session.number = number
        self.session.on_overdue = self.session.on_failed = partial(link.end_channel, number)

    def consumed(self) -> list[Queue | Stream]:
        """What it has consumers of."""
        return [consumer.queue for consumer in self._consumers.values()]

    def close(self) -> None:
        """Give everything back to the engine."""
        self.closed = True
        self._consumers.clear()
        self.session.close()

    def reply(self, method: Method) -> None:
        """Write a method, unless the channel was closed while its request waited."""
        if not self.closed:
            self.write(method_frame(self.number, method.encode()))

    def queue_name(self, name: str, method: Method) -> str:
        """What the queue name of a method stands for: an empty one is the queue last declared. The queue behind an
        address for direct replies is nobody's to name. Raises AmqpError 404.
        """
        name = name or self.queue
        if not name:
            raise self._error("NOT_FOUND", "no previously declared queue", method)
        if name.startswith(REPLY_TO + "."):
            raise self._error("NOT_FOUND", f"no queue '{name}' in vhost '{self.link.vhost}'", method)
        return name

    # ---------------------------------------------------------------- publishing

    def publish(self, run: PublishRun) -> None:
        """Hand a run to the engine."""
        grants = self.link.grants
        if run.exchange not in grants.publishable:
            grants.require_publish(run.exchange, run.keys or (run.routing_key,))
        properties = run.properties
        if properties.__class__ is not Properties:
            self._publish_special(run)
            return
        slab = Slab(
            run.exchange, run.routing_key, properties, run.bodies, keys=run.keys, raws=run.raws, facts=run.facts
        )
        self.session.publish(slab, mandatory=run.mandatory, confirm=self._confirming)

    def _publish_special(self, run: PublishRun) -> None:
        """Publishes with equal properties that are refused, or want copies or replies."""
        special: SpecialProperties | AmqpError = run.properties
        if isinstance(special, AmqpError):
            raise AmqpError(special.name, special.explanation, channel=self.number, method_id=_PUBLISH)
        if special.copies:
            self.link.grants.require_keys("write", run.exchange, special.copies)
        properties = special.properties
        if special.wants_reply_address:
            if self._reply_address is None:
                explanation = "fast reply consumer does not exist"
                raise AmqpError("PRECONDITION_FAILED", explanation, channel=self.number, method_id=_PUBLISH)
            raw = with_reply_to(properties.raw, self._reply_address)
            properties = Properties(PROTOCOL, raw, persistent=properties.persistent, facts=properties.facts)
        slab = Slab(run.exchange, run.routing_key, properties, run.bodies, keys=run.keys)
        # With copies a slab has one key.
        parts = [slab] if run.keys is None else [slab.part(at, at + 1) for at in range(len(run.bodies))]
        for part in parts:
            part.keys = None
            self.session.publish(part, mandatory=run.mandatory, confirm=self._confirming, copies=special.copies)

    def select_confirms(self, method: methods.ConfirmSelect) -> None:
        """`confirm.select`."""
        if self.session.transaction is not None:
            raise self._error("PRECONDITION_FAILED", "cannot switch from tx to confirm mode", method)
        self._confirming = True
        if not method.nowait:
            self.reply(methods.ConfirmSelectOk())

    def select_transactions(self, method: methods.TxSelect) -> None:
        """`tx.select`."""
        if self._confirming:
            raise self._error("PRECONDITION_FAILED", "cannot switch from confirm to tx mode", method)
        self.session.begin()
        self.reply(methods.TxSelectOk())

    async def commit(self, method: methods.TxCommit) -> None:
        """`tx.commit`; waits for the disk."""
        self._require_transaction(method)
        await self.session.commit()
        self.reply(methods.TxCommitOk())

    def roll_back(self, method: methods.TxRollback) -> None:
        """`tx.rollback`."""
        self._require_transaction(method)
        self.session.roll_back()
        self.reply(methods.TxRollbackOk())

    def _require_transaction(self, method: Method) -> None:
        if self.session.transaction is None:
            raise self._error("PRECONDITION_FAILED", "channel is not transactional", method)

    def confirm(self, up_to: int) -> None:
        """All publishes up to `up_to` are safe: one `basic.ack`."""
        multiple = up_to > self._confirmed + 1
        self._confirmed = up_to
        self.write(_CONFIRMATION.pack(1, self.number, 13, _ACK, up_to, multiple, 0xCE))

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """These publishes were not made safe: `basic.nack`."""
        if first == self._confirmed + 1:
            ranges = [(last, last > first)]
        else:
            ranges = [(number, False) for number in range(first, last + 1)]
        for number, multiple in ranges:
            self.write(_CONFIRMATION.pack(1, self.number, 13, _NACK, number, multiple, 0xCE))
        self._confirmed = max(self._confirmed, last)

    def returned(self, slab: Slab, reason: str) -> None:
        """A mandatory run had nowhere to go: `basic.return` for each message."""
        frame_bytes_max = self.link.frame_bytes_max
        returns = []
        for index, body in enumerate(slab.bodies):
            method = methods.BasicReturn(SOFT[reason], reason, slab.exchange, slab.key_of(index)).encode()
            returns.append(content(self.number, method, raw_of(slab.properties_of(index)), body, frame_bytes_max))
        self.write(b"".join(returns))

    # ---------------------------------------------------------------- consuming

    async def consume(self, method: methods.BasicConsume) -> None:
        """`basic.consume`; deliveries begin when the turn ends, so after `consume-ok`."""
        tag = method.consumer_tag or f"amq.ctag-{base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[:22]}"
        if tag in self._consumers:
            raise self._error("NOT_ALLOWED", f"attempt to reuse consumer tag '{tag}'", method)
        limit = self.link.config.consumers_per_channel_max
        if len(self._consumers) >= limit:
            raise self._error("NOT_ALLOWED", f"reached maximum ({limit}) of consumers per channel", method)
        replies = method.queue == REPLY_TO
        queue = await self._open_replies(tag, method) if replies else self.queue_name(method.queue, method)
        self._consumers[tag] = await self.session.consume(
            queue,
            tag=tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=stream_arguments(method.arguments),
            context=_Prefixes(DeliveryHeads(self.number, tag)),
        )
        if not method.nowait:
            self.reply(methods.BasicConsumeOk(tag))

    async def _open_replies(self, tag: str, method: methods.BasicConsume) -> str:
        """Make the queue that direct replies to this channel go through: nobody else can guess its name or consume
        it, it keeps nothing that its consumer can take at once, and it goes with the consumer.
        """
        if not method.no_ack:
            raise self._error("PRECONDITION_FAILED", "reply consumer cannot acknowledge", method)
        if self._reply_tag is not None:
            raise self._error("PRECONDITION_FAILED", "reply consumer already set", method)
        self._reply_tag = tag
        info = await self.link.broker.declare_queue(
            "", exclusive=True, auto_delete=True, owner=self.link, vhost=self.link.vhost, prefix=REPLY_TO + "."
        )
        self._reply_address = info.name
        return info.name

    def _forget_replies(self, tag: str) -> None:
        if tag == self._reply_tag:
            self._reply_tag = self._reply_address = None

    async def cancel(self, method: methods.BasicCancel) -> None:
        """`basic.cancel`; a tag that is not known is no error. Answered when a queue is gone that goes with this."""
        self._forget_replies(method.consumer_tag)
        consumer = self._consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self.session.cancel(consumer)
        if not method.nowait:
            if consumer is not None:
                await self.link.broker.until_gone([consumer.queue])
            self.reply(methods.BasicCancelOk(method.consumer_tag))

    def cancelled(self, consumer: Consumer) -> None:
        """The consumer's queue is gone: tell the peer if it wants to know (consumer_cancel_notify)."""
        self._consumers.pop(consumer.tag, None)
        self._forget_replies(consumer.tag)
        if self.link.notifies_cancel:
            self.reply(methods.BasicCancel(consumer.tag, nowait=True))

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Encode a run of deliveries."""
        if slab.keys is not None or slab.raws is not None:
            self._deliver_mixed(consumer, first_id, slab, start, stop, redelivered)
            return
        bodies = slab.bodies
        if stop - start != len(bodies):
            bodies = bodies[start:stop]
        prefixes: _Prefixes = consumer.context
        key = (slab.exchange, slab.routing_key, redelivered, slab.properties)
        prefix = prefixes.get(key)
        if prefix is None:
            raw = raw_of(slab.properties)
            prefix = DeliveryPrefix(self.number, consumer.tag, slab.exchange, slab.routing_key, raw, redelivered)
            if len(raw) <= _PREFIX_BYTES_MAX:
                prefixes.keep(key, raw, prefix)
        sizes = list(map(len, bodies))
        if max(sizes) <= self._joined_bytes_max:
            self.write(encode_run(prefix, first_id, bodies, sizes))
        else:
            for buffer in encode_large(prefix, self.number, first_id, bodies, self.link.frame_bytes_max):
                self.write(buffer)

    def deliver_each(self, consumers: list[Consumer], first_id: int, slab: Slab) -> None:
        """Encode deliveries each of which goes to another consumer."""
        if max(map(len, slab.bodies)) > self._joined_bytes_max:
            for index, consumer in enumerate(consumers):
                self.deliver(consumer, first_id + index, slab, index, index + 1, False)
            return
        heads: list[DeliveryHeads] = [consumer.context.heads for consumer in consumers]
        count, ends = len(slab.bodies), shared_ends(slab.exchange, False)
        around = [ends[key] for key in slab.keys or [slab.routing_key] * count]
        run = MixedRun(self.number, around, _raws_of(slab, 0, count), slab.bodies)
        self.write(run.encode_each(heads, first_id))

    def _deliver_mixed(
        self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool
    ) -> None:
        """Deliveries whose keys or properties differ; what several consumers get is put together once."""
        heads: DeliveryHeads = consumer.context.heads
        part = (self.number, start, stop, redelivered, self.link.frame_bytes_max)
        run = _last_run.get(slab, part)
        if run is not None:
            self.write(run.encode_again(heads, first_id))
            return
        bodies = slab.bodies[start:stop]
        if max(map(len, bodies)) > self._joined_bytes_max:
            for index in range(start, stop):
                raws = stream_raws(slab, self.link.frame_bytes_max) if isinstance(slab, StreamSlab) else None
                properties = Properties(PROTOCOL, raws[index], persistent=True) if raws else slab.properties_of(index)
                one = Slab(slab.exchange, slab.key_of(index), properties, [slab.bodies[index]])
                self.deliver(consumer, first_id + index - start, one, 0, 1, redelivered)
            return
        if isinstance(slab, StreamSlab):
            raws = stream_raws(slab, self.link.frame_bytes_max)[start:stop]
        else:
            raws = _raws_of(slab, start, stop)
        ends = shared_ends(slab.exchange, redelivered)
        if slab.keys is None:
            around = [ends[slab.routing_key]] * len(bodies)
        else:
            around = list(map(ends.__getitem__, slab.keys[start:stop]))
        run = MixedRun(self.number, around, raws, bodies)
        _last_run.keep(slab, part, run)
        self.write(run.encode(heads, first_id))

    async def get(self, method: methods.BasicGet) -> None:
        """`basic.get`; waits only for a message that must be read from disk, and for whoever leads the queue."""
        got = await self.session.get(self.queue_name(method.queue, method), no_ack=method.no_ack)
        if self.closed:
            return
        if got is None:
            self.reply(methods.BasicGetEmpty())
            return
        slab = got.slab
        answer = methods.BasicGetOk(
            got.delivery_id,
            got.redelivered,
            fitting(slab.exchange),
            fitting(slab.key_of(got.index)),
            min(got.message_count, 0xFFFFFFFF),
        )
        raw = raw_of(slab.properties_of(got.index))
        self.write(content(self.number, answer.encode(), raw, slab.bodies[got.index], self.link.frame_bytes_max))

    # ---------------------------------------------------------------- settling and flow

    def negative(self, method: methods.BasicNack) -> None:
        """`basic.nack`."""
        outcome = Outcome.REQUEUE if method.requeue else Outcome.DISCARD
        if method.multiple:
            self.session.settle_up_to(method.delivery_tag, outcome)
        else:
            self.session.settle(method.delivery_tag, method.delivery_tag, outcome)

    def reject(self, method: methods.BasicReject) -> None:
        """`basic.reject`."""
        outcome = Outcome.REQUEUE if method.requeue else Outcome.DISCARD
        self.session.settle(method.delivery_tag, method.delivery_tag, outcome)

    def recover(self, method: methods.BasicRecover | methods.BasicRecoverAsync) -> None:
        """`basic.recover` and `recover-async`; without requeue it is not implemented, as in RabbitMQ."""
        if not method.requeue:
            raise self._error("NOT_IMPLEMENTED", "requeue=false", method)
        self.session.recover()
        if isinstance(method, methods.BasicRecover):
            self.reply(methods.BasicRecoverOk())

    def limit_prefetch(self, method: methods.BasicQos) -> None:
        """`basic.qos`: per consumer made from now on, or with `global` for the whole channel."""
        if method.prefetch_size:
            raise self._error("NOT_IMPLEMENTED", f"prefetch_size!=0 ({method.prefetch_size})", method)
        self.session.set_prefetch(method.prefetch_count, per_session=method.all_consumers)
        self.reply(methods.BasicQosOk())

    def flow(self, method: methods.ChannelFlow) -> None:
        """`channel.flow` stops and resumes deliveries."""
        self.session.pause(not method.active)
        self.reply(methods.ChannelFlowOk(method.active))

    def _error(self, name: str, explanation: str, method: Method) -> AmqpError:
        return AmqpError(name, explanation, channel=self.number, method_id=method.IDENT)


def _raws_of(slab: Slab, start: int, stop: int) -> list[bytes]:
    if slab.raws is None:
        return [raw_of(slab.properties)] * (stop - start)
    if slab.properties.protocol == PROTOCOL:
        return slab.raws[start:stop]
    if slab.properties.protocol == RECORD_PROTOCOL and slab.plain:
        return lists_of(slab.raws[start:stop])
    return [raw_of(slab.properties_of(index)) for index in range(start, stop)]
