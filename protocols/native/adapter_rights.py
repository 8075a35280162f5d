"""Which request needs which rights: topics are named like queues and exchanges, in the virtual host of the door.

Creating, changing, deleting and binding a topic needs `configure`, producing `write`, what looks at records or offsets
`read`; a binding also `read` on the exchange. Produce, fetch and list_offsets are asked for each entry
(`NativeAdapter`), all others here, before they are served. Who may not enter the virtual host may ask for operations of
administration, which look themselves, and for where the brokers are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocols.native import wire, wire_groups, wire_topics
from routing.access.grants import Grants
from routing.errors import AccessRefused, NotAllowed

_Check = Callable[[Grants, Any], None]


def require_rights(grants: Grants, request: wire.AnyRequest) -> None:
    """Raises AccessRefused."""
    check = _CHECKS.get(type(request))
    if check is not None:
        check(grants, request)


def require_operation(outside: NotAllowed, request: wire.AnyRequest) -> None:
    """For a user who may not enter the virtual host, and is told why. Raises AccessRefused."""
    about_topics = isinstance(request, wire.Metadata) and request.topics != []
    if about_topics or not isinstance(request, _OPERATIONS):
        raise AccessRefused(str(outside))


def require_id(grants: Grants, transactional_id: str) -> None:
    """Who uses a transactional id needs the right to write to a resource of that name. Raises AccessRefused."""
    if not grants.allows("write", transactional_id):
        raise AccessRefused(f"write access to transactional id '{transactional_id}' refused for user '{grants.user}'")


def _bind(grants: Grants, request: wire_topics.Bind | wire_topics.Unbind) -> None:
    grants.require("configure", "topic", request.topic)
    grants.require("read", "exchange", request.exchange)
    grants.require_keys("read", request.exchange, (request.pattern,))


def _commit_offsets(grants: Grants, request: wire.CommitOffsets | wire_groups.CommitGroupOffsets) -> None:
    for topic in {entry[0] for entry in request.entries}:
        grants.require("read", "topic", topic)


_OPERATIONS = (wire.Metadata, wire.Administer, wire.DescribeBroker)

_CHECKS: dict[type[wire.Request], _Check] = {
    wire_topics.CreateTopic: lambda grants, request: grants.require("configure", "topic", request.name),
    wire_topics.CreatePartitions: lambda grants, request: grants.require("configure", "topic", request.name),
    wire_topics.DeleteTopic: lambda grants, request: grants.require("configure", "topic", request.name),
    wire_topics.DescribeTopic: lambda grants, request: grants.require("read", "topic", request.name),
    wire_topics.Bind: _bind,
    wire_topics.Unbind: _bind,
    wire.CommitOffsets: _commit_offsets,
    wire_groups.CommitGroupOffsets: _commit_offsets,
}
