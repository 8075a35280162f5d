"""What clients ask about offsets and leader epochs of partitions: where a log begins and ends, and in which epoch.

Whoever names a leader epoch is answered by a broker that is in the same one, or told which of the two is behind
(KIP-320): a broker that was cut off answers nobody who has heard of its successor, and a client that has not heard of
it learns that there is one before it reads on.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.native import wire
from protocols.native.adapter_errors import Refused, engine_error
from protocols.native.errors import ErrorCode, WireError, wire_error
from routing import errors
from routing.topics.topic_partition import TopicPartition

Led = Callable[[str, int, int], TopicPartition]
"""A partition that is led here, in the epoch that the client knows. Raises Refused, BrokerError."""
_NOWHERE = -1


def check_epoch(partition: TopicPartition, leader_epoch: int) -> None:
    """Whether a client knows the same leader epoch as this broker. Raises Refused."""
    known = partition.leader_epoch
    if leader_epoch == known:
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < known else ErrorCode.UNKNOWN_LEADER_EPOCH
    where = f"partition {partition.index} of topic '{partition.topic_name}'"
    raise Refused(code, f"{where} is in leader epoch {known}, not {leader_epoch}")


async def list_offsets(request: wire.ListOffsets, led: Led) -> wire.ListOffsetsReply:
    """The offset that each entry means, or why it cannot be said."""
    entries: list[tuple[WireError | None, int | None, int]] = []
    for entry in request.entries:
        try:
            offset, timestamp_ms = await _offset_of(led(entry.topic, entry.partition, entry.leader_epoch), entry.which)
        except Refused as refusal:
            entries.append((refusal.error, None, _NOWHERE))
        except errors.BrokerError as error:
            entries.append((engine_error(error), None, _NOWHERE))
        except OSError as error:
            entries.append((wire_error(ErrorCode.STORAGE_UNAVAILABLE, str(error)), None, _NOWHERE))
        else:
            entries.append((None, offset, timestamp_ms))
    return wire.ListOffsetsReply(request.correlation_id, entries)


async def _offset_of(partition: TopicPartition, which: int) -> tuple[int | None, int]:
    if which == wire.EARLIEST:
        return partition.log.log_start_offset, _NOWHERE
    if which == wire.LATEST:
        return min(await partition.latest(), partition.log.stable_offset), _NOWHERE
    found = await partition.offset_for_timestamp(which)
    return (None, _NOWHERE) if found is None else found


def offsets_for_epochs(request: wire.OffsetsForEpochs, led: Led) -> wire.OffsetsForEpochsReply:
    """Where epochs end: whoever has read further in one has read what is not in the log any more."""
    entries: list[tuple[WireError | None, int, int]] = []
    for topic, index, current, epoch in request.entries:
        try:
            log = led(topic, index, current).log
        except Refused as refusal:
            entries.append((refusal.error, wire.NO_EPOCH, _NOWHERE))
        except errors.BrokerError as error:
            entries.append((engine_error(error), wire.NO_EPOCH, _NOWHERE))
        else:
            found = log.epochs.end_of(epoch, log.log_end_offset) or (wire.NO_EPOCH, log.log_start_offset)
            entries.append((None, *found))
    return wire.OffsetsForEpochsReply(request.correlation_id, entries)
