"""Operations that one broker of a cluster does for another: on a queue by that which leads it, or has it, and on client
connections by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from routing.administration.operations import OPERATIONS, checked
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.errors import LedHere, NotImplementedYet
from routing.message import NAME_ENCODING_ERRORS

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

FORWARDED = frozenset(
    {
        "delayed.cancel", "delayed.list", "queues.alter", "queues.bind", "queues.browse", "queues.delete",
        "queues.describe", "queues.ends", "queues.figures", "queues.give_back", "queues.has_room", "queues.lease",
        "queues.move", "queues.peek", "queues.reserve", "queues.reserved", "queues.rewind", "queues.unbind",
    }
)  # fmt: skip
"""Those that another broker may ask for; each names a queue, or several of one home."""
REPEATABLE = FORWARDED - {"delayed.cancel", "queues.move", "queues.rewind"}
"""To do these twice is to do them once: a queue is gone, though the second time nobody knows what it held."""
EVERYWHERE = frozenset({"connections.close", "sessions.connected"})
"""Those that are asked of all brokers; none asks on when it is run for another broker."""
_PATIENCE_S = 3.0
"""For so long a broker is waited for."""


async def run_forwarded(broker: Broker, name: str, arguments: Mapping[str, Any]) -> Any:
    """Run one of these for another broker, which has seen to who may ask for it. Raises as `administer`."""
    found = OPERATIONS[name]
    return await found.run(broker, "", **checked(name, found, arguments))


class Told(NamedTuple):
    """What the others have answered."""

    answers: list[Any]
    silent: int
    """How many brokers have not."""


async def ask_others(broker: Broker, name: str, arguments: Mapping[str, Any]) -> Told:
    """Have an operation done by all other brokers, each for its own clients."""
    elsewhere = broker.elsewhere
    if elsewhere is None:
        return Told([], 0)
    encoded = msgpack.packb(arguments, unicode_errors=NAME_ENCODING_ERRORS)
    asked, answers = await elsewhere.ask_for_operation(name, encoded, _PATIENCE_S)
    return Told(list(map(_unpacked, answers)), asked - len(answers))


async def answer_other(broker: Broker, name: str, arguments: bytes) -> Any:
    """Do it for another broker, which has seen to who may ask for it. Raises as `administer`."""
    if name not in EVERYWHERE:
        raise NotImplementedYet(f"no broker does '{name}' for another")
    return await run_forwarded(broker, name, _unpacked(arguments))


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, unicode_errors=NAME_ENCODING_ERRORS)


async def ask_leader(broker: Broker, queue: Queue, name: str, arguments: Mapping[str, Any]) -> Any:
    """Have an operation done where a queue is led, which may be here by then. Raises what it raises there, and
    StorageUnavailable.
    """
    assert isinstance(queue, RemoteQueue)
    try:
        return await queue.command(name, arguments, repeat=name in REPEATABLE)
    except LedHere:
        return await run_forwarded(broker, name, arguments)
