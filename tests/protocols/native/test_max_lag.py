"""A member that is too slow goes on where its group was moved to, whoever divides the partitions."""

from __future__ import annotations

import pytest
import trio

from millrace import Consumer, MillraceError
from tests.protocols.native.test_groups import Told, fill, group_broker, member, until

RULE = {"millrace.max.lag": "10", "millrace.max.lag.action": "skip", "millrace.max.lag.groups": "g"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_goes_on_ahead_and_others_read_all(protocol: str) -> None:
    async with group_broker() as running:
        await running.broker.create_topic("t", partitions=1, config=RULE)
        await fill(running, "t", 1, 5)
        told = Told()
        async with (
            member(running, group_protocol=protocol, listener=told, fetch_max_bytes=1) as slow,
            Consumer(running.server, "other", auto_offset_reset="earliest") as other,
        ):
            assert (await anext(slow)).offset == 0
            await slow.commit()
            await fill(running, "t", 1, 100)
            await other.assign("t")
            await running.broker.lag_rules.look()
            assert running.broker.lag_rules.skipped_records == 105 - 10 - 1
            assert running.broker.offsets.known("g")["t", 0][0] == 95
            seen = []
            with trio.fail_after(20):
                while running.broker.offsets.known("g")["t", 0][0] != 105:
                    try:
                        seen += [record.offset for record in await slow.poll(20, 1)]
                        await slow.commit()
                    except MillraceError:  # what it had, and went on with, is not its any more
                        continue
            assert seen[-10:] == list(range(95, 105))
            assert [(await anext(other)).offset for _ in range(105)] == list(range(105))
            await running.broker.lag_rules.look()
            assert running.broker.lag_rules.skips == 1
        await until(lambda: not running.broker.groups.groups["g"].members)
        assert ("lost", [("t", 0)]) in told.told
