"""Which routes a binding that comes or goes makes the broker forget: those it has a say in, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.memory_files import MemoryFiles
from routing.broker import Broker, open_broker
from routing.key_patterns import matches, parse_pattern
from routing.message import Properties, Slab
from routing.topology.binding import Binding
from routing.topology.route import Route
from routing.topology.route_cache import RouteCache

_WORDS = st.sampled_from(["a", "b", "c", "", "$sys", "+"])
_KEYS = st.lists(_WORDS, max_size=4).map(".".join)
_PATTERNS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "c", "", "$sys", "+", "*", "#"]), max_size=4).map(".".join),
    st.sampled_from(["amqp", "mqtt"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(_KEYS, unique=True) | _PATTERNS | _KEYS, max_size=8))
def test_just_the_keys_that_match_are_dropped(steps: list[Any]) -> None:
    cache, there = RouteCache(), set[str]()
    route = Route([], [])
    for step in steps:
        if isinstance(step, list):
            for key in step:
                if key not in there:
                    cache.put(key, route)
                    there.add(key)
        elif isinstance(step, str):
            assert cache.drop(step) == (step in there)
            there.discard(step)
        else:
            tokens = parse_pattern(*step)
            gone = {key for key in there if matches(tokens, key)}
            assert cache.drop_matching(tokens) == len(gone)
            there -= gone
        assert set(cache.routes) == there


def test_many_wildcards_have_each_key_looked_at_once() -> None:
    looked = 0

    class Counted(list[str]):
        def __len__(self) -> int:
            nonlocal looked
            looked += 1
            return super().__len__()

    for last, gone in (("#", 100), ("z", 0)):
        cache = RouteCache()
        for number in range(100):
            cache.put(f"{number}." + ".".join(["a"] * 120), Route([], []))
        looked = 0
        assert cache.drop_matching(Counted(parse_pattern("#." * 100 + last, "amqp"))) == gone
        assert looked < 500


async def _publish(broker: Broker, exchange: str, *keys: str) -> None:
    for key in keys:
        broker.topology.vhosts["/"].router.routed(Slab(exchange, key, Properties("amqp", b"", persistent=False), [b""]))


def _remembered(broker: Broker, exchange: str) -> set[str]:
    return set(broker.topology.vhosts["/"].router._by_exchange[exchange].routes)


async def test_a_subscription_concerns_the_keys_it_matches() -> None:
    async with open_broker(MemoryFiles()) as broker:
        await broker.declare_queue("q")
        await broker.declare_queue("r")
        await broker.declare_exchange("above", "fanout")
        await broker.declare_exchange("before", "direct", arguments={"alternate-exchange": "amq.topic"})
        await broker.bind("exchange", "amq.topic", "above", "")
        await broker.bind("queue", "r", "amq.topic", "#")
        keys = "a.1.temp", "a.2.temp", "a.2.level"
        for exchange in ("amq.topic", "above", "before"):
            await _publish(broker, exchange, *keys)
        await broker.bind("queue", "q", "amq.topic", "a.+.temp", {}, syntax="mqtt")
        for exchange in ("amq.topic", "above", "before"):
            assert _remembered(broker, exchange) == {"a.2.level"}
            await _publish(broker, exchange, *keys)
        await broker.unbind("queue", "q", "amq.topic", "a.+.temp", {}, syntax="mqtt")
        await broker.bind("queue", "q", "amq.topic", "a.2.level")
        for exchange in ("amq.topic", "above", "before"):
            assert not _remembered(broker, exchange)
            await _publish(broker, exchange, *keys)
        await broker.delete_queue("q")
        for exchange in ("amq.topic", "above", "before"):
            assert _remembered(broker, exchange) == {"a.1.temp", "a.2.temp"}


async def test_a_fanout_forgets_all_whatever_the_key_of_its_binding() -> None:
    async with open_broker(MemoryFiles()) as broker:
        await broker.declare_queue("q")
        await _publish(broker, "amq.fanout", "a", "b")
        router = broker.topology.vhosts["/"].router
        before = router._by_exchange["amq.fanout"].routes["a"]
        await broker.bind("queue", "q", "amq.fanout", "b")
        slab = Slab("amq.fanout", "a", Properties("amqp", b"", persistent=False), [b""])
        ((after, _),) = router.routed(slab)
        assert not before.queues
        assert [queue.name for queue in after.queues] == ["q"]


async def test_keys_that_lead_to_the_same_queues_share_a_route_whatever_comes_and_goes() -> None:
    async with open_broker(MemoryFiles()) as broker:
        await broker.declare_queue("q")
        await broker.bind("queue", "q", "amq.topic", "#")
        router = broker.topology.vhosts["/"].router
        await _publish(broker, "amq.topic", "a")
        await broker.declare_queue("r")
        await broker.bind("queue", "r", "amq.topic", "x.#")
        await _publish(broker, "amq.topic", "b", "x")
        routes = router._by_exchange["amq.topic"].routes
        assert routes["a"] is routes["b"]
        assert routes["a"] is not routes["x"]
        await broker.delete_queue("r")
        assert len(router._equal) == 1, "routes that nobody goes by are gone"


async def test_a_binding_does_not_look_at_all_that_lead_to_its_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    many, looked = 1000, 0

    def exchange(binding: Binding) -> str:
        nonlocal looked
        looked += 1
        return binding.common.exchange

    async with open_broker(MemoryFiles()) as broker:
        await broker.declare_queue("q")
        for name in ("entrance", "inner"):
            await broker.declare_exchange(name, "topic")
        for number in range(many):
            await broker.bind("exchange", "inner", "entrance", f"{number}.#")
        await _publish(broker, "entrance", "1.a")
        monkeypatch.setattr(Binding, "exchange", property(exchange))
        await broker.bind("queue", "q", "inner", "1.b")
        assert 0 < looked < many / 10
