"""Which method needs which rights: one table, asked before a method is served. The rules are RabbitMQ's.

1. Existing entities may be looked up (passive declarations) by everybody; what is there already needs no rights on what
   it leads to, only a new queue or exchange does. That is asked again when it is made, as one that was there may have
   gone meanwhile.
2. A queue without a name yet is checked under one of those the broker makes up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocols.amqp import methods
from protocols.amqp.adapter_channel import Channel
from protocols.amqp.method_codec import Method
from routing.access.grants import Grants

_SERVER_NAMED = "amq.gen-" + 22 * "x"
_REPLY_TO = "amq.rabbitmq.reply-to"

_Check = Callable[[Grants, Channel, Any], None]


def require_rights(grants: Grants, channel: Channel, method: Method) -> None:
    """Raises AccessRefused if the user may not do what `method` asks for."""
    check = _CHECKS.get(type(method))
    if check is not None:
        check(grants, channel, method)


def _clean(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


def _queue(channel: Channel, name: str) -> str:
    """The queue a method means; without one, whoever serves the method says what is wrong."""
    return name or channel.queue


def _leads_to(arguments: Mapping[str, Any], name: str) -> str | None:
    """The exchange, queue or topic an argument names; another type is refused by whoever checks arguments."""
    value = arguments.get(name)
    return value if isinstance(value, str) else None


def require_exchange_leads(grants: Grants, method: methods.ExchangeDeclare) -> None:
    """Raises AccessRefused if the user may not make an exchange that leads where this one does."""
    alternate = _leads_to(method.arguments, "alternate-exchange")
    if alternate is not None:
        grants.require("read", "exchange", _clean(method.exchange))
        grants.require("write", "exchange", alternate)


def require_queue_leads(grants: Grants, method: methods.QueueDeclare) -> None:
    """Raises AccessRefused if the user may not make a queue that leads where this one does."""
    name = _clean(method.queue) or _SERVER_NAMED
    dead_letters = _leads_to(method.arguments, "x-dead-letter-exchange")
    if dead_letters is not None:
        grants.require("read", "queue", name)
        grants.require("write", "exchange", dead_letters)
    last = _leads_to(method.arguments, "x-retry-then")
    if last is not None:
        grants.require("read", "queue", name)
        grants.require("write", "queue", last)
    topic = _leads_to(method.arguments, "x-view-topic")
    if topic is not None:
        # What is published to a view goes to the topic, by whoever may publish to queues.
        grants.require("read", "topic", topic)
        grants.require("write", "topic", topic)


def _declare_exchange(grants: Grants, channel: Channel, method: methods.ExchangeDeclare) -> None:
    if method.passive or not method.exchange:
        return
    name = _clean(method.exchange)
    grants.require("configure", "exchange", name)
    if name not in channel.session.vhost.exchanges:
        require_exchange_leads(grants, method)


def _declare_queue(grants: Grants, channel: Channel, method: methods.QueueDeclare) -> None:
    if method.passive:
        return
    name = _clean(method.queue)
    grants.require("configure", "queue", name or _SERVER_NAMED)
    if name not in channel.session.vhost.queues:
        require_queue_leads(grants, method)


def _bind_queue(grants: Grants, channel: Channel, method: methods.QueueBind | methods.QueueUnbind) -> None:
    queue = _queue(channel, method.queue)
    if queue:
        grants.require("write", "queue", queue)
        grants.require("read", "exchange", method.exchange)
        key = method.routing_key or ("" if method.queue else queue)
        grants.require_keys("read", method.exchange, (key,))


def _bind_exchange(grants: Grants, channel: Channel, method: methods.ExchangeBind | methods.ExchangeUnbind) -> None:
    grants.require("write", "exchange", method.destination)
    grants.require("read", "exchange", method.source)
    grants.require_keys("read", method.source, (method.routing_key,))


def _read_queue(
    grants: Grants, channel: Channel, method: methods.BasicConsume | methods.BasicGet | methods.QueuePurge
) -> None:
    queue = _queue(channel, method.queue)
    if queue and queue != _REPLY_TO:
        grants.require("read", "queue", queue)


def _delete_queue(grants: Grants, channel: Channel, method: methods.QueueDelete) -> None:
    queue = _queue(channel, method.queue)
    if queue:
        grants.require("configure", "queue", _clean(queue))


_CHECKS: dict[type[Method], _Check] = {
    methods.ExchangeDeclare: _declare_exchange,
    methods.ExchangeDelete: lambda grants, channel, method: grants.require(
        "configure", "exchange", _clean(method.exchange)
    ),
    methods.ExchangeBind: _bind_exchange,
    methods.ExchangeUnbind: _bind_exchange,
    methods.QueueDeclare: _declare_queue,
    methods.QueueBind: _bind_queue,
    methods.QueueUnbind: _bind_queue,
    methods.QueuePurge: _read_queue,
    methods.QueueDelete: _delete_queue,
    methods.BasicConsume: _read_queue,
    methods.BasicGet: _read_queue,
}
