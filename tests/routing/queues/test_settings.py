"""Arguments of queues and policies: what is refused, and what applies when both speak."""

from __future__ import annotations

from typing import Any

import pytest

from routing.errors import InvalidArgument
from routing.queues.settings import QUORUM_DELIVERY_LIMIT, QUORUM_PRIORITY_MAX, QueueSettings, check_arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": "abc"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length": True}, '"expected integer, got bool"'),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-dead-letter-routing-key": 1, "x-dead-letter-exchange": 1}, "in queue 'q' in vhost 'v'"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256}, "{longer_than_255_bytes_or_no_text}"),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "\ud800"}, "{longer_than_255_bytes_or_no_text}"),
        ({"x-overflow": "explode"}, "invalid_overflow"),
        ({"x-single-active-consumer": 1}, "{unacceptable_type,signedint}"),
        ({"x-retry": []}, "{not_a_list_of_milliseconds}"),
        ({"x-retry": [1, -1]}, "{value_negative,-1}"),
        ({"x-retry": ["1s", "5 s"]}, "{not_milliseconds_or_an_interval_up_to_10Y}"),
        ({"x-cache-ttl": 1, "x-message-deduplication": True}, '{not_known_here,"x-deduplication-window-ms is"}'),
        ({"x-max-age": "1D"}, "of queue type rabbit_classic_queue"),
        ({"x-queue-type": "quorum", "x-queue-mode": "lazy"}, "of queue type rabbit_quorum_queue"),
    ],
)
def test_senseless_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_arguments("q", "v", arguments)
    text = str(caught.value)
    assert text.startswith(("invalid arg '", "invalid type 'signedint' for arg '"))
    assert f"arg '{list(arguments)[-1]}'" in text
    assert "queue 'q' in vhost 'v'" in text
    assert str(caught.value).endswith(reason)


def test_arguments_at_their_limits_and_unknown_ones_are_taken() -> None:
    check_arguments(
        "q",
        "/",
        {
            "x-message-ttl": 0, "x-expires": 1, "x-max-priority": 255, "x-max-length": 0, "x-queue-mode": "lazy",
            "x-unknown": object(), "anything": 1, "x-delivery-limit": -1, "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "k" * 253 + "\udcff\udcff", "x-message-deduplication": False,
        },
    )  # fmt: skip


def test_the_lower_limit_and_the_argument_count() -> None:
    found = QueueSettings.effective(
        {"x-message-ttl": 500, "x-max-length": 10, "x-dead-letter-exchange": "mine", "x-max-priority": 5},
        {"message-ttl": 100, "max-length": 20, "dead-letter-exchange": "theirs", "expires": 7, "retry": ["1s", 2]},
    )
    assert found.message_ttl_ms == 100
    assert found.max_length == 10
    assert found.dead_letter_exchange == "mine"
    assert found.expires_ms == 7
    assert found.priority_max == 5
    assert found.retry_ms == (1000, 2)
    assert not found.is_plain
    assert QueueSettings.effective({}).is_plain
    assert not QueueSettings.effective({"x-max-length": 0}).is_plain


def test_a_quorum_queue_has_a_delivery_limit_unless_it_is_switched_off() -> None:
    assert QueueSettings.effective({}).delivery_limit is None
    assert QueueSettings.effective({"x-queue-type": "quorum"}).delivery_limit == QUORUM_DELIVERY_LIMIT
    assert QueueSettings.effective({"x-queue-type": "quorum", "x-delivery-limit": 3}).delivery_limit == 3
    assert QueueSettings.effective({"x-queue-type": "quorum"}, {"delivery-limit": 2}).delivery_limit == 2
    assert QueueSettings.effective({"x-queue-type": "quorum", "x-delivery-limit": -1}).delivery_limit is None


def test_a_quorum_queue_tells_priorities_apart_unless_it_is_told_otherwise() -> None:
    quorum = {"x-queue-type": "quorum"}
    assert QueueSettings.effective(quorum).priority_max == QUORUM_PRIORITY_MAX == 31
    assert QueueSettings.effective(quorum | {"x-max-priority": 5}).priority_max == 5
    assert QueueSettings.effective(quorum, {"max-priority": 5}).priority_max == 5
    assert not QueueSettings.effective(quorum | {"x-max-priority": 0}).priority_max
    assert not QueueSettings.effective(quorum | {"x-group-by": "routing-key"}).priority_max
    assert not QueueSettings.effective({"x-queue-type": "classic"}).priority_max
