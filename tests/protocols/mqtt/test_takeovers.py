"""Clients that connect while they are connected: what an operator hears of it, and that there is room for them."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from protocols.mqtt.reasons import ReasonCode
from protocols.mqtt.takeovers import LINES_MAX, MANY, WINDOW_S, Takeovers
from routing.cluster.clients.clients_elsewhere import ClientsElsewhere
from tests.protocols.mqtt.conftest import CONNACK, World
from tests.protocols.mqtt.test_moved_clients import FORMER, LATER, LEADER, begun_5, go_on, stand_still, town
from tests.protocols.mqtt.wire import connect
from tests.protocols.mqtt.wire_5 import publish_5


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def _said(lines: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(one.levelname, one.getMessage()) for one in lines.records]
    lines.clear()
    return found


async def test_a_takeover_is_in_the_log_with_both_addresses(world: World, lines: pytest.LogCaptureFixture) -> None:
    peers = ["127.0.0.1:1", "127.0.0.1:2"]
    first, second = (world.open(peer=peer) for peer in peers)
    for client in (first, second):
        await client.send(connect("pump"))
        assert client.take() == CONNACK
    assert first.closed
    ((level, text),) = _said(lines)
    assert level == "INFO"
    assert "'pump'" in text
    assert all(peer in text for peer in peers)


async def test_who_is_gone_already_was_not_taken_over(world: World, lines: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        client = world.open()
        await client.send(connect("pump"))
        client.lose()
    assert not _said(lines)


def test_two_devices_that_fight_over_an_identifier_are_told_of_once_a_window(lines: pytest.LogCaptureFixture) -> None:
    takeovers = Takeovers()
    for turn in range(100):
        takeovers.happened("pump", "a", "b", 10 + turn / 10)
    assert [level for level, _ in _said(lines)] == ["INFO", "WARNING"]
    takeovers.happened("pump", "a", "b", 10 + WINDOW_S)
    assert [level for level, _ in _said(lines)] == ["INFO"]


def test_where_all_come_back_at_once_the_log_is_not_filled(lines: pytest.LogCaptureFixture) -> None:
    takeovers = Takeovers()
    for number in range(3 * LINES_MAX):
        takeovers.happened(f"device-{number}", "a", "b", 0)
    assert len(_said(lines)) == LINES_MAX
    for _ in range(MANY):
        takeovers.happened("pump", "a", "b", 0)
    assert [level for level, _ in _said(lines)] == ["WARNING"]


async def test_who_takes_over_needs_no_further_place_among_the_connections(world: World) -> None:
    await world.broker.set_vhost("/", limits={"max-connections": 2})
    one = await world.client("one")
    other = await world.client("other")
    again = await world.client("one")
    assert one.closed
    assert not other.closed
    third = world.open()
    await third.send(connect("third"))
    assert third.take() == b"\x20\x02\0\3"
    again.lose()
    await world.client("third")


async def test_who_finds_its_queue_taken_is_told_so_and_not_that_it_was_deleted() -> None:
    """Its broker stood still, and was lost to the leader, while the client went on at another one."""
    async with town() as found:
        former = await begun_5(found.nodes[FORMER])
        found.nodes[FORMER].engine.elsewhere.give_ups.clear()
        leader = found.nodes[LEADER].engine
        leader.serving.lost(leader.serving.links.pop(FORMER))
        later = await begun_5(found.nodes[LATER])
        queue = found.nodes[LEADER].broker.topology.queues["mqtt.device"]
        with trio.fail_after(5):
            while not queue.consumers:
                await trio.sleep(0.002)
        found.nodes[FORMER].cut(LEADER)
        assert (await former.hears(0xE0))[0] == ReasonCode.SESSION_TAKEN_OVER
        assert not later.adapter.closed


async def test_who_asks_again_for_a_client_waits_for_what_it_had_said_as_who_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The link was lost before the first answer."""
    async with town() as found, trio.open_nursery() as nursery:
        node = found.nodes[FORMER]
        former = await begun_5(node)
        give_up = node.engine.elsewhere.give_ups["mqtt"]
        homes = [node.engine.forwarding.stream(f"home-{index}") for index in range(2)]  # nobody leads the wills, here
        monkeypatch.setattr(ClientsElsewhere, "position", lambda _: [(home, home.next_position) for home in homes])
        stand_still(node)
        await former.send(publish_5("t", b"1", qos=1, packet_id=1))
        answered: list[int] = []

        async def ask(number: int) -> None:
            await give_up("/", "device", True)
            answered.append(number)

        for number in range(2):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert answered == []
        await go_on(node)
        with trio.fail_after(5):
            while len(answered) < 2:
                await trio.sleep(0.002)


async def test_who_hears_first_from_the_leader_that_its_queue_is_gone_is_told_so() -> None:
    """Its own broker does not know yet that the session was deleted."""
    async with town() as found:
        former = await begun_5(found.nodes[FORMER])
        queue = found.nodes[FORMER].broker.topology.queues["mqtt.device"]
        served = found.nodes[LEADER].broker.topology.queues["mqtt.device"]
        with trio.fail_after(5):
            while not served.consumers:
                await trio.sleep(0.002)
        forwarding = found.nodes[FORMER].engine.forwarding
        (number,) = [number for number, one in forwarding.numbers.items() if one is queue]
        forwarding.over(number, queue_is_gone=True)
        assert (await former.hears(0xE0))[0] == ReasonCode.ADMINISTRATIVE_ACTION
        assert found.nodes[FORMER].broker.topology.queues["mqtt.device"] is queue
