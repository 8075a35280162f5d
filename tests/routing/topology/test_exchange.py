"""Every kind of exchange by itself."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest

from routing.errors import PreconditionFailed
from routing.message import NeutralProperties
from routing.topology import matchers
from routing.topology.binding import Binding, BindingsTo
from routing.topology.exchange import Exchange

QUEUE = ("queue", "q")


def binding(pattern: str = "", arguments: dict[str, Any] | None = None, syntax: str = "amqp", to: str = "q") -> Binding:
    return Binding.make("e", ("queue", to), pattern, arguments, syntax)


def names(exchange: Exchange, key: str = "", headers: dict[str, Any] | None = None) -> list[str]:
    return sorted(
        name for _, name in set(exchange.matcher.match(key, lambda: NeutralProperties(headers=headers or {})))
    )


AB = {"a": 1, "b": "two"}


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        # all is the default
        (AB, {"a": 1, "b": "two"}, True),
        (AB, {"a": 1, "b": "two", "c": 3}, True),
        (AB, {"a": 1}, False),
        (AB, {"a": 1, "b": "three"}, False),
        (AB, {}, False),
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "all"} | AB, {"a": 1, "b": "two"}, True),
        ({"x-match": "all"} | AB, {"a": 1}, False),
        ({"x-match": "all"}, {"a": 1}, True),
        # any
        ({"x-match": "any"} | AB, {"a": 1}, True),
        ({"x-match": "any"} | AB, {"b": "two"}, True),
        ({"x-match": "any"} | AB, {"a": 2, "b": "two"}, True),
        ({"x-match": "any"} | AB, {"a": 2, "b": "three"}, False),
        ({"x-match": "any"} | AB, {"c": 1}, False),
        ({"x-match": "any"} | AB, {}, False),
        ({"x-match": "any"}, {}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        # void asks for presence
        ({"a": None}, {"a": 1}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None, "b": 1}, {"a": "x"}, True),
        ({"a": 1}, {"a": None}, False),
        # a value has a class
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1.5}, {"a": 1.5}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": b"x"}, {"a": "x"}, False),
        ({"a": Decimal("1.5")}, {"a": 1.5}, False),
        ({"a": [1, 2]}, {"a": [1, 2]}, True),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        # headers that begin with x- count only when asked to
        ({"x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 2}, False),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
    ],
)
def test_headers(arguments: dict[str, Any], headers: dict[str, Any], matches: bool) -> None:
    exchange = Exchange("e", "headers")
    exchange.add(binding("the key does not matter", arguments))
    assert names(exchange, "another", headers) == (["q"] if matches else [])


def test_a_message_with_many_headers_that_one_binding_asks_for() -> None:
    """Of `any` each header decides alone: who compared all of them for each took seconds for a single message."""
    looked = 0

    class Headers(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(name)

    exchange = Exchange("e", "headers")
    wanted = [f"h{number}" for number in range(1000)]
    exchange.add(binding("", {"x-match": "any"} | dict.fromkeys(wanted)))
    assert names(exchange, headers=Headers.fromkeys(wanted[500:], 1)) == ["q"]
    assert looked < 2000


def test_headers_that_many_bindings_ask_for() -> None:
    """Any bindings lead where each of them would by itself, while they come and go."""
    random_ = random.Random(7)
    values: list[Any] = [1, True, 1.0, 0, False, "1", b"1", None, "two", Decimal(1), [1], {"b": 1}]

    def some() -> dict[str, Any]:
        return {name: random_.choice(values) for name in random_.sample(["a", "b", "c", "x-d"], random_.randint(0, 3))}

    many = Exchange("e", "headers")
    there: dict[str, tuple[Binding, Exchange]] = {}
    for number in range(1000):
        kind = random_.choice(["all", "any", "all-with-x", "any-with-x"])
        one, alone = binding("", {"x-match": kind} | some(), to=f"q{number}"), Exchange("e", "headers")
        for exchange in (many, alone):
            exchange.add(one)
        there[f"q{number}"] = one, alone
        if len(there) > 50:
            gone, _ = there.pop(random_.choice(list(there)))
            many.remove(gone)
        headers = some()
        assert names(many, "", headers) == sorted(name for name, (_, one) in there.items() if names(one, "", headers))
    for one, _ in there.values():
        many.remove(one)
    assert all(names(many, "", some()) == [] for _ in range(100))


def test_headers_that_few_of_many_bindings_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, same = 0, matchers._same

    def counting(wanted: Any, value: Any) -> bool:
        nonlocal compared
        compared += 1
        return same(wanted, value)

    monkeypatch.setattr(matchers, "_same", counting)
    exchange = Exchange("e", "headers")
    for number in range(1000):
        exchange.add(binding("", {"kind": f"k{number % 3}", "number": number}, to=f"all{number}"))
        exchange.add(binding("", {"x-match": "any", "number": number, "other": number}, to=f"any{number}"))
    assert names(exchange, "", {"kind": "k1", "number": 4}) == ["all4", "any4"]
    assert compared < 20


@pytest.mark.parametrize("bad", ["ALL", "", 1, None, ["all"]])
def test_headers_refuses_an_unknown_x_match(bad: object) -> None:
    exchange = Exchange("e", "headers")
    with pytest.raises(PreconditionFailed, match="x-match"):
        exchange.matcher.check(binding("", {"x-match": bad}))
    assert not exchange.bindings


def test_direct() -> None:
    exchange = Exchange("e", "direct")
    for key, queue in [("a", "1"), ("a", "2"), ("b", "2"), ("", "3"), ("a.#", "4")]:
        exchange.add(binding(key, to=queue))
    assert names(exchange, "a") == ["1", "2"]
    assert names(exchange, "b") == ["2"]
    assert names(exchange, "") == ["3"]
    assert names(exchange, "a.x") == []
    assert exchange.remove(binding("a", to="2"))
    assert not exchange.remove(binding("a", to="2"))
    assert names(exchange, "a") == ["1"]


def test_fanout() -> None:
    exchange = Exchange("e", "fanout")
    exchange.add(binding("a", to="1"))
    exchange.add(binding("b", to="1"))
    exchange.add(binding("", to="2"))
    assert names(exchange, "whatever") == ["1", "2"]
    exchange.remove(binding("a", to="1"))
    assert names(exchange) == ["1", "2"]
    exchange.remove(binding("b", to="1"))
    assert names(exchange) == ["2"]


def test_topic_knows_both_syntaxes() -> None:
    exchange = Exchange("e", "topic")
    exchange.add(binding("*.b", to="amqp"))
    exchange.add(binding("+.b", syntax="mqtt", to="mqtt"))
    assert names(exchange, "a.b") == ["amqp", "mqtt"]
    assert names(exchange, "$a.b") == ["amqp"]
    exchange.remove(binding("*.b", to="amqp"))
    assert names(exchange, "a.b") == ["mqtt"]


def test_no_filter_matches_what_the_broker_alone_says_below_sys() -> None:
    exchange = Exchange("e", "topic")
    exchange.add(binding("$SYS.#", to="amqp"))
    exchange.add(binding("$SYS.#", syntax="mqtt", to="mqtt"))
    for key in ("$SYS", "$SYS.broker.uptime", "$SYS.broker.connection.a.b.state", "$SYS.broker.connection.a.state.b"):
        assert names(exchange, key) == ["amqp"]
    assert names(exchange, "$SYS.broker.connection.a.state") == ["amqp", "mqtt"]
    exchange.add(binding("$SYSTEM.#", syntax="mqtt", to="mqtt"))
    assert names(exchange, "$SYSTEM.a") == ["mqtt"]


def test_a_binding_is_what_was_said_and_nothing_else() -> None:
    exchange = Exchange("e", "direct")
    variants = [
        binding("k"),
        binding("k", {"a": 1}),
        binding("k", {"a": True}),
        binding("k", {"a": "1"}),
        binding("k", {"a": 1.5}),
        binding("k", syntax="mqtt"),
        binding("k", to="other"),
        binding("l"),
    ]
    for each in variants * 2:
        exchange.add(each)
    assert len(exchange.bindings) == len(variants)
    assert exchange.remove(binding("k", {"a": 1}))
    assert binding("k", {"a": True}) in exchange.bindings


def test_the_order_of_arguments_does_not_matter() -> None:
    assert binding("k", {"a": 1, "b": 2}) == binding("k", {"b": 2, "a": 1})
    assert binding("k", {}) == binding("k", None)


def test_exchanges_that_lead_to_the_same_queue_have_their_own_bindings() -> None:
    there = BindingsTo()
    first, second = (Exchange(name, "direct", bindings_to=there) for name in "ab")
    queue = ("queue", "q")
    mine = [Binding.make("a", queue, key, {}, "amqp") for key in ("1", "2")]
    theirs = Binding.make("b", queue, "1", {}, "amqp")
    for exchange, binding in ((first, mine[0]), (second, theirs), (first, mine[1]), (first, mine[0])):
        exchange.add(binding)
    assert list(first.bindings) == mine
    assert list(second.bindings) == [theirs]
    assert (len(first.bindings), len(second.bindings), len(there[queue])) == (2, 1, 3)
    assert first.remove(mine[0])
    assert not first.remove(mine[0])
    assert list(first.bindings) == [mine[1]]
    assert second.remove(theirs)
    assert not second.bindings
    assert first.remove(mine[1])
    assert not there


def test_which_exchanges_lead_to_another_is_known_as_long_as_one_binding_does() -> None:
    there = BindingsTo()
    first, second = (Exchange(name, "direct", bindings_to=there) for name in "ab")
    bindings = [Binding.make(name, ("exchange", "x"), key, {}, "amqp") for name, key in ("a1", "a2", "b1")]
    for exchange, binding in zip((first, first, second), bindings, strict=True):
        exchange.add(binding)
    first.add(Binding.make("a", ("queue", "q"), "", {}, "amqp"))
    assert there.sources == {"x": {"a", "b"}}
    assert first.remove(bindings[0])
    assert there.sources == {"x": {"a", "b"}}
    assert first.remove(bindings[1])
    assert there.sources == {"x": {"b"}}
    assert second.remove(bindings[2])
    assert not there.sources
