"""What brokers ask each other about transactions of producers, and how it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from routing.log_transactions.links import Ending
from routing.log_transactions.state import IdState

if TYPE_CHECKING:
    from routing.broker import Broker

ROWS_MAX = 10_000


class _Question(msgspec.Struct, array_like=True):
    pass


class Check(_Question, tag="check"):
    """See `TransactionCoordinator.check`."""

    name: str
    producer_id: int
    epoch: int
    partition: tuple[str, int] | None
    group: str | None


class Mark(_Question, tag="mark"):
    """See `Endings.mark_here`."""

    topic: str
    index: int
    ending: Ending


class EndOffsets(_Question, tag="end_offsets"):
    """See `ReplicatedOffsets.end_pending`, of a group that the receiver looks after."""

    group: str
    ending: Ending


class ListIds(_Question, tag="list"):
    """The transactional ids that the receiver looks after whose names come after one: (name, state), by name and at
    most `ROWS_MAX`.
    """

    only_open: bool
    after: str = ""


class GiveUp(_Question, tag="give_up"):
    """See `TransactionCoordinator.give_up`."""

    name: str


Question = Check | Mark | EndOffsets | ListIds | GiveUp

_lists = msgspec.msgpack.Decoder(list[tuple[str, IdState]])
encode = msgspec.msgpack.Encoder().encode


async def answer_to(broker: Broker, question: Question) -> Any:
    """What this broker answers. Raises what is raised there."""
    coordinator = broker.coordinator
    if isinstance(question, Check):
        coordinator.check(
            question.name,
            question.producer_id,
            question.epoch,
            partition=question.partition,
            group=question.group,
        )
    elif isinstance(question, Mark):
        await coordinator.endings.mark_here(question.topic, question.index, question.ending)
    elif isinstance(question, EndOffsets):
        ending = question.ending
        await broker.offsets.end_pending(question.group, ending.producer_id, committed=ending.committed)
    elif isinstance(question, ListIds):
        found = (one for one in listed(broker, only_open=question.only_open) if one[0] > question.after)
        return nsmallest(ROWS_MAX, found, key=itemgetter(0))
    else:
        return await coordinator.give_up(question.name)
    return None


def listed(broker: Broker, *, only_open: bool) -> Iterator[tuple[str, IdState]]:
    """Those that are looked after here, with a transaction that is not complete or all."""
    found = broker.coordinator.known()
    return (one for one in found if one[1].is_open or one[1].is_prepared or not only_open)


def ids_of(body: bytes) -> list[tuple[str, IdState]]:
    """The answer to `ListIds`. Raises msgspec.MsgspecError."""
    return _lists.decode(body)
