"""What is tried again until etcd takes it is told of at first, now and again, and when it is over."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import MetadataUnavailable
from core_log.metadata.store import Guard
from core_log.replication.state import Change, LogState, log_key
from routing.cluster.metadata.log_states import LogStates
from routing.cluster.metadata.waiting import Waiting
from tests.routing.cluster.metadata.test_elections import make_logs, start, states
from tests.routing.cluster.metadata.test_members import cluster, until
from tests.simulation.etcd_model import EtcdModel

FULL = "etcd refuses: etcdserver: mvcc: database space exceeded"


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_one_line_in_half_a_minute_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now_s = 100.0
    waiting, error = Waiting("changes", clock=lambda: now_s), MetadataUnavailable("no etcd")
    waiting.over("a")
    for name in "abcd":
        waiting.failed(error, name)
    now_s = 130.0
    waiting.failed(error, "a")
    for name in "abc":
        waiting.over(name)
    now_s = 161.0
    waiting.failed(error, "d")
    waiting.over("d")
    waiting.over("d")
    assert [record.getMessage() for record in caplog.records] == [
        "changes have to wait, of a: no etcd",
        "changes have to wait, of 4 logs, a, b, c ...: no etcd",
        "changes have to wait, of d: no etcd",
        "changes do not have to wait any more",
    ]


async def test_elections_that_wait_for_a_full_etcd_are_told_of_now_and_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await until(lambda: ones[0][0].candidate.epoch)
        await make_logs(ones[0][0], 300)
        model.full = True
        ones[2][0].kill()
        await until(lambda: told(caplog, "elections have to wait"))
        await trio.sleep(59)
        assert told(caplog, "elections have to wait") == [f"elections have to wait: {FULL}"] * 2
        model.full = False
        await until(lambda: all(state.leader in (1, 2) for state in states(ones[1][1]).values()))
        await until(lambda: told(caplog, "elections do not have to wait any more"))


class Role:
    """A leader that wishes for one change."""

    handing_over = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.pending: Change | None = None

    def wish(self, brokers: Any, now: float) -> Change:
        self.pending = Change(LogState(replicas=(1,), isr=()), (Guard(log_key(b"", self.name), 0),))
        return self.pending

    def refused(self) -> None:
        self.pending = None


class NoReplicas:
    """Of a broker whose leaders are looked at by nobody else."""

    decide: Callable[[Any], None]
    by_name: tuple[str, ...] = ()


async def test_changes_of_many_isrs_that_wait_are_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model, replicas, roles = EtcdModel(), NoReplicas(), [Role(f"t-{number}") for number in range(200)]
    async with cluster(model) as nursery:
        one, _ = await start(nursery, model, 1)
        LogStates(one.store, one.members, replicas, spawn=nursery.start_soon)  # type: ignore[arg-type]
        model.full = True
        for role in roles:
            replicas.decide(role)
        await trio.sleep(35)
        assert [line.replace(FULL, "") for line in told(caplog, "controller have")] == [
            "elections of a controller have to wait: "
        ] * 2
        first, again = told(caplog, "ISR")
        assert re.fullmatch(rf"changes of ISRs have to wait, of t-\d+: {FULL}", first)
        assert re.fullmatch(rf"changes of ISRs have to wait, of 200 logs, t-\d+, t-\d+, t-\d+ \.\.\.: {FULL}", again)
        model.full = False
        await until(lambda: not any(role.pending for role in roles))
        assert told(caplog, "ISR")[2:] == ["changes of ISRs do not have to wait any more"]
