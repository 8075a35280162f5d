"""Queues that are the broker's own, whatever clients may do with others: those in which records of topics wait, for
their time (`millrace.delay.enable`) or for their turn (`millrace.priority.group`), and that of messages which are
published later. What is in them is taken for what the broker has put there, so nothing else leads there.
"""

from __future__ import annotations

DELAYED_PREFIX = "millrace.delayed."
"""Before a topic's name: the queue of its records that are delivered later."""
WAITING_PREFIX = "millrace.waiting."
"""Before a topic's name, a dot and a partition: the queue of its records that wait for their turn."""
LATER = "millrace.later"
"""An exchange and its queue (`routing/republishing/later.py`), and the exchange that messages go to from there:"""
PUBLISHED_LATER_TO = "amq.topic"


def parked_for(queue: str) -> str | None:
    """The topic whose records wait in a queue, by its name; None for all other queues."""
    if queue.startswith(DELAYED_PREFIX):
        return queue.removeprefix(DELAYED_PREFIX)
    if queue.startswith(WAITING_PREFIX):
        return queue.removeprefix(WAITING_PREFIX).rpartition(".")[0]
    return None


def stands_for(name: str) -> str | None:
    """What rights to one of these take rights to as well; None for all others."""
    return PUBLISHED_LATER_TO if name == LATER else parked_for(name)


def is_closed(queue: str, exchange: str) -> bool:
    """Whether an exchange does not lead to a queue, whatever is bound and whatever key a message has."""
    if queue == LATER:
        return exchange != LATER
    return parked_for(queue) is not None
