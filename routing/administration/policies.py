"""Operations on policies and operator policies. Who has the tag `policymaker` alone may ask for those of virtual hosts
that he may enter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.administration.operations import CHANGES, LOOKS, has_tag, operation, require_tag, table
from routing.administration.topology import Arguments, vhosts_of

if TYPE_CHECKING:
    from routing.broker import Broker

_LOOKS = (*LOOKS, "policymaker")
_CHANGES = (*CHANGES, "policymaker")


@operation("policies.list", tags=_LOOKS)
async def list_policies(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """All policies and operator policies, or those of one virtual host."""
    columns = ("vhost", "name", "operator", "pattern", "apply_to", "priority", "definition")
    asked = vhosts_of(broker, vhost)
    if not has_tag(broker, user, LOOKS):
        asked = [found for found in asked if broker.rights.may_enter(user, found.name)]
        if vhost is not None and not asked:
            broker.rights.grants(user, vhost)
    rows = (
        (found.name, one.name, operator, one.pattern, one.apply_to, one.priority, dict(one.definition))
        for found in asked
        for operator, there in ((False, found.policies.own), (True, found.policies.operator))
        for one in there.values()
    )
    return table(columns, rows, start)


@operation("policies.set", tags=_CHANGES)
async def set_policy(
    broker: Broker,
    user: str,
    name: str,
    pattern: str,
    definition: Arguments,
    priority: int = 0,
    apply_to: str = "all",
    operator: bool = False,
    vhost: str = "/",
) -> None:
    """Make or replace a policy; the queues and exchanges it applies to follow at once. Operator policies are for
    administrators.
    """
    _require_rights(broker, user, vhost, operator)
    await broker.set_policy(
        name, pattern, definition, priority=priority, apply_to=apply_to, operator=operator, vhost=vhost
    )


@operation("policies.delete", tags=_CHANGES)
async def delete_policy(broker: Broker, user: str, name: str, operator: bool = False, vhost: str = "/") -> None:
    """Delete a policy."""
    _require_rights(broker, user, vhost, operator)
    await broker.delete_policy(name, operator=operator, vhost=vhost)


def _require_rights(broker: Broker, user: str, vhost: str, operator: bool) -> None:
    """Raises AccessRefused, NotAllowed."""
    if operator:
        require_tag(broker, user, "operator policies", CHANGES)
    if not has_tag(broker, user, CHANGES):
        broker.rights.grants(user, vhost)
