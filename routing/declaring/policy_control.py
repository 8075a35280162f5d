"""Setting and clearing policies, and telling the queues, streams and exchanges that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from routing.bites import bites
from routing.errors import LimitExceeded, NotFound
from routing.queues.queue import Queue
from routing.topics.stream import Stream
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.entries import Entry, Plan, vhost_key
from routing.topology.exchange import Exchange
from routing.topology.policies import check_policy, policy_key
from routing.topology.topology import Topology


class PolicyControl:
    """See the module; `Broker` hands these methods on as its own."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        topology.follow_policies = self._tell

    async def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        apply_to: str = "all",
        operator: bool = False,
        vhost: str = DEFAULT_VHOST,
    ) -> None:
        """Make or replace a policy, or an operator policy, and apply it; see `topology/policies.py`.

        Raises InvalidArgument, NotAllowed (no such virtual host), LimitExceeded, StorageUnavailable.
        """
        value = check_policy(name, pattern, definition, priority, apply_to, operator=operator)
        key = policy_key(vhost, name, operator=operator)

        def plan() -> Plan:
            policies = self._topology.vhost(vhost).policies
            there = policies.operator if operator else policies.own
            if name not in there and len(there) >= self._topology.config.policies_max:
                raise LimitExceeded(f"there are {self._topology.config.policies_max} policies already")
            return Plan([Entry(key, value, True)], [vhost_key(vhost)])

        await self._topology.change(plan)
        await self._tell(vhost)

    async def delete_policy(self, name: str, *, operator: bool = False, vhost: str = DEFAULT_VHOST) -> None:
        """Raises NotFound, NotAllowed (no such virtual host), StorageUnavailable."""

        def plan() -> Plan:
            policies = self._topology.vhost(vhost).policies
            if name not in (policies.operator if operator else policies.own):
                raise NotFound(f"no {'operator ' * operator}policy '{name}' in vhost '{vhost}'")
            return Plan([Entry(policy_key(vhost, name, operator=operator), None, True)], [vhost_key(vhost)])

        await self._topology.change(plan)
        await self._tell(vhost)

    async def _tell(self, name: str) -> None:
        """Apply what holds now to everything in a virtual host, in bites; what is made meanwhile knows it already."""
        vhost = self._topology.vhosts.get(name)
        if vhost is None:
            return
        entities: list[Queue | Stream | Exchange] = [
            *vhost.exchanges.values(),
            *vhost.queues.values(),
            *vhost.streams.values(),
            *vhost.away.values(),
        ]
        with trio.CancelScope(shield=True):
            async for entity in bites(entities):
                vhost.follow_policies(entity)
