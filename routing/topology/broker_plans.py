"""What changes consist of that concern more than one virtual host, or the whole of one: see `entries.py`.

A broker has limits of exchanges, queues, bindings and virtual hosts; the rules within a virtual host are `plans.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from routing.errors import AccessRefused, LimitExceeded
from routing.queues.queue import Queue
from routing.topology import plans
from routing.topology.binding import Binding
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.entries import Entry, Key, Plan, queue_key, vhost_key
from routing.topology.exchange import DEFAULT_EXCHANGES
from routing.topology.policies import policy_key
from routing.topology.removal import Removal
from routing.topology.virtual_host import VirtualHost

if TYPE_CHECKING:
    from routing.topology.topology import Topology


Permitted = Callable[[], None]
"""Raises AccessRefused if what is declared is new, and whoever declares it may not have it lead where it does."""


def everything() -> None:
    """See `Permitted`."""


def declare_exchange(
    topology: Topology, vhost: VirtualHost, name: str, kind: str, permitted: Permitted, **declared: Any
) -> Plan:
    """`plans.declare_exchange`, and the limit. Raises LimitExceeded."""
    plan = plans.declare_exchange(vhost, name, kind, **declared, shared=topology.catalog.shared)
    if plan.entries:
        permitted()
        there = sum(len(vhost.exchanges) - len(DEFAULT_EXCHANGES) for vhost in topology.vhosts.values())
        _require_room("exchanges", there, topology.config.exchanges_max)
    return plan


def set_vhost(topology: Topology, name: str, *, description: str | None, limits: Mapping[str, int] | None) -> Plan:
    """Make a virtual host, or change what is given. Raises InvalidArgument, LimitExceeded."""
    found = topology.vhosts.get(name)
    if found is None:
        plans.require_valid_vhost_name(name)
        _require_room("vhosts", len(topology.vhosts), topology.config.vhosts_max)
    plans.check_vhost_limits(limits or {})
    value = {
        "description": description if description is not None else found.description if found else "",
        "limits": dict(limits if limits is not None else found.limits if found else {}),
    }
    if found is not None and value == {"description": found.description, "limits": found.limits}:
        return Plan(guards=[vhost_key(name)])
    return Plan([Entry(vhost_key(name), value, True)])


def delete_vhost(topology: Topology, name: str, *, also: Sequence[Entry] = ()) -> Plan:
    """A virtual host goes with all that is in it, and with what others say `also` goes. Raises NotAllowed,
    AccessRefused.
    """
    vhost = topology.vhost(name)
    if name == DEFAULT_VHOST:
        raise AccessRefused(f"vhost '{name}' cannot be deleted")
    plan = Removal(vhost).everything().plan()
    for operator, there in ((False, vhost.policies.own), (True, vhost.policies.operator)):
        plan.entries += [Entry(policy_key(name, policy, operator=operator), None, True) for policy in there]
    plan.entries += [*also, Entry(vhost_key(name), None, True)]
    return plan


def declare_queue(
    topology: Topology, vhost: VirtualHost, name: str, *, durable: bool, exclusive: bool, auto_delete: bool,
    arguments: Mapping[str, Any], owner: object, prefix: str = plans.GENERATED_PREFIX,
    start: list[int] | None = None, permitted: Permitted = everything,
) -> Plan:  # fmt: skip
    """Make a queue; nothing to do if there is one that is the same. Without a name it gets one after `prefix`."""
    guards = [vhost_key(vhost.name)]
    if name in vhost.queues or name in vhost.streams or name in vhost.away or vhost.is_others(name):
        found = vhost.source(name, owner)
        plans.check_queue_equals(
            vhost, found, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
        )
        if isinstance(found, Queue):
            found.rules.used()
        return Plan(guards=[*guards, queue_key(vhost.name, name)])
    permitted()
    name = plans.new_queue_name(name, prefix)
    guards += plans.check_queue_arguments(vhost, name, arguments)
    plans.require_room_for_queue(vhost, name, topology.in_flight)
    _require_room("queues", sum(len(vhost.queues) for vhost in topology.vhosts.values()), topology.config.queues_max)
    # An exclusive queue ends with its connection, so nothing of it has to outlive the process.
    written = durable and not exclusive
    queue_id = topology.catalog.ids.new(durable=written)
    value = {
        "id": queue_id,
        "stripe": topology.place_queue(queue_id, arguments) if written else -1,
        "auto_delete": auto_delete,
        "arguments": dict(arguments),
    } | ({"start": start} if start is not None else {})
    if not written:
        value |= {"durable": durable, "exclusive": exclusive}
    return Plan([Entry(queue_key(vhost.name, name), value, written, owner if exclusive else None)], guards)


def change_bindings(
    topology: Topology, vhost: VirtualHost, new: Iterable[Binding], gone: Iterable[Binding], owner: object
) -> Plan:
    """`plans.bind`, which comes first, and `plans.unbind`, and the limit. Raises LimitExceeded."""
    guards: dict[Key, None] = {}
    entries: list[Entry] = []
    for binding in new:
        one = plans.bind(vhost, binding, owner)
        entries += one.entries
        guards |= dict.fromkeys(one.guards)
    if entries:
        there = sum(vhost.binding_count for vhost in topology.vhosts.values())
        _require_room("bindings", there + len(entries) - 1, topology.config.bindings_max)
    plan = plans.unbind(vhost, gone, owner)
    return Plan(entries + plan.entries, list(guards | dict.fromkeys(plan.guards)))


def _require_room(what: str, there: int, limit: int) -> None:
    if there >= limit:
        raise LimitExceeded(f"there are {limit} {what} already")
