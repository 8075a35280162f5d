"""Every record of a topic that has a key: its log is looked through, as there is no index.

1. What is committed when the search begins is looked at, from the beginning, a partition after the other. Brokers look
   for the key's bytes and leave out batches without them (`core_log/containing.py`); compressed batches are sent whole.
2. Keys are compared here, so nothing else that has those bytes is taken for it.
3. All partitions are searched: which one a key goes to is the producers' business, and changes with their number.
"""

from __future__ import annotations

from core_log.containing import LOOKED_BYTES_MAX, key_strings
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.groups_admin import Asker, partitions_of
from protocols.native.clients.records import ConsumerRecord, batch_columns, batch_records, offset_after
from protocols.native.errors import OffsetOutOfRange, RequestTimedOut, UnknownPartition
from protocols.native.wire_base import CONTAINING_BYTES_MAX

FOUND_MAX = 1000
_WAIT_MS = 500
_EMPTY_MAX = 20
"""So many answers in a row without anything: then it is given up."""


async def find_records(
    ask: Asker, topic: str, key: bytes, *, limit: int = FOUND_MAX, partition: int | None = None
) -> list[ConsumerRecord]:
    """The first `limit` records with a key, by partition and offset; of one partition, or of all.

    Raises UnknownTopic, UnknownPartition, RequestTimedOut.
    """
    places = await partitions_of(ask, [topic])
    if partition is not None:
        if (topic, partition) not in places:
            raise UnknownPartition(f"topic {topic!r} has no partition {partition}, but {len(places)}")
        places = [(topic, partition)]
    starts, ends = await ask.offsets(places, "earliest"), await ask.offsets(places, "latest")
    found: list[ConsumerRecord] = []
    for place, start, end in zip(places, starts, ends):
        if len(found) < limit:
            found += await _found_in(ask, place, start or 0, end or 0, key, limit - len(found))
    return found


async def _found_in(
    ask: Asker, place: Partition, offset: int, end: int, key: bytes, limit: int
) -> list[ConsumerRecord]:
    strings = key_strings(key)
    groups = [strings] if sum(map(len, strings)) <= CONTAINING_BYTES_MAX else []
    found: list[ConsumerRecord] = []
    empty = 0
    while offset < end and len(found) < limit:
        try:
            batches = await ask.batches(place, offset, LOOKED_BYTES_MAX, _WAIT_MS, groups)
        except OffsetOutOfRange:
            (first,) = await ask.offsets([place], "earliest")
            if (first or 0) <= offset:
                raise
            offset = first or 0  # what was there is gone
            continue
        empty = 0 if batches else empty + 1
        if empty > _EMPTY_MAX:
            raise RequestTimedOut(f"partition {place[1]} of topic {place[0]!r} gave nothing from offset {offset} on")
        for batch in batches:
            if key in batch_columns(batch).keys:
                records = batch_records(*place, batch, offset)
                found += [record for record in records if record.key == key and record.offset < end]
            offset = offset_after(batch)
    return found[:limit]
