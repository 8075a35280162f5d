"""Logs are replicated over real sockets onto real files: byte for byte, whatever happens to links and brokers."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from core_log.log_config import LogConfig
from core_log.replication.leader import Leader
from core_log.replication.messages import Batches
from gateway.peer_tls import connect
from gateway.peers import Peers
from protocols.buffers import FrameReader
from protocols.peer import wire
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Dialer, Link, PeerId
from tests.gateway.relay import relay
from tests.support.replica_node import LOG, Node, batch_of, bytes_of, running

QUICK = PeerConfig(redial_ms_min=5, redial_ms_max=20)
BOTH = {1: 1, 2: 1}


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)


def introduce(*nodes: Node, **through: str) -> None:
    """Everybody knows everybody's address."""
    addresses = {node.me: through.get(f"to{node.me}", node.address) for node in nodes}
    for node in nodes:
        node.directory.tell(addresses)


def lead(leader: Node, leader_epoch: int, *others: Node, minimum: int = 2) -> None:
    for node in (leader, *others):
        node.state(leader.me, leader_epoch, {one.me: one.epoch for one in (leader, *others)}, minimum)


async def committed(node: Node, end: int, seconds: float = 10) -> None:
    with trio.fail_after(seconds):
        await node.log().wait_committed(end)


@asynccontextmanager
async def pair(tmp_path: Path, **differs: Any) -> AsyncIterator[tuple[Node, Node]]:
    config = {"config": QUICK} | differs
    async with running(tmp_path / "1", 1, **config) as one, running(tmp_path / "2", 2, **config) as two:
        yield one, two


def same(one: Node, two: Node, name: str = LOG) -> bool:
    return bytes_of(one.log(name)) == bytes_of(two.log(name))


async def test_what_is_appended_is_committed_when_both_have_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        lead(one, 3, two)
        end = one.append(batch_of(0, 10, 100))
        one.end_turn()
        await until(lambda: one.log().flushed_offset == end)
        assert one.log().high_watermark == 0, "the other has nothing yet"
        introduce(one, two)
        await committed(one, end)
        assert two.log().flushed_offset == end, "durable there, too"
        for number in range(1, 20):
            end = one.append(batch_of(number * 10, 10, number * 4000))
            one.end_turn()
            await committed(one, end)
        await until(lambda: two.log().high_watermark == end)
        assert same(one, two)
        assert two.log().epochs.entries == [(3, 0)]
        assert two.log().last_epoch == 3


async def test_what_nobody_waits_for_costs_no_sync(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        lead(one, 1, two)
        introduce(one, two)
        end = one.append(batch_of(0, 10, 100), wait=False)
        one.end_turn()
        await until(lambda: two.log().written_offset == end)
        await trio.sleep(0.1)
        assert (one.log().flushed_offset, two.log().flushed_offset) == (0, 0)
        one.log().request_sync()
        one.end_turn()
        await committed(one, end, 2)


async def test_a_turn_is_one_frame_for_all_logs(tmp_path: Path) -> None:
    names = [f"topics/t-{number}" for number in range(8)]
    async with pair(tmp_path, logs=names) as (one, two), relay(one.address) as wire_tap:
        lead(one, 1, two)
        introduce(one, two, to1=wire_tap.address)
        await until(lambda: 2 in one.replicas.followers and wire_tap.there)
        await trio.sleep(0.3)
        for name in names:
            one.append(batch_of(0, 10, 10), name)
        one.end_turn()
        await until(lambda: all(one.log(name).high_watermark == 10 for name in names))
        batches = [frame for frame in frames(wire_tap.back) if isinstance(frame, wire.Batches)]
        assert [len(frame.entries) for frame in batches if any(entry.batches for entry in frame.entries)] == [8]
        positions = [frame for frame in frames(wire_tap.there) if isinstance(frame, wire.Positions)]
        assert max(len(frame.entries) for frame in positions) == 8


def frames(streams: list[bytearray]) -> list[wire.AnyFrame]:
    """All that passed a relay."""
    return [wire.decode(frame) for data in streams for frame in FrameReader(1 << 30).feed(bytes(data))]


@pytest.mark.parametrize("cache_bytes", [8 << 20, 0])
async def test_catching_up_never_goes_beyond_the_credit(tmp_path: Path, cache_bytes: int) -> None:
    """From memory and from disk, batches larger than the credit among them."""
    config = PeerConfig(redial_ms_min=5, redial_ms_max=20, credit_bytes=40_000)
    settings = LogConfig(tail_cache_bytes=cache_bytes, segment_bytes=1 << 20)
    async with pair(tmp_path, config=config, log_config=settings) as (one, two), relay(one.address) as wire_tap:
        lead(one, 1, two)
        for number in range(60):
            end = one.append(batch_of(number * 10, 10, 9000 if number % 9 == 5 else 700))
        one.end_turn()
        await until(lambda: one.log().written_offset == end)
        introduce(one, two, to1=wire_tap.address)
        await committed(one, end)
        assert same(one, two)
        credit = total = 0
        for frame in frames(wire_tap.there):
            credit = max(credit, frame.credit_bytes if isinstance(frame, wire.Positions) else 0)
        for frame in frames(wire_tap.back):
            if isinstance(frame, wire.Batches):
                total += sum(len(batch) for entry in frame.entries for batch in entry.batches)
        assert total == len(bytes_of(one.log())), "nothing was sent twice"
        assert credit == total + 40_000


async def test_a_leader_that_sends_without_credit_is_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path / "2", 2, config=PeerConfig(credit_bytes=1024)) as two:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        two.directory.tell({1: f"127.0.0.1:{listener.socket.getsockname()[1]}"})
        two.state(1, 1, BOTH)
        async with await listener.accept() as stream:
            link = Acceptor(PeerConfig(), PeerId("cluster", 1, 1, "d1"), b"n" * 32, lambda _: None, loopback=True)
            frames: list[wire.AnyFrame] = []
            with trio.fail_after(5):
                while not frames:
                    frames = link.receive(await stream.receive_some())
                    await stream.send_all(bytes(link.outgoing))
                    link.outgoing.clear()
                batch = batch_of(0, 10, 200)
                entries = [Batches(LOG, 1, tag, 0, 0, 0, 0, 10, (batch,)) for tag in (1, 2)]
                await stream.send_all(b"".join(wire.encode_batches(entries)))
                with pytest.raises(wire.PeerError, match="batches without credit, beyond 1024 bytes"):
                    await read_on(stream, link)
        await listener.aclose()


async def test_a_frame_that_is_too_large_for_a_peer_is_told_of_once_and_sent_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood: list[bool] = []
    dial = Peers._dial

    async def noted(peers: Peers, *whom: Any) -> bool:
        stood.append(await dial(peers, *whom))
        return stood[-1]

    monkeypatch.setattr(Peers, "_dial", noted)
    small = PeerConfig(redial_ms_min=5, redial_ms_max=20, frame_bytes_max=1 << 20)
    with capture_logs() as logs:
        async with running(tmp_path / "1", 1, config=QUICK) as one, running(tmp_path / "2", 2, config=small) as two:
            lead(one, 3, two)
            introduce(one, two)
            one.append(batch_of(0, 1, (1 << 20) - 75))  # which a topic takes, and the frame around it is larger
            one.end_turn()
            await until(lambda: len(stood) > 20)
            assert not any(stood[:20])
            (over,) = (line["reason"] for line in logs if line["event"].startswith("the link"))
    assert "the limit is 1048576, peer.frame_bytes_max of broker 2" in over, "and no line for each link"


async def test_a_tail_that_the_leader_does_not_have_is_cut_off(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        introduce(one, two)
        lead(two, 1, one)
        end = two.append(batch_of(0, 10, 100))
        two.end_turn()
        await committed(two, end)
        await until(lambda: one.log().high_watermark == end)
        for node in (one, two):
            node.directory.tell({})
        await until(lambda: not any((*one.replicas.leaders, *one.replicas.followers, *two.replicas.leaders)))
        two.append(batch_of(100, 30, 100))
        two.end_turn()
        await until(lambda: two.log().written_offset == 40)
        one.state(1, 2, BOTH, 2)
        one.append(batch_of(200, 10, 100))
        one.append(batch_of(210, 5, 100))
        one.end_turn()
        two.state(1, 2, BOTH, 2)
        introduce(one, two)
        await committed(one, 25)
        assert same(one, two)
        assert two.log().epochs.entries == [(1, 0), (2, 10)]
        assert two.log().log_end_offset == 25


async def test_a_follower_whose_disk_refuses_says_so_and_catches_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        lead(one, 1, two)
        introduce(one, two)
        end = one.append(batch_of(0, 10, 100))
        one.end_turn()
        await committed(one, end)
        two.files.failing["write"] = errno.ENOSPC
        one.append(batch_of(10, 10, 1000))
        one.end_turn()
        role = one.replicas.by_name[LOG].role
        assert isinstance(role, Leader)
        await until(lambda: role.followers[2].refusing)
        sent = role.followers[2].next_offset
        for number in range(2, 20):
            end = one.append(batch_of(number * 10, 10, 1000))
            one.end_turn()
        await trio.sleep(0.3)
        assert role.followers[2].next_offset == sent, "nothing is sent to who cannot keep it"
        assert one.log().high_watermark == 10
        del two.files.failing["write"]
        await committed(one, end)
        assert same(one, two)


async def test_a_follower_older_than_the_leaders_log_begins_anew(tmp_path: Path) -> None:
    settings = LogConfig(segment_bytes=2000, tail_cache_bytes=8 << 20)
    async with pair(tmp_path, log_config=settings) as (one, two):
        lead(one, 1, two, minimum=1)
        one.state(1, 1, {1: 1}, 1, replicas=(1, 2))
        for number in range(20):
            end = one.append(batch_of(number * 10, 10, 100))
            one.end_turn()
        await committed(one, end)
        one.log().delete_prefix(100)
        introduce(one, two)
        await until(lambda: two.log().high_watermark == end)
        assert two.log().log_start_offset == 100
        assert bytes_of(one.log()).endswith(bytes_of(two.log()))


@pytest.mark.parametrize("how", ["cut", "hold"])
async def test_a_link_that_goes_and_comes_back(tmp_path: Path, how: str) -> None:
    config = PeerConfig(redial_ms_min=5, redial_ms_max=20, heartbeat_ms=50, silence_ms_max=200)
    async with pair(tmp_path, config=config) as (one, two), relay(one.address) as between:
        lead(one, 1, two)
        introduce(one, two, to1=between.address)
        end = one.append(batch_of(0, 10, 100))
        one.end_turn()
        await committed(one, end)
        for number in range(1, 4):
            before = one.replicas.followers[2]
            if how == "hold":
                between.hold()
            else:
                between.cut()
            end = one.append(batch_of(number * 10, 10, 50_000))
            one.end_turn()
            await until(lambda before=before: one.replicas.followers.get(2) is not before)
            between.go_on()
            await committed(one, end)
        await until(lambda: two.log().high_watermark == end)
        assert same(one, two)


async def test_who_has_another_secret_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = Counter[str]()

    async def counted(address: str) -> socket.socket:
        dialled[address] += 1
        return await connect(address)

    monkeypatch.setattr("gateway.peers.connect", counted)
    async with AsyncExitStack() as stack:
        logs = stack.enter_context(capture_logs())
        other = PeerConfig(secret="two", redial_ms_min=5, redial_ms_max=20)
        one = await stack.enter_async_context(running(tmp_path / "1", 1, config=PeerConfig(secret="one")))
        two = await stack.enter_async_context(running(tmp_path / "2", 2, config=other))
        lead(one, 1, two)
        one.append(batch_of(0, 10, 100))
        one.end_turn()
        introduce(one, two)
        refused = "a peer was refused: the peer has another peer.secret than broker 1"
        told = f"no link to a peer: broker 1 at {one.address}: the peer has another peer.secret than broker 1"

        def lines() -> list[str]:
            return [f"{entry['event']}: {entry['reason']}" for entry in logs]

        await until(lambda: min(dialled[one.address], dialled[two.address]) >= 3 and {refused, told} <= set(lines()))
        assert (one.replicas.followers, two.replicas.followers) == ({}, {})
        assert two.log().log_end_offset == 0
        assert lines().count(told) == 1, "once, however often it tries"


async def test_a_process_whose_registration_is_over_gets_no_link(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        one.directory.epochs[2] = 7
        introduce(one, two)
        links = (one.replicas.followers, one.replicas.leaders, two.replicas.followers, two.replicas.leaders)
        await trio.sleep(0.2)
        assert 2 not in (*one.replicas.followers, *one.replicas.leaders)
        await until(lambda: not any(links))  # who is refused may have known of a link for a moment
        one.directory.epochs[2] = 1
        await until(lambda: 2 in one.replicas.followers)


async def test_who_registers_anew_dials_anew_and_who_is_not_registered_stays(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        introduce(one, two)
        await until(lambda: 2 in one.replicas.followers and 1 in two.replicas.followers)
        before = one.replicas.followers[2], two.replicas.followers[1]
        me, two.directory.me = two.directory.me, None
        two.directory.listeners[0]()
        await trio.sleep(0.1)
        assert (one.replicas.followers[2], two.replicas.followers[1]) == before
        assert me is not None
        two.directory.me = me._replace(broker_epoch=9)
        two.directory.listeners[0]()
        await until(lambda: 2 in one.replicas.followers and one.replicas.followers[2].broker_epoch == 9)
        assert two.replicas.followers[1] is before[1], "the other's link to it is what it was"


async def test_a_link_of_an_older_process_does_not_replace_a_newer_ones(tmp_path: Path) -> None:
    async with running(tmp_path / "1", 1, config=QUICK) as one, dialled(one, 2, epoch=5) as (first, link):
        await until(lambda: 2 in one.replicas.followers)
        async with dialled(one, 2, epoch=4) as (second, _), second:
            with pytest.raises(wire.PeerError, match="registered with epoch 5, epoch 4 is over"):
                await shake(second, _)
        assert one.replicas.followers[2].broker_epoch == 5
        async with dialled(one, 2, epoch=6) as (third, newer), third:
            await shake(third, newer)
            assert one.replicas.followers[2].broker_epoch == 6
            with pytest.raises(wire.PeerError, match="there is a newer link"), trio.fail_after(5):
                await read_on(first, link)


@asynccontextmanager
async def dialled(node: Node, me: int, *, epoch: int) -> AsyncIterator[tuple[trio.SocketStream, Dialer]]:
    """A link to a node, opened as far as it goes."""
    host, _, port = node.address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    link = Dialer(
        QUICK, PeerId("cluster", me, epoch, "d"), "replica", b"n" * 32, lambda _: None, loopback=True, to=node.me
    )
    async with stream:
        if epoch == 5:
            await shake(stream, link)
        yield stream, link


async def read_on(stream: trio.SocketStream, link: Link) -> None:
    """Until the peer says why it ends."""
    while data := await stream.receive_some():
        link.receive(data)


async def shake(stream: trio.SocketStream, link: Dialer) -> None:
    with trio.fail_after(5):
        while not link.open:
            await stream.send_all(bytes(link.outgoing))
            link.outgoing.clear()
            link.receive(await stream.receive_some())


STRANGERS = [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"\0\0\0\2\x90\x90", b"\0\0\0\1\xc0" * 9]


@pytest.mark.parametrize("data", STRANGERS)
async def test_a_stranger_is_told_and_closed(tmp_path: Path, data: bytes) -> None:
    async with running(tmp_path / "1", 1) as one:
        host, _, port = one.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(data)
            with trio.fail_after(5):
                answer = b"".join([part async for part in stream])
        found = wire.decode(answer[4:])
        assert isinstance(found, wire.Error)
        assert found.code in (wire.ErrorCode.FRAME_TOO_LARGE, wire.ErrorCode.MALFORMED_FRAME)


async def test_a_stranger_who_says_nothing_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "1", 1, config=PeerConfig(handshake_timeout_ms=100)) as one:
        host, _, port = one.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            with trio.fail_after(5):
                answer = b"".join([part async for part in stream])
        assert wire.decode(answer[4:]) == wire.Error(wire.ErrorCode.TIMED_OUT, "no handshake in 100 ms")


class Process:
    """A node in a process of its own."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.address = ""
        self.epoch = 0
        self._unread = b""

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with trio.fail_after(20):
            while b"\n" not in self._unread:
                data = await self.process.stdout.receive_some()
                assert data, "the process is gone"
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    async def ask(self, *what: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps(what).encode() + b"\n")
        return await self.answer()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def start(nursery: trio.Nursery, directory: Path, me: int) -> Process:
    command = [sys.executable, "-m", "tests.support.replica_node", str(directory), str(me), "secret"]
    run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
    found = Process(await nursery.start(run))
    hello = await found.answer()
    found.address, found.epoch = hello["address"], hello["epoch"]
    return found


async def test_brokers_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """kill -9 of the follower, then of the leader, then of the leader while the other takes over and it comes back."""
    async with trio.open_nursery() as nursery:
        nodes = {me: await start(nursery, tmp_path / str(me), me) for me in (1, 2)}

        async def lead_by(leader: int, leader_epoch: int) -> None:
            isr = [[me, node.epoch] for me, node in nodes.items()]
            for node in nodes.values():
                await node.ask("peers", {me: other.address for me, other in nodes.items()})
                await node.ask("state", leader, leader_epoch, isr, 2)

        async def all_committed(leader: int) -> dict[str, Any]:
            with trio.fail_after(20):
                while True:
                    found = [await nodes[me].ask("status") for me in (leader, 3 - leader)]
                    if found[0]["committed"] == found[0]["end"] and found[0] == found[1]:
                        return found[0]
                    await trio.sleep(0.01)

        await lead_by(1, 1)
        await nodes[1].ask("append", 0, 1000, 500)
        await nodes[2].kill()
        await nodes[1].ask("append", 1000, 1000, 500)
        nodes[2] = await start(nursery, tmp_path / "2", 2)
        await lead_by(1, 2)
        assert (await all_committed(1))["end"] == 2000
        await nodes[1].ask("append", 2000, 1000, 500)
        await nodes[1].kill()
        end = (await nodes[2].ask("status"))["end"]
        assert end >= 2000, "what was committed is there"
        nodes[1] = await start(nursery, tmp_path / "1", 1)
        await lead_by(2, 3)
        await nodes[2].ask("append", 5000, 300, 500)
        assert (await all_committed(2))["end"] == end + 300
        for node in nodes.values():
            await node.kill()
