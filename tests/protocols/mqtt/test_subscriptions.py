"""Options of subscriptions, and what messages keep of their publishers."""

from __future__ import annotations

from itertools import product

import pytest

from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Subscriptions, from_arguments, to_arguments
from protocols.mqtt.raw import block_of, head_of, mark_in, mark_of


@pytest.mark.parametrize(
    "options", [SubscriptionOptions(*one) for one in product((0, 1, 2), (False, True), (False, True), (0, 268_435_455))]
)
def test_options_come_back_from_arguments(options: SubscriptionOptions) -> None:
    assert from_arguments(to_arguments(options)) == options


def test_arguments_of_bindings_that_others_made_are_the_least() -> None:
    assert from_arguments({}) == SubscriptionOptions()
    assert from_arguments({"mqtt-qos": "2", "mqtt-subscription-id": "x"}) == SubscriptionOptions()


@pytest.mark.parametrize("block", [b"", b"\x01\x01"])
@pytest.mark.parametrize("mark", [b"", mark_of("device 7")])
@pytest.mark.parametrize("retain", [False, True])
def test_raw_bytes_are_flags_mark_and_block(block: bytes, mark: bytes, retain: bool) -> None:
    raw = head_of(2, retain=retain, mark=mark) + block
    assert raw[0] == 2 | retain << 7 | bool(mark) << 6
    assert mark_in(raw) == mark
    assert block_of(raw) == block


def test_raw_bytes_of_old_messages_have_nothing_behind_the_flags() -> None:
    for raw in (b"", b"\1"):
        assert mark_in(raw) == block_of(raw) == b""


def test_marks_tell_publishers_apart() -> None:
    assert len({mark_of(f"device {number}") for number in range(1000)} | {mark_of("\ud800")}) == 1001


def test_identifiers_are_told_in_their_order_whatever_the_filters() -> None:
    """No clause asks for it; Paho C's own tests do, and who reads a capture."""
    subscriptions = Subscriptions()
    patterns = ["a.b", "a.+", "+.b", "#", "a.#", "+.+"]
    for number, pattern in enumerate(patterns, 1):
        subscriptions.grant(pattern, SubscriptionOptions(subscription_id=number))
    assert subscriptions.terms_for("a.b").subscription_ids == b"".join(bytes((0x0B, one)) for one in range(1, 7))
