"""What a binding is, and what many of them have in common."""

from __future__ import annotations

import gc

from core_log.files import MemoryFiles
from routing.broker import open_broker
from routing.config import BrokerConfig
from routing.topology.binding import Binding, sharing

QUEUE = ("queue", "q")


def make(pattern: str, qos: int = 0) -> Binding:
    return Binding.make("e", QUEUE, pattern, {"qos": qos}, "mqtt")


def test_a_binding_is_what_it_says_whatever_it_is_made_of() -> None:
    one, same = make("a"), make("a")
    assert one.common is not same.common
    assert (one, hash(one)) == (same, hash(same))
    others = [
        make("b"),
        make("a", 1),
        Binding.make("other", QUEUE, "a", {"qos": 0}, "mqtt"),
        Binding.make("e", ("queue", "other"), "a", {"qos": 0}, "mqtt"),
        Binding.make("e", QUEUE, "a", {"qos": 0}, "amqp"),
    ]
    assert len({one, same, *others}) == 6


def test_the_collection_of_garbage_does_not_look_at_bindings() -> None:
    assert not gc.is_tracked(make("a"))


def test_what_the_first_or_the_last_has_already_is_there_once() -> None:
    first, between, last = make("a"), make("b", 1), make("c", 2)
    others = dict.fromkeys((first, between, last))
    assert sharing(make("d"), others).common is first.common
    assert sharing(make("d", 2), others).common is last.common
    another = make("d", 1)
    assert sharing(another, others) is another
    assert sharing(another, None) is another
    assert sharing(make("d"), others) == make("d")


async def test_the_bindings_of_a_queue_share_all_but_their_patterns_after_a_restart_as_well() -> None:
    files, patterns = MemoryFiles(), ["a", "b", "c"]
    async with open_broker(files, BrokerConfig()) as broker:
        await broker.declare_queue("q", durable=True)
        for pattern in patterns:
            await broker.bind("queue", "q", "amq.topic", pattern, {"qos": 1}, syntax="mqtt")
        there = broker.topology.vhosts["/"].bindings_to[QUEUE]
        assert [one.pattern for one in there] == patterns
        assert len({id(one.common) for one in there}) == 1
    async with open_broker(files, BrokerConfig()) as broker:
        there = broker.topology.vhosts["/"].bindings_to[QUEUE]
        assert [(one.pattern, dict(one.arguments)) for one in there] == [(pattern, {"qos": 1}) for pattern in patterns]
        assert len({id(one.common) for one in there}) == 1
        await broker.unbind("queue", "q", "amq.topic", "a", {"qos": 1}, syntax="mqtt")
        assert [one.pattern for one in there] == patterns[1:]
