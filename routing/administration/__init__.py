"""What an operator may ask for by name. Importing it fills the table of operations."""

from routing.administration import (
    bans,
    cluster,
    connections,
    listed,
    messages,
    policies,
    queues,
    readers,
    retained,
    rights,
    sessions,
    status,
    topics,
    topology,
    transactions,
)
from routing.administration.operations import CHANGES, LOOKS, OPERATIONS, administer, require_tag

__all__ = [
    "CHANGES", "LOOKS", "OPERATIONS", "administer", "bans", "cluster", "connections", "listed", "messages", "policies",
    "queues", "readers", "require_tag", "retained", "rights", "sessions", "status", "topics", "topology",
    "transactions",
]  # fmt: skip
