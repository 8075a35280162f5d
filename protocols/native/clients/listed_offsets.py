"""Where partitions begin and end, and which of their records is the first not before a time, as their leaders say."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocols.native import wire
from protocols.native.clients.blocking import Which, which_offset
from protocols.native.clients.leaders import Leaders, Partition
from protocols.native.errors import OUTDATED, MillraceError, error_from_wire


async def list_offsets(leaders: Leaders, partitions: Sequence[Partition], which: Which) -> list[int | None]:
    """The offset `which` means in each (topic, partition), as their leaders say; None where no record is that young.

    Asked again while leaders change. Raises RequestTimedOut, or what a broker answered.
    """
    config = leaders.config
    deadline = trio.current_time() + config.request_timeout_ms / 1000
    found: dict[Partition, int | None] = {}
    while True:
        missing = [key for key in partitions if key not in found]
        if not missing:
            return [found[key] for key in partitions]
        for link, keys in (await leaders.wait_for(missing, deadline)).items():
            entries = [wire.ListOffsetsEntry(*key, which_offset(which), leaders.epoch_of(link, *key)) for key in keys]
            try:
                reply = await link.request(wire.ListOffsets(0, entries), wire.ListOffsetsReply)
            except MillraceError as error:
                if not error.retriable or trio.current_time() > deadline:
                    raise
                leaders.stale(keys)
                continue
            for key, (refused, offset, _) in zip(keys, reply.entries):
                if refused is None:
                    found[key] = offset
                elif not refused[1] or trio.current_time() > deadline:
                    raise error_from_wire(refused)
                elif refused[0] in OUTDATED:
                    leaders.stale([key])
                else:
                    await trio.sleep(config.reconnect_backoff_ms / 1000)
