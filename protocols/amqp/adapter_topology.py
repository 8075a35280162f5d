"""Exchanges, queues and bindings: the control methods that may wait for the disk.

The engine checks and words everything about what exists and what is equivalent; here are only AMQP's own conventions:
passive declarations, the empty queue name, `nowait`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from protocols.amqp import methods
from protocols.amqp.adapter_channel import Channel
from protocols.amqp.adapter_properties import REPLY_TO
from protocols.amqp.adapter_rights import require_exchange_leads, require_queue_leads
from protocols.amqp.adapter_streams import stream_arguments
from protocols.amqp.errors import AmqpError
from protocols.amqp.method_codec import Method, Table
from routing.errors import ResourceLocked

_COUNT_MAX = 0xFFFFFFFF
_Binding = tuple[str, str, str, str, Table]
"""Kind and name of the destination, exchange, routing key, arguments."""


def _clean(name: str) -> str:
    """Names are declared and deleted without line ends, as in RabbitMQ."""
    return name.replace("\r", "").replace("\n", "")


def _answer(channel: Channel, nowait: bool, method: Method) -> None:
    if not nowait:
        channel.reply(method)


async def declare_exchange(channel: Channel, method: methods.ExchangeDeclare) -> None:
    """`exchange.declare`."""
    broker = channel.link.broker
    if method.exchange == "":
        explanation = "operation not permitted on the default exchange"
        raise AmqpError("ACCESS_REFUSED", explanation, channel=channel.number, method_id=method.IDENT)
    if method.passive:
        broker.check_exchange(_clean(method.exchange), vhost=channel.link.vhost)
    else:
        await broker.declare_exchange(
            _clean(method.exchange),
            method.kind,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
            vhost=channel.link.vhost,
            permitted=partial(require_exchange_leads, channel.link.grants, method),
        )
    _answer(channel, method.nowait, methods.ExchangeDeclareOk())


async def delete_exchange(channel: Channel, method: methods.ExchangeDelete) -> None:
    """`exchange.delete`."""
    await channel.link.broker.delete_exchange(
        _clean(method.exchange), if_unused=method.if_unused, vhost=channel.link.vhost
    )
    _answer(channel, method.nowait, methods.ExchangeDeleteOk())


async def bind_exchange(channel: Channel, method: methods.ExchangeBind) -> None:
    """`exchange.bind`: from `source` to `destination`."""
    await channel.link.broker.bind(*_between_exchanges(method), owner=channel.link, vhost=channel.link.vhost)
    _answer(channel, method.nowait, methods.ExchangeBindOk())


async def unbind_exchange(channel: Channel, method: methods.ExchangeUnbind) -> None:
    """`exchange.unbind`."""
    await channel.link.broker.unbind(*_between_exchanges(method), owner=channel.link, vhost=channel.link.vhost)
    _answer(channel, method.nowait, methods.ExchangeUnbindOk())


def _between_exchanges(method: methods.ExchangeBind | methods.ExchangeUnbind) -> _Binding:
    return "exchange", method.destination, method.source, method.routing_key, method.arguments


async def declare_queue(channel: Channel, method: methods.QueueDeclare) -> None:
    """`queue.declare`; the name becomes what an empty one means on this channel."""
    broker = channel.link.broker
    if method.queue.startswith(REPLY_TO):
        await _find_replies(channel, method)
        return
    if method.passive:
        info = await broker.check_queue(_clean(method.queue), channel.link, vhost=channel.link.vhost)
    else:
        arguments = method.arguments
        if _clean(method.queue).startswith("amq."):
            explanation = f"queue name '{_clean(method.queue)}' contains reserved prefix 'amq.*'"
            raise AmqpError("ACCESS_REFUSED", explanation, channel=channel.number, method_id=method.IDENT)
        if arguments.get("x-queue-type") == "view":
            arguments = stream_arguments(arguments)  # where it begins may be a time
        info = await broker.declare_queue(
            _clean(method.queue),
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=arguments,
            owner=channel.link,
            vhost=channel.link.vhost,
            permitted=partial(require_queue_leads, channel.link.grants, method),
        )
    channel.queue = info.name
    count = min(info.message_count, _COUNT_MAX)
    _answer(channel, method.nowait, methods.QueueDeclareOk(info.name, count, info.consumer_count))


async def _find_replies(channel: Channel, method: methods.QueueDeclare) -> None:
    """Direct reply-to is always there; an address of it as long as its consumer is, whoever asks."""
    if method.queue != REPLY_TO:
        with suppress(ResourceLocked):
            await channel.link.broker.check_queue(method.queue, channel.link, vhost=channel.link.vhost)
    channel.queue = method.queue
    _answer(channel, method.nowait, methods.QueueDeclareOk(method.queue, 0, 1))


async def bind_queue(channel: Channel, method: methods.QueueBind) -> None:
    """`queue.bind`."""
    await channel.link.broker.bind(*_of_queue(channel, method), owner=channel.link, vhost=channel.link.vhost)
    _answer(channel, method.nowait, methods.QueueBindOk())


async def unbind_queue(channel: Channel, method: methods.QueueUnbind) -> None:
    """`queue.unbind`."""
    await channel.link.broker.unbind(*_of_queue(channel, method), owner=channel.link, vhost=channel.link.vhost)
    channel.reply(methods.QueueUnbindOk())


def _of_queue(channel: Channel, method: methods.QueueBind | methods.QueueUnbind) -> _Binding:
    """With neither queue nor routing key, the routing key is the queue last declared."""
    queue = channel.queue_name(method.queue, method)
    routing_key = method.routing_key or ("" if method.queue else queue)
    return "queue", queue, method.exchange, routing_key, method.arguments


async def purge_queue(channel: Channel, method: methods.QueuePurge) -> None:
    """`queue.purge`."""
    count = await channel.link.broker.purge_queue(
        channel.queue_name(method.queue, method), owner=channel.link, vhost=channel.link.vhost
    )
    _answer(channel, method.nowait, methods.QueuePurgeOk(min(count, _COUNT_MAX)))


async def delete_queue(channel: Channel, method: methods.QueueDelete) -> None:
    """`queue.delete`."""
    count = 0
    if not method.queue.startswith(REPLY_TO + "."):  # no queue of anybody's: nothing to delete
        count = await channel.link.broker.delete_queue(
            _clean(channel.queue_name(method.queue, method)),
            if_unused=method.if_unused,
            if_empty=method.if_empty,
            owner=channel.link,
            vhost=channel.link.vhost,
        )
    _answer(channel, method.nowait, methods.QueueDeleteOk(min(count, _COUNT_MAX)))
