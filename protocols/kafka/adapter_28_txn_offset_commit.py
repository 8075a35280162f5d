"""TxnOffsetCommit: how far a group has come if a transaction is committed. Here looks after the group, not after the
transaction: whether that is under way is asked of who does.
"""

from __future__ import annotations

from protocols.kafka.adapter_08_offset_commit import asked_of, told_of
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, group_code_of
from protocols.kafka.adapter_transactional import check_code_of, require_id
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import TXN_OFFSET_COMMIT
from protocols.kafka.registry import serves

_MEMBERS_SINCE = 3


@serves(TXN_OFFSET_COMMIT, 0, 3)
async def txn_offset_commit(door: Door, call: Call, request: Entity) -> Entity:
    """Answered when what can be kept is safe; each partition is told for itself."""
    offsets, codes = await asked_of(door, request)
    name, group, groups = request.transactional_id, request.group_id, door.broker.groups

    async def check() -> None:
        try:
            await door.broker.coordinator.check_anywhere(name, request.producer_id, request.producer_epoch, group=group)
        except ENGINE_ERRORS as error:
            raise check_code_of(error, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from None
        if call.version >= _MEMBERS_SINCE:
            member, instance, generation = request.member_id, request.group_instance_id, request.generation_id
            groups.check_member(group, member, instance, generation, offsets.keys())

    try:
        require_id(door, name)
        groups.check_member(group, "", None, -1)
        if offsets:
            await door.broker.offsets.commit_pending(group, request.producer_id, offsets, check)
    except ENGINE_ERRORS as error:
        codes.update(dict.fromkeys(offsets, _code_of(error)))
    return told_of(request, codes)


def _code_of(error: Exception) -> ErrorCode:
    """No version of this request knows epochs of members: a producer that is told of one takes it for the end, and has
    to be made anew, where another generation has it abort and go on.
    """
    code = group_code_of(error)
    return ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else code
