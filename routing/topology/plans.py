"""The rules for changing a virtual host; rules and texts are RabbitMQ's.

Each function checks whether a change may be made and says what it consists of (`entries.py`). Nothing is changed here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from routing.errors import (
    AccessRefused,
    InvalidArgument,
    InvalidName,
    NoRoomForQueue,
    NotFound,
    NotImplementedYet,
    PreconditionFailed,
)
from routing.message import KEY_BYTES_MAX, is_key
from routing.queues.queue import Queue
from routing.queues.settings import CHECKS, VIEW, VIEW_FILTER, VIEW_START, VIEW_TOPIC, check_arguments, type_name
from routing.topics.reserved_names import RESERVED
from routing.topics.stream import Stream
from routing.topics.stream_settings import topic_name
from routing.topology.binding import Binding
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.entries import Entry, InFlight, Key, Plan, exchange_key, queue_key, topic_key, vhost_key
from routing.topology.kinds import ALTERNATE, check_exchange
from routing.topology.parked import parked_for
from routing.topology.removal import Removal
from routing.topology.virtual_host import VirtualHost, locked

GENERATED_PREFIX = "amq.gen-"

_COMPARED = [f"x-{name}" for name in CHECKS]
"""Arguments of queues that must be the same when one is declared again; those that nobody knows need not."""
_OF_VIEWS = ("x-queue-type", VIEW_TOPIC, VIEW_START, VIEW_FILTER)
_FORMERLY_MAX = 10
"""Arguments of before, of a queue that was altered, that still count as its own."""
_ON_THE_DEFAULT_EXCHANGE = "operation not permitted on the default exchange"


_ABSENT = object()


def _say(value: object) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _say_one(value: object) -> str:
    return "none" if value is _ABSENT else f"the value {_say(value)} of type '{type_name(value)}'"


def _same(one: object, other: object) -> bool:
    """Whether these are equal and of one kind: 1, 1.0 and true are not the same."""
    return one == other and all(isinstance(one, kind) == isinstance(other, kind) for kind in (bool, float))


def _require_equal(
    what: str, vhost: str, asked: Mapping[str, Any], have: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Raises PreconditionFailed for the first of the named arguments that differs."""
    argument = _first_difference(asked, have, names)
    if argument is not None:
        one, other = asked.get(argument, _ABSENT), have.get(argument, _ABSENT)
        say = _say_one if one is _ABSENT or other is _ABSENT else _say
        raise PreconditionFailed(
            f"inequivalent arg '{argument}' for {what} in vhost '{vhost}': received {say(one)} but current is "
            f"{say(other)}"
        )


def _first_difference(asked: Mapping[str, Any], have: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of the named arguments in which these differ. Who names no type of a queue means `classic`."""
    for argument in names:
        one, other = asked.get(argument, _ABSENT), have.get(argument, _ABSENT)
        if not _same(one, other) and not (argument == "x-queue-type" and _classic(one) and _classic(other)):
            return argument
    return None


# --- virtual hosts -------------------------------------------------------------------------

VHOST_LIMITS = ("max-connections", "max-queues")


def require_valid_vhost_name(name: str) -> None:
    """1 to 255 bytes, as a short string of AMQP holds. Raises InvalidArgument."""
    if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= 255:
        raise InvalidArgument(f"vhost name {name!r} is not 1 to 255 bytes")


def check_vhost_limits(limits: Mapping[str, Any]) -> None:
    """Raises InvalidArgument."""
    for limit, value in limits.items():
        if limit not in VHOST_LIMITS:
            raise InvalidArgument(f"Unrecognised vhost limit '{limit}'; limits are {', '.join(VHOST_LIMITS)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            raise InvalidArgument(f"vhost limit '{limit}' is not a whole number from -1, but {value!r}")


# --- exchanges -----------------------------------------------------------------------------


def declare_exchange(
    vhost: VirtualHost,
    name: str,
    kind: str,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Mapping[str, Any],
    shared: bool,
) -> Plan:
    """Make an exchange; nothing to do if there is one that is the same. One that is `shared` with other brokers is
    written whether it is durable or not.
    """
    if name == "":
        raise AccessRefused(_ON_THE_DEFAULT_EXCHANGE)
    check_exchange(name, vhost.name, kind, arguments)
    guards = [vhost_key(vhost.name)]
    found = vhost.exchanges.get(name)
    if found is not None:
        asked = {"type": kind, "durable": durable, "auto_delete": auto_delete, "internal": internal}
        have = {
            "type": found.kind,
            "durable": found.durable and not found.transient,
            "auto_delete": found.auto_delete,
            "internal": found.internal,
        }
        what = f"exchange '{name}'"
        _require_equal(what, vhost.name, asked, have, asked)
        _require_equal(what, vhost.name, arguments, found.arguments, [ALTERNATE])
        return Plan(guards=[*guards, exchange_key(vhost.name, name)])
    if name.startswith("amq."):
        raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    if not is_key(name):
        raise InvalidArgument(f"an exchange's name has at most {KEY_BYTES_MAX} bytes")
    value = {"kind": kind, "auto_delete": auto_delete, "internal": internal, "arguments": dict(arguments)}
    if shared and not durable:
        value["transient"] = True
    return Plan([Entry(exchange_key(vhost.name, name), value, durable or shared)], guards)


def delete_exchange(vhost: VirtualHost, name: str, *, if_unused: bool) -> Plan:
    """Delete an exchange and its bindings; one that is not there is no error."""
    if name == "":
        raise AccessRefused(_ON_THE_DEFAULT_EXCHANGE)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")
    found = vhost.exchanges.get(name)
    if found is None:
        return Plan(guards=[exchange_key(vhost.name, name)])
    if if_unused and vhost.is_used(found):
        raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost.name}' in use")
    return Removal(vhost).exchange(found).plan()


# --- queues --------------------------------------------------------------------------------


def check_queue_equals(
    vhost: VirtualHost,
    found: Queue | Stream,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: Mapping[str, Any],
) -> None:
    """Whether a queue may be declared again like this. A view may by who says nothing of views: a program that declares
    its queue need not know that somebody has made it one. Raises ResourceLocked, PreconditionFailed.
    """
    if exclusive != found.exclusive:
        raise locked(found.name, vhost.name)
    what = f"queue '{found.name}'"
    asked = {"durable": durable and not exclusive, "auto_delete": auto_delete}
    have = {"durable": found.durable and not found.exclusive, "auto_delete": found.auto_delete}
    _require_equal(what, vhost.name, asked, have, asked)
    if all(_first_difference(arguments, known, _compared(arguments, known)) for known in found.formerly):
        _require_equal(what, vhost.name, arguments, found.arguments, _compared(arguments, found.arguments))


def _compared(asked: Mapping[str, Any], have: Mapping[str, Any]) -> list[str]:
    """Which arguments count when a queue that has these is declared with those that are asked for."""
    kind = have.get("x-queue-type", "classic")
    if kind == "classic":
        return [name for name in _COMPARED if name != "x-queue-leader-locator"]
    if kind != VIEW:
        return _COMPARED
    if any(name in asked for name in _OF_VIEWS):
        return [*_COMPARED, VIEW_START]
    return [name for name in _COMPARED if name not in _OF_VIEWS]


def _classic(kind: object) -> bool:
    return kind is _ABSENT or kind == "classic"


def alter_queue(vhost: VirtualHost, name: str, changes: Mapping[str, Any], owner: object) -> Plan:
    """Give a queue other arguments; None takes one away. Raises NotFound, ResourceLocked, InvalidArgument,
    NotImplementedYet.
    """
    queue = vhost.queue(name, owner, "altering")
    wanted = {key: value for key, value in {**queue.arguments, **changes}.items() if value is not None}
    check_queue_arguments(vhost, name, wanted)
    guards = [vhost_key(vhost.name)]
    if wanted == queue.arguments:
        return Plan(guards=[*guards, queue_key(vhost.name, name)])
    formerly = [one for one in (*queue.formerly, queue.arguments) if _first_difference(one, wanted, _COMPARED)]
    written = queue.partition.durable
    if any(wanted.get(one) != queue.arguments.get(one) for one in (VIEW_TOPIC, VIEW_START, VIEW_FILTER)):
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' cannot become a view of something else")
    value = {
        "id": queue.id,
        "stripe": queue.partition.index,
        "auto_delete": queue.auto_delete,
        "arguments": wanted,
        "formerly": formerly[-_FORMERLY_MAX:],
    }
    if queue.start:
        value["start"] = queue.start
    if not written:
        value |= {"durable": queue.durable, "exclusive": queue.exclusive}
    return Plan([Entry(queue_key(vhost.name, name), value, written, queue.owner)], guards)


def new_queue_name(name: str, prefix: str) -> str:
    """The name of a queue that is to be made: an unguessable one that begins with `prefix` if there is none.

    Raises AccessRefused.
    """
    if name == "":
        return prefix + secrets.token_urlsafe(16)
    if name.startswith("amq."):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    return name


def require_room_for_queue(vhost: VirtualHost, name: str, in_flight: InFlight) -> None:
    """Raises NoRoomForQueue when the virtual host has, or is about to have, as many queues and streams as it may;
    those of all brokers count.
    """
    if vhost.limits.get("max-queues", -1) < 0:
        return
    coming = sum(one not in vhost.queues and one != name for one in in_flight.queues(vhost.name))
    away = vhost.others.queue_count if vhost.others is not None else 0
    limit = vhost.room("max-queues", len(vhost.queues) + len(vhost.streams) + away + coming)
    if limit is not None:
        raise NoRoomForQueue(f"cannot declare queue '{name}': queue limit in vhost '{vhost.name}' ({limit}) is reached")


def check_queue_arguments(vhost: VirtualHost, name: str, arguments: Mapping[str, Any]) -> list[Key]:
    """What has to be there for it: the topic of a view, or of records that wait in it. Raises InvalidArgument,
    NotImplementedYet, NotFound.
    """
    check_arguments(name, vhost.name, arguments)
    parked = parked_for(name) if vhost.name == DEFAULT_VHOST else None
    if parked is not None:  # without the topic it would be there for a later one of that name
        if parked not in vhost.topics:
            raise NotFound(f"no topic '{parked}', of which records would wait in queue '{name}'")
        return [topic_key(parked)]
    kind = arguments.get("x-queue-type", "classic")
    if kind == "stream":
        raise NotImplementedYet(f"queue '{name}' in vhost '{vhost.name}' cannot become a stream")
    if kind != VIEW:
        return []
    topic = topic_name(arguments[VIEW_TOPIC], vhost.name)
    if topic not in vhost.topics:
        raise NotFound(f"no topic '{arguments[VIEW_TOPIC]}' in vhost '{vhost.name}'")
    return [topic_key(topic)]


def delete_queue(
    vhost: VirtualHost, name: str, *, if_unused: bool, if_empty: bool, owner: object, queue_id: int | None = None
) -> Plan:
    """Delete a queue with its messages, bindings and consumers, if it is that of an id where one is given; one that is
    not there is no error.
    """
    there = vhost.queues.get(name)
    if there is None and not vhost.is_others(name):
        return Plan(guards=[queue_key(vhost.name, name)])
    if queue_id is not None and (there is None or there.id != queue_id):
        return Plan()
    queue = vhost.queue(name, owner, "queue.delete")

    def check() -> None:
        if if_unused or if_empty:
            queue.require_led()
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' in use")
        if if_empty and (queue.message_count or queue.partition.held_for(queue)):
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' not empty")
        plan.message_count = queue.message_count

    plan = Removal(vhost).queue(queue).plan()
    check()
    plan.check = check
    return plan


# --- bindings ------------------------------------------------------------------------------


def _ends(vhost: VirtualHost, binding: Binding) -> list[Key]:
    """The keys of both ends. Raises AccessRefused for the default exchange."""
    if binding.exchange == "" or binding.destination == ("exchange", ""):
        raise AccessRefused(_ON_THE_DEFAULT_EXCHANGE)
    kind, name = binding.destination
    key: Key = topic_key(name) if kind == "topic" else (kind, vhost.name, name)
    return [exchange_key(vhost.name, binding.exchange), key]


def bind(vhost: VirtualHost, binding: Binding, owner: object) -> Plan:
    """Add a binding; nothing to do if it is there. Raises NotFound, AccessRefused, ResourceLocked, InvalidArgument."""
    guards = [vhost_key(vhost.name), *_ends(vhost, binding)]
    exchange = vhost.exchange(binding.exchange)
    kind, name = binding.destination
    if kind == "queue":
        vhost.source(name, owner)
    elif kind == "exchange":
        vhost.exchange(name)
    elif name not in vhost.topics:
        raise NotFound(f"no topic '{name}'")
    if binding in exchange.bindings:
        return Plan(guards=[*guards, binding.key(vhost.name)])
    exchange.matcher.check(binding)
    value = {"arguments": dict(binding.arguments)}
    return Plan([Entry(binding.key(vhost.name), value, vhost.is_durable(binding), binding)], guards)


def unbind(vhost: VirtualHost, bindings: Iterable[Binding], owner: object) -> Plan:
    """Remove bindings; one that is not there is no error, nor is an exchange or a queue that is not there."""
    guards: dict[Key, None] = {}
    removal = Removal(vhost)
    for binding in bindings:
        guards |= dict.fromkeys(_ends(vhost, binding))
        exchange = vhost.exchanges.get(binding.exchange)
        if exchange is None or binding not in exchange.bindings:
            guards[binding.key(vhost.name)] = None
            continue
        if binding.destination[0] == "queue" and binding.destination[1] in vhost.queues:
            vhost.source(binding.destination[1], owner)
        removal.binding(binding)
    plan = removal.plan()
    plan.guards = list(guards)
    return plan


# --- topics --------------------------------------------------------------------------------


def require_valid_topic_name(name: str) -> None:
    """Kafka's rule: 1 to 249 of letters, digits, `.`, `_` and `-`, neither `.` nor `..`, and not one of `RESERVED`."""
    legal = 0 < len(name) <= 249 and name not in (".", "..") and name.isascii()
    if not legal or not all(character.isalnum() or character in "._-" for character in name):
        raise InvalidName(f"topic name {name!r} is not 1 to 249 letters, digits, '.', '_' and '-'")
    if name in RESERVED:
        raise InvalidName(f"topic name {name!r} is reserved: the broker has something else that is called so")
