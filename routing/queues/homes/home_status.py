"""What is told of a home partition: its figures, and a warning when little keeps much on disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition

logger = logging.getLogger(__name__)


class HomeStatus(NamedTuple):
    """A home partition in figures. `pinned_bytes` is estimated from the share of offsets that are settled."""

    stripe: int
    queues: int
    live_messages: int
    log_bytes: int
    pinned_bytes: int


def warn_of_pinned_bytes(partition: QueuePartition) -> None:
    """Say it when few live messages keep much log on disk, and again when it has doubled."""
    pinned_bytes = partition.status.pinned_bytes
    if pinned_bytes >= partition.pinned_warning_bytes:
        partition.pinned_warning_bytes = 2 * pinned_bytes
        directory = partition.log.directory
        logger.warning("%s: %d bytes stay on disk behind messages that nobody has settled", directory, pinned_bytes)
