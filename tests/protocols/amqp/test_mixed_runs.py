"""Publishes that differ in keys and properties: parsed together as they would be one by one, and delivered so."""

from __future__ import annotations

from typing import Any

import pika.frame
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.adapter_properties import facts_of, intern, ruled_facts
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import AmqpConnection
from protocols.amqp.errors import AmqpError, SyntaxFault
from protocols.amqp.mixed_deliveries import DeliveryHeads, MixedRun, RouteEnds
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties, fixed_parts
from protocols.amqp.publish_run import PublishRun
from routing.facts import pack
from routing.message import Properties
from tests.protocols.amqp.wire import HANDSHAKE, call, methods, publish

USER = "guest"
Message = tuple[str, str, bool, bytes, bytes]

short = st.text("abcé", max_size=5)
raws = st.builds(
    BasicProperties,
    content_type=st.none() | short,
    headers=st.none()
    | st.dictionaries(
        short | st.just("x-delay"), st.integers(-1, 9) | st.sampled_from([1 << 40, "7"]) | short, max_size=3
    ),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.sampled_from([0, 3, 255]),
    correlation_id=st.none() | short,
    expiration=st.none() | st.sampled_from(["0", "1000", "4294967296"]),
    message_id=st.none() | short,
    timestamp=st.none() | st.integers(0, 1 << 40),
    user_id=st.none() | st.just(USER),
    app_id=st.none() | short,
).map(encode_properties)
messages = st.lists(
    st.tuples(
        st.sampled_from(["", "x"]), st.sampled_from(["q", "r", "a.b"]), st.booleans() | st.just(False), raws,
        st.binary(max_size=40),
    ),
    max_size=60,
)  # fmt: skip


def connection() -> AmqpConnection:
    opened = AmqpConnection(
        AmqpConfig(),
        lambda data: None,
        lambda raw: intern(raw, USER),
        server_properties={},
        mechanisms=b"PLAIN",
        facts_of=lambda raw: facts_of(raw, USER),
        ruled_facts=ruled_facts,
    )
    opened.receive_data(HANDSHAKE + call(1, methods.ChannelOpen()))
    return opened


def bytes_of(sent: list[Message]) -> bytes:
    return b"".join(
        publish(key, body, exchange=exchange, raw=raw, mandatory=mandatory)
        for exchange, key, mandatory, raw, body in sent
    )


def flattened(events: list[Any]) -> list[Message]:
    found = []
    for run in events:
        assert isinstance(run, PublishRun)
        count = len(run.bodies)
        keys = [run.routing_key] * count if run.keys is None else run.keys
        own = [run.properties.raw] * count if run.raws is None else run.raws
        assert len(keys) == len(own) == count
        facts = [run.properties.facts] * count if run.facts is None else run.facts
        assert facts == [p.facts for p in (intern(raw, USER) for raw in own) if isinstance(p, Properties)]
        assert {fact & 1 for fact in facts} == {int(run.properties.persistent)}
        found += [(run.exchange, keys[i], run.mandatory, own[i], run.bodies[i]) for i in range(count)]
    return found


@settings(max_examples=300, deadline=None)
@given(messages, st.integers(1, 2000))
def test_runs_hold_what_was_published(sent: list[Message], read_bytes: int) -> None:
    data = bytes_of(sent)
    assert flattened(connection().receive_data(data)) == sent
    opened = connection()
    pieces = [data[at : at + read_bytes] for at in range(0, len(data), read_bytes)]
    assert flattened([event for piece in pieces for event in opened.receive_data(piece)]) == sent


def test_messages_that_differ_in_all_but_the_exchange_are_one_event() -> None:
    sent = [
        ("x", f"key.{i % 50}", False, encode_properties(BasicProperties(delivery_mode=2, message_id=str(i))), b"%d" % i)
        for i in range(1000)
    ]
    opened = connection()
    opened.receive_data(bytes_of(sent[:50]))
    (event,) = opened.receive_data(bytes_of(sent))
    assert flattened([event]) == sent


def test_an_expiration_that_is_none_ends_a_run_of_others() -> None:
    lives = [str(100 + at) for at in range(40)]
    lives[25] = "1_0"
    sent = [("x", "q", False, encode_properties(BasicProperties(priority=at, expiration=life)), b"m" * at)
            for at, life in enumerate(lives)]  # fmt: skip
    events = connection().receive_data(bytes_of(sent))
    assert flattened(events[:1]) == sent[:25]
    assert isinstance(events[1], PublishRun)
    assert isinstance(events[1].properties, AmqpError)
    assert flattened(events[2:]) == sent[26:]


@pytest.mark.parametrize(
    "bad",
    [
        BasicProperties(expiration="soon"),
        BasicProperties(user_id="somebody else"),
    ],
)
def test_what_rabbitmq_refuses_is_refused_after_what_came_before(bad: BasicProperties) -> None:
    good = [("x", "q", False, encode_properties(BasicProperties(message_id=str(i))), b"m") for i in range(3)]
    events = connection().receive_data(bytes_of([*good, ("x", "q", False, encode_properties(bad), b"bad"), *good]))
    assert flattened(events[:1]) == good
    assert isinstance(events[1], PublishRun)
    assert isinstance(events[1].properties, AmqpError)
    assert flattened(events[2:]) == good


def test_malformed_properties_are_an_error_after_what_came_before() -> None:
    good = [("x", "q", False, encode_properties(BasicProperties(message_id=str(i))), b"m") for i in range(3)]
    events = connection().receive_data(bytes_of([*good, ("x", "q", False, b"\x00\x80\x09id", b"bad")]))
    assert flattened(events[:-1]) == good
    assert isinstance(events[-1], AmqpError)
    assert events[-1].name == "SYNTAX_ERROR"


of_others = st.builds(lambda user: encode_properties(BasicProperties(user_id=user, priority=3)), short)


@given(raws | of_others | st.binary(max_size=30))
@settings(max_examples=500)
def test_facts_are_what_decoding_says(raw: bytes) -> None:
    try:
        found = decode_properties(raw)
    except SyntaxFault:
        assert facts_of(raw, USER) is None
        return
    properties = intern(raw, USER)
    if isinstance(properties, AmqpError):
        assert facts_of(raw, USER) is None
        return
    delay = (found.headers or {}).get("x-delay", 0)
    delay = int(delay) if isinstance(delay, str) and delay.isdigit() else delay
    ttl_ms = None if found.expiration is None else int(found.expiration)
    expected = pack(
        found.delivery_mode == 2,
        found.priority or 0,
        ttl_ms,
        delay if isinstance(delay, int) and not isinstance(delay, bool) else 0,
    )
    assert isinstance(properties, Properties)
    assert facts_of(raw, USER) == properties.facts == expected
    assert properties.persistent == (found.delivery_mode == 2)


@given(raws, st.binary(max_size=30), st.integers(0, 1 << 20))
@settings(max_examples=500)
def test_lists_that_agree_in_what_counts_ask_for_the_same(raw: bytes, noise: bytes, at: int) -> None:
    at %= len(raw)
    other = (raw[:at] + noise + raw[at + len(noise) :])[: len(raw)]
    read_fixed, ruling = fixed_parts(raw)
    if read_fixed(other) == read_fixed(raw):
        facts = facts_of(raw, USER)
        if facts is not None and ruling is not None:
            priorities = b"" if ruling.priority_at is None else other[ruling.priority_at :][:1]
            digits = [other[place : place + 1] for place in ruling.expiration or ()]
            is_ruled = not digits or b"".join(digits).isdigit()
            delays = [] if ruling.delay is None else list(ruling.delay.unpack(other))
            (facts,) = ruled_facts(facts, priorities, digits, delays) if is_ruled else [None]
        assert facts_of(other, USER) == facts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["q", "key.é"]), raws, st.binary(max_size=40)), min_size=1, max_size=20))
def test_deliveries_are_what_another_codec_reads(sent: list[tuple[str, bytes, bytes]]) -> None:
    ends, heads = RouteEnds("x", True), DeliveryHeads(3, "tag")
    keys, property_lists, bodies = zip(*sent)
    run = MixedRun(3, list(map(ends.__getitem__, keys)), property_lists, bodies)
    data = run.encode(heads, 250)
    assert run.encode_again(heads, 250) == data
    for number, (key, raw, body) in enumerate(sent, 250):
        size, method = pika.frame.decode_frame(data)
        data = data[size:]
        assert isinstance(method.method, pika.spec.Basic.Deliver)
        assert (method.channel_number, method.method.delivery_tag) == (3, number)
        assert (method.method.consumer_tag, method.method.exchange) == ("tag", "x")
        assert (method.method.routing_key, method.method.redelivered) == (key, True)
        size, header = pika.frame.decode_frame(data)
        assert header.body_size == len(body)
        assert data[19 : size - 1] == raw
        data = data[size:]
        if body:
            size, content = pika.frame.decode_frame(data)
            assert content.fragment == body
            data = data[size:]
    assert not data
