"""The history of dead letters: tables against what RabbitMQ 3.10 was seen to write."""

from __future__ import annotations

from typing import Any

import pytest

from routing.queues.death_history import Death, barred_queues, came_by, carbon_copies, record

DEATH = Death("q", "expired", "x", ("k", "copy"), 1_700_000_000, "60000")
TABLE = {
    "count": 1,
    "reason": "expired",
    "queue": "q",
    "time": 1_700_000_000,
    "exchange": "x",
    "routing-keys": ["k", "copy"],
    "original-expiration": "60000",
}
LAST = {"x-last-death-queue": "q", "x-last-death-reason": "expired", "x-last-death-exchange": "x"}
FIRST = {"x-first-death-queue": "q", "x-first-death-reason": "expired", "x-first-death-exchange": "x"}
OTHER = {"queue": "other", "reason": "expired", "count": 7}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, FIRST | {"x-death": [TABLE]}),
        ("text", {"x-death": [TABLE]}),
        ([], {"x-death": [TABLE]}),
        ([OTHER], {"x-death": [TABLE, OTHER]}),
        # The same death again: the table counts, moves to the front and keeps its time and keys.
        (
            [OTHER, TABLE | {"count": 4, "time": 5}],
            {"x-death": [TABLE | {"count": 5, "time": 5}, OTHER]},
        ),
        ([{"queue": "q", "reason": "expired"}], {"x-death": [{"queue": "q", "reason": "expired", "count": 2}]}),
        (
            [{"queue": "q", "reason": "expired", "count": 7}],
            {"x-death": [{"queue": "q", "reason": "expired", "count": 8}]},
        ),
        (
            [{"queue": "q", "reason": "expired", "count": "7"}],
            {"x-death": [{"queue": "q", "reason": "expired", "count": 2}]},
        ),
        (
            [1, {"queue": "q", "reason": "rejected", "count": 1}],
            {"x-death": [TABLE, 1, {"queue": "q", "reason": "rejected", "count": 1}]},
        ),
        # Tables from before equal ones were joined.
        ([TABLE, OTHER, TABLE | {"count": 3}], {"x-death": [TABLE | {"count": 5}, OTHER]}),
    ],
)
def test_a_death_is_recorded_as_rabbitmq_does(known: Any, expected: dict[str, Any]) -> None:
    assert record(known, DEATH) == expected | LAST


def test_a_message_without_expiration_has_none_in_its_history() -> None:
    (table,) = record(None, DEATH._replace(original_expiration=None))["x-death"]
    assert table == {name: value for name, value in TABLE.items() if name != "original-expiration"}


def died(queue: str, reason: str) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "count": 1}


@pytest.mark.parametrize(
    ("deaths", "reason", "barred"),
    [
        ([died("a", "expired")], "expired", {"a"}),
        ([died("a", "rejected")], "rejected", set()),
        (
            [died("a", "maxlen"), died("b", "expired"), died("c", "rejected"), died("d", "expired")],
            "maxlen",
            {"a", "b"},
        ),
        ([died("a", "delivery_limit"), died("a", "expired")], "delivery_limit", {"a"}),
        ([died("a", "expired"), "somebody else's", died("b", "expired")], "expired", {"a"}),
        ([died("a", "expired"), {"reason": "expired"}], "expired", {"a"}),
    ],
)
def test_queues_of_an_automatic_cycle_are_barred(deaths: list[Any], reason: str, barred: set[str]) -> None:
    assert barred_queues(deaths, reason) == barred


def test_a_message_came_to_a_queue_as_the_oldest_entry_of_it_says() -> None:
    deaths = [
        {"queue": "q", "exchange": "", "routing-keys": ["later"]}, {"queue": "r"},
        {"queue": "q", "exchange": "e", "routing-keys": ["first", "cc"]}, {"queue": "q", "exchange": "e"}, "no entry",
    ]  # fmt: skip
    assert came_by(deaths, "q") == ("e", "first")
    for no_history in (deaths[1:2], deaths[3:], [{"queue": "q", "exchange": 1, "routing-keys": [2]}], "q", None):
        assert came_by(no_history, "q") is None


@pytest.mark.parametrize(
    ("headers", "keys"),
    [({}, ()), ({"CC": ["a", "b"]}, ("a", "b")), ({"CC": ["a", 1]}, ("a",)), ({"CC": "a"}, ()), ({"BCC": ["a"]}, ())],
)
def test_further_keys_are_those_of_cc(headers: dict[str, Any], keys: tuple[str, ...]) -> None:
    assert carbon_copies(headers) == keys
