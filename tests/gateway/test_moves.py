"""Leaders and replicas that move on purpose, in brokers that are served with a real etcd, and what clients notice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from core_log.absent_log import AbsentLog
from core_log.replica_log import ReplicaLog
from core_log.replication.leader import Leader
from core_log.replication.replica import Replica
from core_log.replication.state import LogState
from gateway.cli import main
from gateway.cli import serve as serve_command
from gateway.cluster_admin_cli import led_by, still_moving
from gateway.cluster_status import show_troubles
from gateway.etcd_process import EtcdProcess
from protocols.native.clients.client import Client, Link
from protocols.native.errors import ErrorCode, MillraceError
from routing.administration.cluster import MOVING
from tests.gateway.test_member import Running, config, refused, three, until
from tests.gateway.test_member_topics import FOREVER, leaders, link, produce

RETRY_BACKOFF_S = 0.1
"""A producer's default."""
LOGS = 18
"""That every cluster has."""
PAUSE_MAX_S = 3.0
"""Three brokers and their clients share this process with other tests; alone it is a tenth of it."""


@asynccontextmanager
async def client_of(broker: Running) -> AsyncIterator[Client]:
    async with Client(f"127.0.0.1:{broker.server.ports['native']}") as client:
        yield client


def log_of(broker: Running, topic: str, index: int = 0) -> str:
    return f"topic-{broker.server.broker.topics[topic].uid}-{index}"


def state_of(broker: Running, topic: str, index: int = 0) -> LogState:
    state = broker.cluster.state_of(log_of(broker, topic, index))
    assert state is not None
    return state


class Load:
    """Producers that wait for all replicas, one for each partition, and go where the leader is after an error."""

    def __init__(self, links: dict[int, Link], topic: str, partitions: int) -> None:
        self._links, self._topic = links, topic
        self.sent = [0] * partitions
        self.longest_s = [0.0] * partitions
        self.retries = 0
        self.failed: list[int] = []
        """Codes of errors after a retry."""
        self.stopping = False
        self._over = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(len(self.sent)):
                nursery.start_soon(self._one, index)
        self._over.set()

    async def stop(self) -> None:
        """Wait until what is under way is answered."""
        self.stopping = True
        await self._over.wait()

    async def _one(self, index: int) -> None:
        leader = (await leaders(self._links[1], self._topic))[index].leader
        while not self.stopping:
            began = trio.current_time()
            for attempt in range(5):
                ((code, _),) = await produce(self._links[leader], (self._topic, index))
                if not code:
                    break
                assert code == ErrorCode.NOT_LEADER
                self.retries += 1
                if attempt:
                    self.failed.append(code)
                await trio.sleep(RETRY_BACKOFF_S)
                leader = (await leaders(self._links[leader], self._topic))[index].leader
            self.sent[index] += 10
            self.longest_s[index] = max(self.longest_s[index], trio.current_time() - began)


async def test_a_broker_is_drained_under_load(
    etcd: EtcdProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with three(etcd, tmp_path, "drain") as (nursery, brokers), AsyncExitStack() as stack:
        links = {number: await stack.enter_async_context(link(broker)) for number, broker in brokers.items()}
        async with client_of(brokers[2]) as client:
            await client.create_topic("t", partitions=6, config=FOREVER)
            load = Load(links, "t", 6)
            nursery.start_soon(load.run)
            await until(lambda: min(load.sent) > 50)
            leads = [index for index in range(6) if state_of(brokers[1], "t", index).leader == 1]
            assert len(leads) == 2
            load.longest_s = [0.0] * 6
            await client.administer("cluster.drain", broker_id=1)
            await until(lambda: all(state_of(brokers[2], "t", index).leader != 1 for index in range(6)))
            assert all(1 in state_of(brokers[2], "t", index).isr_brokers for index in range(6)), "it keeps its replicas"
            found = await client.administer("cluster.brokers")
            assert [broker["draining"] for broker in found["brokers"]] == [True, False, False]
            show_troubles({**found, "partitions": []})
            assert "drained, so it leads nothing until it is undrained: 1\n" in capsys.readouterr().out
            before = list(load.sent)
            await until(lambda: all(now > then + 50 for now, then in zip(load.sent, before, strict=True)))
            await load.stop()
            print(f"longest waits {[round(one, 3) for one in load.longest_s]} s, {load.retries} retries")
            assert load.failed == []
            assert max(load.longest_s) < PAUSE_MAX_S
            assert load.retries <= 2 * len(leads)
            with pytest.raises(MillraceError, match="the cluster has no broker 9"):
                await client.administer("cluster.drain", broker_id=9)
            await client.administer("cluster.undrain", broker_id=1)
        for index, sent in enumerate(load.sent):
            for broker in brokers.values():
                log = broker.server.broker.topics["t"].partitions[index].log
                await until(lambda log=log, sent=sent: log.high_watermark == sent)  # type: ignore[misc]


async def test_what_a_broker_leads_whose_disk_is_low_isled_by_those_that_have_room(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    async with three(etcd, tmp_path, "low") as (_, brokers), client_of(brokers[2]) as client:
        await client.create_topic("t", partitions=6, config=FOREVER)
        await client.create_topic("alone", partitions=3, config={"replication.factor": "1"})
        alarms = brokers[1].server.broker.alarms
        watermark, alarms.disk_free_bytes_min = alarms.disk_free_bytes_min, 1 << 60
        alarms.check()
        assert alarms.blocked == "low on disk"
        await until(lambda: all(state_of(brokers[2], "t", index).leader in (2, 3) for index in range(6)))
        assert all(1 in state_of(brokers[2], "t", index).isr_brokers for index in range(6)), "it keeps its replicas"
        assert {state_of(brokers[2], "alone", index).leader for index in range(3)} == {1, 2, 3}, "nobody else has it"
        found = (await client.administer("cluster.brokers"))["brokers"]
        assert [broker["low_on_disk"] for broker in found] == [True, False, False]
        alarms.disk_free_bytes_min = watermark
        await until(lambda: any(state_of(brokers[2], "t", index).leader == 1 for index in range(6)))


async def test_a_broker_that_stops_waits_for_who_is_about_to_be_in_sync(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    join, resign = Leader._joins, Leader.resignation
    monkeypatch.setattr(Leader, "resignation", lambda *asked: looks.append(None) or resign(*asked))
    monkeypatch.setattr(Leader, "_joins", lambda *asked: len(looks) > LOGS and join(*asked))
    async with trio.open_nursery() as nursery:
        first, second = (Running(config(etcd.address, tmp_path, "about-to-join", number)) for number in (1, 2))
        await nursery.start(first.run)
        await until(lambda: len(first.server.broker.topology.led) == 6)
        await nursery.start(second.run)
        known = second.cluster.elections.logs
        await until(lambda: [len(one.state.replicas) for one in known.values()] == [2] * LOGS)
        await until(lambda: all(is_followed(replica) for replica in first.cluster.replicas.by_name.values()))
        await first.stop()
        assert {one.state.leader for one in known.values()} == {2}
        second.scope.set()


def is_followed(replica: Replica) -> bool:
    followers = replica.role.followers if isinstance(replica.role, Leader) else {}
    return 2 in followers and followers[2].accepted


async def test_a_fourth_broker_gets_its_share_and_the_first_one_goes(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "grow") as (nursery, brokers), client_of(brokers[2]) as client:
        await client.create_topic("t", partitions=4, config=FOREVER)
        async with link(brokers[2]) as asked:
            for number in (1, 2, 3):
                async with link(brokers[number]) as to:
                    led = [one.partition for one in await leaders(asked, "t") if one.leader == number]
                    for _ in range(20 if led else 0):
                        await produce(to, *(("t", index) for index in led))
        brokers[4] = Running(config(etcd.address, tmp_path, "grow", 4))
        await nursery.start(brokers[4].run)
        assert isinstance(brokers[4].server.broker.topics["t"].partitions[0].log, AbsentLog)
        await client.administer("cluster.throttle", catch_up_bytes_per_s=1 << 20)
        assert brokers[4].cluster.replicas.catch_up.bytes_per_s == 1 << 20
        planned = (await client.administer("cluster.rebalance", dry_run=True))["rows"]
        assert planned
        assert all(4 in after or set(before) == set(after) for _, _, before, after in planned)
        assert (await client.administer("cluster.rebalance"))["rows"] == planned
        for one in brokers.values():
            await until(lambda one=one: is_settled(one))  # type: ignore[misc]
        held = [index for index in range(4) if 4 in state_of(brokers[2], "t", index).replicas]
        assert len(held) == 3
        for index in held:
            log = brokers[4].server.broker.topics["t"].partitions[index].log
            assert isinstance(log, ReplicaLog)
            assert log.log_end_offset == 200
        for number in (1, 2, 3):
            for index in range(4):
                found = brokers[number].server.broker.topics["t"].partitions[index].log
                assert isinstance(found, ReplicaLog) == (number in state_of(brokers[2], "t", index).replicas), (
                    number,
                    index,
                )
        assert len(list(tmp_path.glob("[123]/trash/topics-t-*"))) == 3, "what was dropped is kept a while"  # noqa: ASYNC240
        # One partition, where an operator wants it.
        with pytest.raises(MillraceError, match="broker 9 does not run"):
            await client.administer("cluster.move", topic="t", partition=0, replicas=[9, 2, 3])
        with pytest.raises(MillraceError, match="fewer than its min_insync_replicas, 2"):
            await client.administer("cluster.move", topic="t", partition=0, replicas=[3])
        with pytest.raises(MillraceError, match="there is no partition 7 of 't'"):
            await client.administer("cluster.move", topic="t", partition=7, replicas=[2, 3])
        done = await client.administer("cluster.move", topic="t", partition=0, replicas=[4, 2])
        assert done == {"min_insync_replicas": 2}
        await until(lambda: is_settled(brokers[2]))
        assert state_of(brokers[2], "t").replicas == (4, 2)
        assert state_of(brokers[2], "t").leader in (2, 4)


async def test_who_can_be_removed(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "remove") as (nursery, brokers), client_of(brokers[2]) as client:
        brokers[4] = Running(config(etcd.address, tmp_path, "remove", 4))
        await nursery.start(brokers[4].run)
        with pytest.raises(MillraceError, match="broker 4 runs: stop it first"):
            await client.administer("cluster.remove", broker_id=4)
        await brokers[4].stop()
        await client.administer("cluster.remove", broker_id=4)
        listed = await client.administer("cluster.brokers")
        assert [broker["id"] for broker in listed["brokers"]] == [1, 2, 3]
        assert await refused(brokers.pop(4).config) == (
            "broker 4 was removed from cluster 'remove': start it with an empty data directory"
        )
        await brokers[1].stop()
        with pytest.raises(MillraceError, match=r"partitions have replicas on broker 1 .* \.\.\.\): move them"):
            await client.administer("cluster.remove", broker_id=1)
        del brokers[1]


async def command(broker: Running, *arguments: str) -> Result:
    """`millrace cluster`, with the broker as the one that is asked."""
    server = f"127.0.0.1:{broker.server.ports['native']}"
    asked = ["cluster", *arguments, "--server", server]
    return await trio.to_thread.run_sync(partial(CliRunner().invoke, main, asked, catch_exceptions=False))


async def test_a_rebalance_says_what_it_leaves_as_there_are_too_few_brokers(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "few") as (_, brokers), client_of(brokers[1]) as client:
        await until(lambda: all(len(one.state.isr) == 3 for one in brokers[1].cluster.elections.logs.values()))
        await client.create_topic("t", config={"min.insync.replicas": "1"})
        for number in (2, 3):
            await client.administer("cluster.drain", broker_id=number)
        left = f"{LOGS} partitions stay where they are, as fewer replicas than their min_insync_replicas would be left"
        for options in (["--dry-run"], ["--wait"]):
            with trio.fail_after(30):
                said = await command(brokers[1], "rebalance", *options)
            assert said.exit_code == 1
            assert f"millrace: {left} (__offsets-0, " in said.stderr
            assert [line.split()[0] for line in said.stdout.splitlines()] == ["topic", "t"]
        assert state_of(brokers[1], "t").replicas == (1,), "what can be moved is"
        await client.administer("cluster.undrain", broker_id=2)
        with trio.fail_after(30):
            assert (await command(brokers[1], "rebalance", "--wait")).exit_code == 0


async def test_what_has_no_other_replica_is_named_when_its_broker_drains_or_is_gone(
    etcd: EtcdProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with three(etcd, tmp_path, "alone") as (_, brokers), client_of(brokers[2]) as client:
        # The first broker alone has what every cluster has, until the others have copied it.
        await until(lambda: all(len(one.state.isr) == 3 for one in brokers[2].cluster.elections.logs.values()))
        await client.create_topic("t", partitions=3, config={"replication.factor": "1"})
        (index,) = (index for index in range(3) if state_of(brokers[2], "t", index).leader == 1)
        with trio.fail_after(30):
            drained = await command(brokers[2], "drain", "1", "--wait")
        assert drained.exit_code == 1
        alone = f"millrace: broker 1 still leads 1 partitions that have no other replica (t-{index})"
        assert alone in drained.stderr
        await brokers.pop(1).stop()
        await until(lambda: state_of(brokers[2], "t", index).leader is None)
        await until(lambda: f"nobody can lead 1 logs, such as t-{index}" in caplog.text)
        drained = await command(brokers[2], "drain", "1", "--wait")
        assert drained.exit_code == 1
        assert "broker 1 does not run, and 1 partitions wait for it, as nobody else" in drained.stderr
        assert f"(t-{index})" in drained.stderr
        with pytest.raises(
            MillraceError, match=rf"\(__.*move them first.*nobody can copy what has no leader \(t-{index}\) "
        ):
            await client.administer("cluster.remove", broker_id=1)
        # It waits for nobody to come back; a move of another partition is none of its business.
        assert (await command(brokers[2], "move", "t", str(index), "2")).exit_code == 0
        other = next(one for one in range(3) if state_of(brokers[2], "t", one).leader == 2)
        with trio.fail_after(30):
            moved = await command(brokers[2], "move", "t", str(other), "3", "--wait")
        assert (moved.exit_code, state_of(brokers[2], "t", other).leader) == (0, 3)


def test_a_drain_waits_for_what_has_lost_its_leader_and_is_nowhere_else() -> None:
    """Broker 1 lost its lease for a moment: stopped now, it would take with it what others have not copied yet."""
    states: list[list[Any]] = [
        ["t", 0, None, [1, 2, 3], [1]],
        ["t", 1, 2, [1, 2, 3], [1, 2]],
        ["t", 2, None, [2, 3], [2]],
    ]

    draining = {1}

    class Client:
        def administer(self, operation: str, **_: Any) -> Any:
            brokers = [{"id": number, "alive": True, "draining": number in draining} for number in (1, 2, 3)]
            columns = ["topic", "partition", "leader", "replicas", "isr"]
            return {"brokers": brokers, "columns": columns, "rows": states}

    ask = partial(led_by, Client(), 1)  # type: ignore[arg-type]
    text = "is to lead 1 that have no leader and are not in sync elsewhere (t-0)"
    assert ask() == f"broker 1 still {text}"
    states[1][2] = 1
    assert ask() == f"broker 1 still leads 1 partitions (t-1), and {text}"
    states[0][2], states[1][2] = 3, 2
    assert ask() == ""
    states[1][2] = 1
    draining |= {2}
    assert ask() == "broker 1 still leads 1 partitions (t-1)"
    draining |= {3}
    with pytest.raises(MillraceError, match=r"at brokers that drain as well \(t-1\)"):
        ask()
    draining.discard(1)
    with pytest.raises(MillraceError, match="broker 1 does not drain any more"):
        ask()
    states[1][2] = 2
    assert ask() == ""


async def test_the_command_that_adds_a_broker_is_one() -> None:
    said = CliRunner().invoke(main, ["cluster", "add"]).stdout
    (line,) = (line for line in said.splitlines() if "millrace serve" in line)
    words = line.replace("HOST:PORT", "127.0.0.1:1").replace(" N ", " 4 ").split()
    context = serve_command.make_context("serve", words[2:])
    assert (context.params["name"], context.params["data_dir"]) == ("NAME", "DIRECTORY")


def is_settled(broker: Running) -> bool:
    """Whether no topic moves any more, and every replica is in sync."""
    logs = broker.cluster.elections.logs
    states = [known.state for log, known in logs.items() if log.startswith("topic-")]
    return all(one.target is None and len(one.isr) == len(one.replicas) for one in states)


def test_what_a_move_waits_for_is_named() -> None:
    states: list[list[Any]] = [
        ["t", 0, 1, [1, 2], [1, 2], None, [], 0],
        ["t", 1, 1, [1, 2], [1, 2], [1, 3], [3], 5],
        ["t", 2, None, [2], [], [2, 4], [4], None],
    ]
    running = {1, 3}

    class Client:
        def administer(self, operation: str, **_: Any) -> Any:
            brokers = [{"id": number, "alive": number in running} for number in (1, 2, 3, 4)]
            columns = ["topic", "partition", "leader", "replicas", "isr", "target", "copying", "bytes_left"]
            return {"brokers": brokers, "columns": columns, "rows": states}

    ask = partial(still_moving, Client())  # type: ignore[arg-type]
    assert ask(("t", 0)) == ""
    assert ask(("t", 1)) == "1 partitions are being moved, 5 bytes left"
    running.discard(3)
    down = "; not copied until they run: what is to be on the brokers"
    assert ask(("t", 1)) == f"1 partitions are being moved, 5 bytes left{down} 3"
    nobody = "without a leader, and not copied until there is one: t-2"
    assert ask() == f"2 partitions are being moved, 5 bytes left and what other leaders know; {nobody}{down} 2, 3, 4"


def test_a_move_that_is_in_vain_is_not_waited_for() -> None:
    moving: list[list[Any]] = [
        ["t", 0, 1, [1, 2, 3], [1, 2, 3], [2], [], 0, 2],
        ["t", 1, 1, [1, 2], [1], [2], [2], 5, 1],
    ]
    placed: list[list[Any]] = [["t", 2, [1, 2]]]

    class Client:
        def administer(self, operation: str, **_: Any) -> Any:
            brokers = [{"id": number, "alive": True} for number in (1, 2, 3)]
            if operation == "cluster.partitions":
                return {"columns": ["topic", "partition", "replicas"], "rows": placed}
            return {"brokers": brokers, "columns": list(MOVING), "rows": moving}

    ask = partial(still_moving, Client())  # type: ignore[arg-type]
    assert ask() == "2 partitions are being moved, 5 bytes left"
    with pytest.raises(MillraceError, match=r"fewer replicas than their min_insync_replicas, .* \(t-0\): lower it"):
        ask(("t", 0), [2])
    with pytest.raises(MillraceError, match="the replicas of t-1 are to be on brokers 2: that was asked for since"):
        ask(("t", 1), [1])
    assert ask(("t", 2), [1, 2]) == ""
    with pytest.raises(MillraceError, match="the replicas of t-2 are to be on brokers 1,2: "):
        ask(("t", 2), [2, 1])
    with pytest.raises(MillraceError, match="the replicas of t-3 are to be on none: "):
        ask(("t", 3), [2, 1])
