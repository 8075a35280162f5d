"""Policies: which applies, what it says together with the operator's, and that queues and exchanges follow at once."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.errors import InvalidArgument, LimitExceeded, NotAllowed, NotFound, StorageUnavailable
from routing.message import NeutralProperties
from routing.queues.settings import QueueSettings
from routing.topology.policies import KINDS_OF_EXCHANGE, Policies, check_policy, kinds_of_queue, policy_key
from tests.routing.harness import Engine, engine
from tests.support.turns import Turns


def settings(running: Engine, queue: str, vhost: str = "/") -> QueueSettings:
    return running.broker.topology.vhosts[vhost].queues[queue].settings


def policies(*told: tuple[str, str, dict[str, Any], int, str], operator: bool = False) -> Policies:
    """A table of (name, pattern, definition, priority, apply to)."""
    found = Policies()
    for name, pattern, definition, priority, apply_to in told:
        value = check_policy(name, pattern, definition, priority, apply_to, operator=operator)
        found.apply(policy_key("/", name, operator=operator), value)
    return found


CLASSIC, QUORUM, STREAM = (kinds_of_queue({"x-queue-type": kind}) for kind in ("classic", "quorum", "stream"))


@pytest.mark.parametrize(
    ("kinds", "name", "expected"),
    [
        (CLASSIC, "orders.eu", "high"),
        (CLASSIC, "reorders", "low"),
        (CLASSIC, "other", None),
        (kinds_of_queue({}), "classic only", "classic"),
        (QUORUM, "classic only", None),
        (QUORUM, "quorum only", "quorum"),
        (CLASSIC, "quorum only", None),
        (STREAM, "stream only", "stream"),
        (STREAM, "tie", "a"),
        (KINDS_OF_EXCHANGE, "tie", None),
        (KINDS_OF_EXCHANGE, "exchange", "exchange"),
        (KINDS_OF_EXCHANGE, "orders.eu", "low"),
        (CLASSIC, "exchange", None),
    ],
)
def test_which_policy_applies(kinds: tuple[str, ...], name: str, expected: str | None) -> None:
    some = {"max-length": 1}
    found = policies(
        ("low", "orders", some, 0, "all"),
        ("high", r"^orders\.", some, 5, "queues"),
        ("classic", "^classic", some, 9, "classic_queues"),
        ("quorum", "^quorum", some, 9, "quorum_queues"),
        ("stream", "^stream", some, 9, "streams"),
        ("b", "^tie$", some, 1, "queues"),
        ("a", "^tie$", some, 1, "queues"),
        ("exchange", "^exch", {"delayed": True}, -1, "exchanges"),
    )
    policy, operator = found.of(kinds, name)
    assert (policy.name if policy else None, operator) == (expected, None)


@pytest.mark.parametrize(
    ("own", "operator", "together"),
    [
        ({"max-length": 5}, {"max-length": 9}, {"max-length": 5}),
        ({"max-length": 9}, {"max-length": 5}, {"max-length": 5}),
        ({"overflow": "reject-publish"}, {"max-length": 5}, {"overflow": "reject-publish", "max-length": 5}),
        ({"delivery-limit": -1}, {"delivery-limit": 5}, {"delivery-limit": 5}),
        ({"delivery-limit": 3}, {"delivery-limit": -1}, {"delivery-limit": 3}),
        (None, {"message-ttl": 1000, "expires": 5}, {"message-ttl": 1000, "expires": 5}),
        ({"message-ttl": 0}, None, {"message-ttl": 0}),
    ],
)
def test_of_two_limits_the_lower_counts(
    own: dict[str, Any] | None, operator: dict[str, Any] | None, together: dict[str, Any]
) -> None:
    found = Policies()
    for definition, is_operator in ((own, False), (operator, True)):
        if definition is not None:
            value = check_policy("p", "", definition, 0, "all", operator=is_operator)
            found.apply(policy_key("/", "p", operator=is_operator), value)
    assert found.definition_of(CLASSIC, "q") == together


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"definition": {}}, "no policy provided"),
        ({"definition": {"foo": 1}}, "foo: not recognised as policy settings"),
        ({"definition": {"queue-type": "quorum"}}, "queue-type: not recognised as policy settings"),
        ({"definition": {"max-length": "x"}}, "'x' is no valid value of max-length"),
        ({"definition": {"max-length": -1}}, "-1 is no valid value of max-length"),
        ({"definition": {"overflow": "explode"}}, "'explode' is no valid value of overflow"),
        ({"definition": {"delayed": 1}}, "1 is no valid value of delayed"),
        ({"definition": {"retry": []}}, r"\[\] is no valid value of retry"),
        ({"definition": {"alternate-exchange": 5}}, "5 is no valid value of alternate-exchange"),
        ({"definition": {"dead-letter-exchange": "x"}, "operator": True}, "not recognised as operator policy settings"),
        ({"pattern": "^q("}, "pattern should be regular expression but is invalid: missing \\)"),
        ({"pattern": "(?<=a)b"}, "pattern should be regular expression but is invalid: invalid perl operator"),
        ({"pattern": "x" * 1001}, "a pattern has at most 1000 characters"),
        ({"apply_to": "odd"}, "apply-to 'odd' unrecognised"),
        ({"priority": "1"}, "priority should be a whole number"),
        ({"priority": True}, "priority should be a whole number"),
        ({"name": ""}, "a policy's name has 1 to 255 bytes"),
    ],
)
async def test_what_is_refused(changed: dict[str, Any], text: str) -> None:
    async with engine(MemoryFiles()) as running:
        told = {"name": "p", "pattern": "", "definition": {"max-length": 1}} | changed
        with pytest.raises(InvalidArgument, match=f"^Validation failed: .*{text}"):
            await running.broker.set_policy(**told)
        assert not running.broker.topology.vhosts["/"].policies.own


def test_keys_of_mirrors_and_federation_are_taken() -> None:
    check_policy(
        "p", "", {"ha-mode": "exactly", "ha-params": 2, "federation-upstream-set": "all"}, 0, "all", operator=False
    )


async def test_queues_follow_at_once_and_through_restarts() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await running.queue("orders", arguments={"x-max-length": 5})
        await running.queue("other")
        client = running.client()
        client.publish("orders", *range(5))
        running.turn()
        await broker.set_policy("limit", "^ord", {"max-length": 3, "message-ttl": 60_000})
        running.turn()
        assert (settings(running, "orders").max_length, settings(running, "orders").message_ttl_ms) == (3, 60_000)
        assert settings(running, "other") == QueueSettings()
        assert running.count("orders") == 3
        await broker.set_policy("cap", "", {"max-length": 2}, operator=True)
        running.turn()
        assert (running.count("orders"), settings(running, "other").max_length) == (2, 2)
        await running.queue("orders too")
        await broker.declare_queue("orders here", exclusive=True, owner=client)
        assert settings(running, "orders too") == settings(running, "orders here") == settings(running, "orders")
    async with engine(files) as running:
        broker = running.broker
        assert (settings(running, "orders").max_length, settings(running, "orders").message_ttl_ms) == (2, 60_000)
        await broker.delete_policy("cap", operator=True)
        await broker.set_policy("limit", "^ord", {"max-length": 4})
        assert (settings(running, "orders").max_length, settings(running, "orders").message_ttl_ms) == (4, None)
        await broker.delete_policy("limit")
        assert (settings(running, "orders").max_length, settings(running, "orders too").max_length) == (5, None)
        with pytest.raises(NotFound, match="no policy 'limit' in vhost '/'"):
            await broker.delete_policy("limit")
    async with engine(files) as running:
        assert settings(running, "orders") == QueueSettings.effective({"x-max-length": 5})


async def test_cached_routes_know_of_a_limit_that_a_policy_brings() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        client.publish("q", 1, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 1)
        await running.broker.set_policy("p", "q", {"max-length": 1, "overflow": "reject-publish"})
        client.publish("q", 2, confirm=True)
        running.turn()
        assert client.events[-1] == ("refuse", 2, 2)
        assert running.count("q") == 1


async def test_exchanges_follow() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker, client = running.broker, running.client()
        await broker.declare_exchange("x", "direct", durable=True)
        await broker.declare_exchange("own", "direct", arguments={"alternate-exchange": "amq.direct"})
        await running.queue("spare")
        await running.bind("amq.fanout", "spare")
        client.publish("k", 1, exchange="x", mandatory=True)
        await broker.set_policy("spare", "^(x|own)$", {"alternate-exchange": "amq.fanout"}, apply_to="exchanges")
        client.publish("k", 2, exchange="x", mandatory=True)
        client.publish("k", 3, exchange="own", mandatory=True)
        assert [event[1] for event in client.events] == [["1"], ["3"]], "the argument goes before the policy"
        await broker.set_policy("late", "^amq.topic$", {"delayed": True})
        vhost = broker.topology.vhost("/")
        reached = vhost.router.resolve(vhost.exchange("amq.topic"), ("k",), NeutralProperties)
        assert reached.delayed
    async with engine(files) as running:
        client = running.client()
        client.publish("k", 4, exchange="x", mandatory=True)
        await running.broker.delete_policy("spare")
        client.publish("k", 5, exchange="x", mandatory=True)
        assert client.events == [("returned", ["5"], "NO_ROUTE")]
        assert [body for body, _ in await running.drain("spare")] == ["2", "4"]


async def test_virtual_hosts_have_their_own_and_a_refusing_disk_changes_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, policies_max=1) as running:
        broker = running.broker
        await broker.set_vhost("v")
        for vhost in ("/", "v"):
            await broker.declare_queue("q", durable=True, vhost=vhost)
        await broker.set_policy("p", "", {"max-length": 7}, vhost="v")
        assert (settings(running, "q").max_length, settings(running, "q", "v").max_length) == (None, 7)
        with pytest.raises(LimitExceeded):
            await broker.set_policy("p2", "", {"max-length": 7}, vhost="v")
        with pytest.raises(NotAllowed):
            await broker.set_policy("p", "", {"max-length": 7}, vhost="no")
        files.failing["write"] = 5
        for act in (
            broker.set_policy("p", "", {"max-length": 1}),
            broker.set_policy("p", "", {"max-length": 1}, vhost="v"),
            broker.delete_policy("p", vhost="v"),
        ):
            with pytest.raises(StorageUnavailable):
                await act
        assert (settings(running, "q").max_length, settings(running, "q", "v").max_length) == (None, 7)
        files.failing.clear()
        (catalog, *_) = broker.storage.stores
        await running.until(lambda: catalog.error is None)
        await broker.delete_vhost("v")
        await broker.set_vhost("v")
        await broker.declare_queue("q", vhost="v")
        assert settings(running, "q", "v").max_length is None
        assert not list(broker.topology.catalog.entries("policy"))


async def test_many_queues_are_told_in_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.bites.BITE_S", 0)
    async with engine(MemoryFiles()) as running:
        for number in range(1200):
            await running.queue(f"q{number}", durable=False)
        others = Turns()
        async with trio.open_nursery() as nursery:
            await running.broker.set_policy("warm", "^no$", {"max-length": 1})
            nursery.start_soon(others.take)
            await running.broker.set_policy("p", "1", {"max-length": 1})
            nursery.cancel_scope.cancel()
        assert others.count >= 2
        assert all(
            (queue.settings.max_length == 1) == ("1" in name) for name, queue in running.broker.topology.queues.items()
        )
