"""ListTransactions: the transactional ids that this broker looks after."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import LIST_TRANSACTIONS
from protocols.kafka.registry import serves
from routing.groups.errors import InvalidPattern
from routing.groups.patterns import compiled, matching
from routing.log_transactions.errors import LogTransactionError
from routing.log_transactions.state import Stage

_STAGES = {stage.value for stage in Stage}


@serves(LIST_TRANSACTIONS, 0, 2)
async def list_transactions(door: Door, call: Call, request: Entity) -> Entity:
    """Those that the user may use, and that the request asks for."""
    stages, producers = set(request.state_filters), set(request.producer_id_filters)
    # 0 asks for no time at all: that is what stands in a request that says nothing of it
    longer_than_ms = request.duration_filter if call.version else -1
    now_ms = door.broker.clock.now_ms()
    try:
        known = dict(door.broker.coordinator.known())
        names = frozenset(known)
        if call.version >= 2 and request.transactional_id_pattern:
            names = await matching(compiled(request.transactional_id_pattern), names)
    except (InvalidPattern, LogTransactionError) as error:
        return Entity(error_code=code_of(error), unknown_state_filters=[], transaction_states=[])
    found = [
        Entity(transactional_id=name, producer_id=state.producer_id, transaction_state=state.stage.value)
        for name, state in known.items()
        if name in names
        and (not stages or state.stage.value in stages)
        and (not producers or state.producer_id in producers)
        and (longer_than_ms <= 0 or 0 <= state.started_ms < now_ms - longer_than_ms)
        and door.allows("write", name)
    ]
    return Entity(error_code=ErrorCode.NONE, unknown_state_filters=sorted(stages - _STAGES), transaction_states=found)
