"""Copies of dead letters, column by column."""

from __future__ import annotations

from typing import Any

import pytest

import protocols.mqtt.adapter  # noqa: F401  (registers how its properties are read)
from protocols.amqp.adapter_properties import SpecialProperties, intern
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from routing.facts import pack
from routing.message import Properties, Slab
from routing.republishing.death_copies import CopyMaker, Target

PRIORITY_3 = pack(True, 3)


TO_DLX = Target("dlx", None)


def stored(raw: bytes) -> Properties:
    """The properties as the AMQP door stores them."""
    found = intern(raw, "guest")
    if isinstance(found, SpecialProperties):
        found = found.properties
    assert isinstance(found, Properties)
    return found


def amqp_slab(each: list[BasicProperties], keys: list[str] | None = None) -> Slab:
    """As the AMQP door makes it."""
    raws = [encode_properties(one) for one in each]
    facts = [stored(raw).facts for raw in raws]
    common = Properties("amqp", raws[0], persistent=True, facts=facts[0])
    bodies = [b"%d" % number for number in range(len(each))]
    if raws.count(raws[0]) == len(raws):
        return Slab("x", "k", common, bodies, keys=keys)
    return Slab("x", "k", common, bodies, keys=keys, raws=raws, facts=facts)


def copied(slab: Slab, target: Target = TO_DLX, indices: list[int] | None = None) -> CopyMaker:
    """Copies of messages that expired in queue q."""
    maker = CopyMaker("q", "expired", target, 5)
    indices = list(range(len(slab))) if indices is None else indices
    maker.add(slab, indices, None if slab.facts is None else [slab.facts[index] for index in indices])
    return maker


def headers(slab: Slab, index: int) -> dict[str, Any]:
    """Those of a copy."""
    return decode_properties(slab.properties_of(index).raw).headers or {}


def test_equal_messages_stay_a_uniform_slab() -> None:
    slab = amqp_slab([BasicProperties(delivery_mode=2, priority=3, expiration="7", headers={"h": 1})] * 100)
    (run,) = copied(slab, indices=list(range(10, 100))).runs
    copy = run.slab("dlx")
    assert (copy.exchange, copy.routing_key, copy.keys, copy.raws, copy.facts) == ("dlx", "k", None, None, None)
    assert copy.bodies == slab.bodies[10:]
    assert copy.properties.facts == PRIORITY_3
    properties = decode_properties(copy.properties.raw)
    assert (properties.expiration, properties.priority, properties.delivery_mode) == (None, 3, 2)
    assert properties.headers is not None
    assert properties.headers["h"] == 1
    assert properties.headers["x-death"] == [
        {
            "count": 1, "reason": "expired", "queue": "q", "time": 5, "exchange": "x", "routing-keys": ["k"],
            "original-expiration": "7",
        }
    ]  # fmt: skip


def test_varied_messages_keep_what_is_theirs() -> None:
    each = [
        BasicProperties(delivery_mode=2, message_id=str(number), priority=number % 4, expiration=str(number or 1))
        for number in range(50)
    ]
    (run,) = copied(amqp_slab(each, [f"k.{number % 7}" for number in range(50)])).runs
    copy = run.slab("dlx")
    for number in range(50):
        properties = decode_properties(copy.properties_of(number).raw)
        assert (properties.message_id, properties.expiration) == (str(number), None)
        (death,) = headers(copy, number)["x-death"]
        assert (death["original-expiration"], death["routing-keys"]) == (str(number or 1), [f"k.{number % 7}"])
        assert copy.key_of(number) == f"k.{number % 7}"
        assert copy.properties_of(number).facts == pack(True, number % 4)


@pytest.mark.parametrize(("key", "kept", "further"), [(None, ["a", "b"], ("a", "b")), ("rk", None, ())])
def test_carbon_copies(key: str | None, kept: list[str] | None, further: tuple[str, ...]) -> None:
    slab = amqp_slab([BasicProperties(delivery_mode=2, headers={"CC": ["a", "b"]})])
    (run,) = copied(slab, Target("dlx", key)).runs
    copy = run.slab("dlx")
    assert headers(copy, 0).get("CC") == kept
    assert run.like.further == further
    assert copy.routing_key == (key or "k")
    assert headers(copy, 0)["x-death"][0]["routing-keys"] == ["k", "a", "b"]


def test_copies_of_other_histories_travel_apart() -> None:
    plain = BasicProperties(delivery_mode=2)
    dead = BasicProperties(delivery_mode=2, headers={"x-death": [{"queue": "other", "reason": "expired", "count": 1}]})
    runs = copied(amqp_slab([plain, dead, dead, plain])).runs
    assert [(len(run.bodies), set(run.like.barred)) for run in runs] == [(1, {"q"}), (2, {"q", "other"}), (1, {"q"})]


def test_messages_of_protocols_without_headers_become_neutral() -> None:
    slab = Slab("amq.topic", "a.b", Properties("mqtt", b"\1", persistent=True), [b"1", b"2"])
    (run,) = copied(slab).runs
    copy = run.slab("dlx")
    neutral = copy.properties_of(1).neutral
    assert copy.properties.protocol == "neutral"
    assert neutral.persistent
    assert neutral.headers["x-death"][0]["routing-keys"] == ["a.b"]


def test_the_first_death_is_remembered_through_further_ones() -> None:
    slab = amqp_slab([BasicProperties(delivery_mode=2)])
    for queue, reason in (("first", "rejected"), ("second", "expired"), ("first", "rejected")):
        maker = CopyMaker(queue, reason, TO_DLX, 5)
        maker.add(slab, [0])
        slab = maker.runs[0].slab("dlx")
    found = headers(slab, 0)
    assert [(death["queue"], death["count"]) for death in found["x-death"]] == [("first", 2), ("second", 1)]
    assert (found["x-first-death-queue"], found["x-first-death-reason"]) == ("first", "rejected")
    assert found["x-first-death-exchange"] == "x"
    assert found["x-last-death-exchange"] == "dlx"
