"""Properties of messages and errors of the engine in the terms of AMQP, at the adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols.amqp.adapter_errors import REPLIES, to_amqp_error
from protocols.amqp.adapter_properties import from_neutral, intern, raw_of, to_neutral
from protocols.amqp.errors import AmqpError
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from routing import errors
from routing.facts import delay_ms_of, ttl_ms_of
from routing.message import NeutralProperties, Properties, register_decoder
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import PERSISTENT

NEUTRAL = NeutralProperties(
    content_type="text/plain", content_encoding="utf-8", headers={"a": 1}, persistent=True, priority=3,
    correlation_id=b"\xff\x00", reply_to="reply", expiration_ms=60_000, message_id="m", timestamp_s=1_700_000_000,
    type="t", user_id="u", app_id="app",
)  # fmt: skip


def test_neutral_properties_make_the_round_trip() -> None:
    assert to_neutral(from_neutral(NEUTRAL)) == replace(NEUTRAL, user_id=None)  # others' is not checked
    assert to_neutral(from_neutral(NeutralProperties())) == NeutralProperties()


def test_what_amqp_cannot_hold_becomes_a_header() -> None:
    huge = 1 << 70
    found = decode_properties(
        from_neutral(
            NeutralProperties(
                headers={"huge": huge, "bad": "\ud800", "n" * 300: 1},
                reply_to="r" * 256,
                message_id="m" * 255,
                priority=999,
            )
        )
    )
    assert found.headers == {"huge": str(huge), "bad": "?", "millrace.reply-to": "r" * 256}
    assert (found.reply_to, found.message_id, found.priority) == (None, "m" * 255, 255)


async def test_messages_of_other_protocols_are_encoded_once(world: World) -> None:
    register_decoder("test-other", lambda raw: NeutralProperties(content_type=raw.decode()))
    properties = Properties("test-other", b"text/plain", persistent=False)
    raw = raw_of(properties)
    assert raw_of(properties) is raw
    assert decode_properties(raw) == BasicProperties(content_type="text/plain", delivery_mode=1)


def test_equal_properties_are_one_object() -> None:
    first = intern(PERSISTENT, "guest")
    assert isinstance(first, Properties)
    assert first is intern(bytes(PERSISTENT), "other")
    assert (first.persistent, first.raw, first.protocol) == (True, PERSISTENT, "amqp")
    assert Properties.from_log_tag(first.log_tag).neutral == first.neutral


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("0", True), ("4294967296", True), ("4294967296000", False), ("315360000000", True), ("315360000001", False),
        ("+5", True), ("-0", True), ("-1", False), ("", False), ("²", False),
    ],
)  # fmt: skip
def test_expirations(text: str, legal: bool) -> None:
    found = intern(encode_properties(BasicProperties(expiration=text)), "guest")
    assert isinstance(found, Properties if legal else AmqpError)
    if isinstance(found, Properties):
        assert ttl_ms_of(found.facts) == int(text)


@pytest.mark.parametrize(
    ("header", "delay_ms"), [(5, 5), (5.9, 5), ("5", 5), ("+5", 5), ("-5", 0), ("5 s", 0), ("9" * 30, 0), (True, 0)]
)
def test_delays_may_be_texts(header: object, delay_ms: int) -> None:
    found = intern(encode_properties(BasicProperties(headers={"x-delay": header})), "guest")
    assert isinstance(found, Properties)
    assert delay_ms_of(found.facts) == delay_ms


def test_a_user_id_must_be_ones_own() -> None:
    raw = encode_properties(BasicProperties(user_id="guest"))
    assert isinstance(intern(raw, "guest"), Properties)
    assert isinstance(intern(raw, "other"), AmqpError)
    assert isinstance(intern(raw, "other", lambda: True), Properties)


def test_every_engine_error_has_a_reply() -> None:
    kinds = {errors.BrokerError, *errors.BrokerError.__subclasses__()}
    assert kinds <= set(REPLIES)
    for kind, name in REPLIES.items():
        error = to_amqp_error(kind("why"), 3, 0x32000A)
        assert (error.reply_text, error.channel, error.class_id, error.method_id) == (f"{name} - why", 3, 50, 10)
    assert to_amqp_error(errors.NotFound("x"), 3, 0).closes_connection is False
    assert to_amqp_error(errors.StorageUnavailable("x"), 3, 0).closes_connection is True
