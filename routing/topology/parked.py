"""The queues in which records of topics wait: for their time (`millrace.delay.enable`), or for their turn
(`millrace.priority.group`).
"""

from __future__ import annotations

DELAYED_PREFIX = "millrace.delayed."
"""Before a topic's name: the queue of its records that are delivered later."""
WAITING_PREFIX = "millrace.waiting."
"""Before a topic's name, a dot and a partition: the queue of its records that wait for their turn."""


def parked_for(queue: str) -> str | None:
    """The topic whose records wait in a queue, by its name; None for all other queues."""
    if queue.startswith(DELAYED_PREFIX):
        return queue.removeprefix(DELAYED_PREFIX)
    if queue.startswith(WAITING_PREFIX):
        return queue.removeprefix(WAITING_PREFIX).rpartition(".")[0]
    return None
