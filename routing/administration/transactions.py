"""Operations on the transactions of producers that write to topics before they commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from core_log.errors import LogError
from routing.administration.operations import LOOKS, operation, table
from routing.errors import BrokerError, NotFound, StorageUnavailable
from routing.log_transactions.errors import LogTransactionError, UnknownTransactionalId
from routing.log_transactions.questions import GiveUp, ListIds, ids_of, listed
from routing.log_transactions.state import IdState

if TYPE_CHECKING:
    from routing.broker import Broker

_COLUMNS = (
    "transactional_id", "state", "owner", "age_ms", "timeout_ms", "producer_id", "epoch", "partitions", "groups",
    "broker",
)  # fmt: skip


@operation("transactions.list", tags=LOOKS)
async def list_transactions(broker: Broker, user: str, only_open: bool = True, start: int = 0) -> dict[str, Any]:
    """Transactional ids with a transaction that has not ended, or all, whoever looks after them. Raises
    StorageUnavailable if one of the brokers does not answer, or nobody looks after some.
    """
    own = 0 if broker.cluster is None else broker.cluster.broker_id
    try:
        broker.coordinator.require_leaders()
        found = [(own, *one) for one in listed(broker, only_open=only_open)]
    except LogTransactionError as error:
        raise StorageUnavailable(str(error)) from None
    for other in sorted(_others(broker)):
        try:
            found += [(other, *one) for one in (await _those_of(broker, other, only_open)).items()]
        except (BrokerError, LogTransactionError, msgspec.MsgspecError) as error:
            raise StorageUnavailable(f"broker {other} does not say which transactions it has: {error}") from None
    return table(_COLUMNS, _rows(found, broker.clock.now_ms()), start)


async def _those_of(broker: Broker, other: int, only_open: bool) -> dict[str, IdState]:
    found: dict[str, IdState] = {}
    after: str | None = ""
    while after is not None:
        answer = ids_of(await broker.coordinator.endings.ask(other, ListIds(only_open, after)))
        more = {name: state for name, state in answer if name not in found}  # an older broker says the same again
        found |= more
        after = max(more, default=None)
    return found


def _rows(found: list[tuple[int, str, IdState]], now_ms: int) -> Iterator[tuple[Any, ...]]:
    for own, name, state in sorted(found, key=lambda one: one[1]):
        age_ms = now_ms - state.started_ms if state.started_ms >= 0 else None
        partitions = [f"{topic}-{index}" for topic, index in state.partitions]
        yield (
            name, state.stage.value, state.owner, age_ms, state.timeout_ms, state.producer_id, state.epoch, partitions,
            list(state.groups), own,
        )  # fmt: skip


@operation("transactions.abort")
async def abort_transaction(broker: Broker, user: str, transactional_id: str) -> bool:
    """Abort what an id has under way; its producer is fenced. Whether there was anything. Raises NotFound,
    StorageUnavailable.
    """
    coordinator, cluster = broker.coordinator, broker.cluster
    own = 0 if cluster is None else cluster.broker_id
    try:
        to = coordinator.broker_of(transactional_id)
        if to == own:
            return await coordinator.give_up(transactional_id)
        return bool(msgspec.msgpack.decode(await coordinator.endings.ask(to, GiveUp(transactional_id))))
    except UnknownTransactionalId as error:
        raise NotFound(str(error)) from None
    except (LogTransactionError, LogError) as error:
        raise StorageUnavailable(str(error)) from None


def _others(broker: Broker) -> set[int]:
    cluster = broker.cluster
    return set() if cluster is None else cluster.members.brokers.keys() - {cluster.broker_id}
