"""Arguments of streams and of their consumers: what RabbitMQ 3.10 takes and what it answers otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from routing.config import BrokerConfig
from routing.errors import InvalidArgument, PreconditionFailed
from routing.topics.stream_settings import (
    ConsumerSettings,
    Origin,
    Start,
    check_adoption,
    check_declaration,
    consumer_settings,
    interval_ms,
    topic_config,
    topic_name,
)
from routing.topics.topic_config import log_config
from routing.topology.plans import require_valid_topic_name

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
LARGEST = BrokerConfig().message_bytes_max + (1 << 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7D", 7 * DAY_MS),
        ("1h", 3_600_000),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1M", 30 * DAY_MS),
        ("1Y", 365 * DAY_MS),
        ("0s", 0),
        ("1w", None),
        ("D", None),
        ("7", None),
        ("", None),
        ("-1h", None),
        ("1.5h", None),
        ("1 h", None),
        ("1h ", None),
        ("\u0661h", None),
        ("9999999999h", None),
    ],
)
def test_intervals(text: str, expected: int | None) -> None:
    assert interval_ms(text) == expected


NOT_OF_STREAMS = "invalid arg '{0}' for queue 's' in vhost '/' of queue type rabbit_stream_queue"
INVALID = "invalid arg '{0}' for queue 's' in vhost '/': {1}"

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"durable": False}, {}, "invalid property 'non-durable' for queue 's' in vhost '/'"),
    ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for queue 's' in vhost '/'"),
    ({"auto_delete": True, "durable": False}, {}, "invalid property 'auto-delete' for queue 's' in vhost '/'"),
    ({"name": ""}, {}, "Cannot declare a server-named queue for type rabbit_stream_queue"),
    ({}, {"x-max-age": "1w"}, INVALID.format("x-max-age", "invalid_max_age")),
    ({}, {"x-max-age": 7}, INVALID.format("x-max-age", "{unacceptable_type,signedint}")),
    ({}, {"x-max-length-bytes": -1}, INVALID.format("x-max-length-bytes", "{value_negative,-1}")),
    ({}, {"x-max-length-bytes": "a"}, INVALID.format("x-max-length-bytes", '"expected integer, got longstr"')),
    (
        {},
        {"x-stream-max-segment-size-bytes": -5},
        INVALID.format("x-stream-max-segment-size-bytes", "{value_negative,-5}"),
    ),
    (
        {},
        {"x-stream-max-segment-size-bytes": 3_000_000_001},
        "Exceeded max value for x-stream-max-segment-size-bytes",
    ),
    ({}, {"x-queue-leader-locator": "foo"}, INVALID.format("x-queue-leader-locator", "invalid_queue_locator_arg")),
    ({}, {"x-initial-cluster-size": 0}, INVALID.format("x-initial-cluster-size", "{value_zero,0}")),
    *(
        ({}, {argument: 1}, NOT_OF_STREAMS.format(argument))
        for argument in ("x-message-ttl", "x-expires", "x-max-length", "x-max-priority", "x-delivery-limit")
    ),
    ({}, {"x-dead-letter-exchange": "d"}, NOT_OF_STREAMS.format("x-dead-letter-exchange")),
    ({}, {"x-single-active-consumer": True}, NOT_OF_STREAMS.format("x-single-active-consumer")),
]


@pytest.mark.parametrize(("properties", "arguments", "text"), REFUSED)
def test_declarations_that_are_refused(properties: dict[str, Any], arguments: dict[str, Any], text: str) -> None:
    asked = {"name": "s", "durable": True, "exclusive": False, "auto_delete": False} | properties
    with pytest.raises(PreconditionFailed) as caught:
        check_declaration(asked.pop("name"), "/", **asked, arguments={"x-queue-type": "stream"} | arguments)
    assert str(caught.value) == text


def test_what_is_declared_becomes_the_configuration_of_a_topic() -> None:
    broker = BrokerConfig()
    for arguments, expected in [
        ({}, (-1, -1, broker.topic_segment_bytes)),
        ({"x-max-age": "1h"}, (3_600_000, -1, broker.topic_segment_bytes)),
        ({"x-max-length-bytes": 80 << 20}, (-1, 80 << 20, 10 << 20)),
        ({"x-max-length-bytes": 1000}, (-1, 1000, 1 << 20)),
        ({"x-max-length-bytes": 1 << 50}, (-1, 1 << 50, broker.topic_segment_bytes)),
        ({"x-stream-max-segment-size-bytes": 5000, "x-max-length-bytes": 1 << 20}, (-1, 1 << 20, 5000)),
        ({"x-stream-max-segment-size-bytes": 0}, (-1, -1, 1 << 10)),
        ({"x-stream-max-segment-size-bytes": 3_000_000_000}, (-1, -1, 1 << 31)),
        ({"x-unknown": 1}, (-1, -1, broker.topic_segment_bytes)),
    ]:
        check_declaration("s", "/", durable=True, exclusive=False, auto_delete=False, arguments=arguments)
        settings = log_config(topic_config(arguments, broker), broker)
        assert (settings.retention_ms, settings.retention_bytes, settings.segment_bytes) == expected, arguments
        assert settings.message_bytes_max == LARGEST


def test_a_topic_that_is_there_is_taken_over_if_it_can_be() -> None:
    broker = BrokerConfig()
    check_adoption("t", 1, {}, {}, broker)
    check_adoption("t", 1, {"retention.ms": "3600000"}, {"x-max-age": "1h"}, broker)
    with pytest.raises(PreconditionFailed, match="topic 't' has 3 partitions, a stream has one"):
        check_adoption("t", 3, {}, {}, broker)
    with pytest.raises(PreconditionFailed, match=r"received '2h' but retention.ms of the topic is '3600"):
        check_adoption("t", 1, {"retention.ms": "3600000"}, {"x-max-age": "2h"}, broker)
    with pytest.raises(PreconditionFailed, match=r"received '1h' but retention.ms of the topic is none"):
        check_adoption("t", 1, {}, {"x-max-age": "1h"}, broker)


def test_every_name_has_a_topic_of_its_own() -> None:
    assert topic_name("orders.eu-1_x") == "orders.eu-1_x"
    assert topic_name("orders eu/ü") == "_q.orders_20eu_2F_C3_BC"
    assert topic_name("__x") == "__x"
    names = ["a", "a_20b", "a b", "_q.a", "_q.a_20b", "__x", "__queues", ".", "..", "_v.a.b", "ä" * 20, "x/a"]
    hosts = ["/", "a", "x", "x.a", "x_a", "", "_q."]
    topics = {topic_name(name, host) for name in names for host in hosts}
    assert len(topics) == len(names) * len(hosts)
    for topic in topics:
        require_valid_topic_name(topic)
    with pytest.raises(InvalidArgument, match="too long for a stream"):
        topic_name("ä" * 60)


def at(origin: Origin, value: int = 0, *, tracked: bool = False) -> ConsumerSettings:
    return ConsumerSettings(Start(origin, value), tracked)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, at(Origin.NEXT)),
        ({"x-stream-offset": "first"}, at(Origin.FIRST)),
        ({"x-stream-offset": b"first"}, at(Origin.FIRST)),
        ({"x-stream-offset": "last"}, at(Origin.LAST)),
        ({"x-stream-offset": "next"}, at(Origin.NEXT)),
        ({"x-stream-offset": 0}, at(Origin.OFFSET, 0)),
        ({"x-stream-offset": 1 << 40}, at(Origin.OFFSET, 1 << 40)),
        ({"x-stream-offset": -3}, at(Origin.END, 3)),
        ({"x-stream-offset": "1h"}, at(Origin.TIME, NOW_MS - 3_600_000)),
        ({"x-stream-offset": datetime.fromtimestamp(1000, UTC)}, at(Origin.TIME, 1_000_000)),
        ({"x-stream-offset": None}, at(Origin.FIRST, tracked=True)),
        ({"x-stream-automatic-offset-tracking": True}, at(Origin.FIRST, tracked=True)),
        ({"x-stream-automatic-offset-tracking": "true", "x-stream-offset": 5}, at(Origin.OFFSET, 5, tracked=True)),
        ({"x-stream-automatic-offset-tracking": False}, at(Origin.NEXT)),
    ],
)
def test_where_a_consumer_begins(arguments: dict[str, Any], expected: ConsumerSettings) -> None:
    assert consumer_settings("queue 's' in vhost '/'", "mine", arguments, NOW_MS) == expected


def test_a_tag_that_the_server_chose_is_not_remembered() -> None:
    assert consumer_settings("queue 's' in vhost '/'", "amq.ctag-x", {"x-stream-offset": None}, NOW_MS) == at(
        Origin.FIRST
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-stream-offset": "5"}, '{invalid_stream_offset_arg,{longstr,<<"5">>}}'),
        ({"x-stream-offset": "FIRST"}, '{invalid_stream_offset_arg,{longstr,<<"FIRST">>}}'),
        ({"x-stream-offset": True}, "{invalid_stream_offset_arg,bool}"),
        ({"x-stream-offset": {"a": 1}}, "{invalid_stream_offset_arg,table}"),
        ({"x-stream-offset": 1.5}, "{invalid_stream_offset_arg,double}"),
    ],
)
def test_offsets_that_are_none(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        consumer_settings("queue 's' in vhost '/'", "mine", arguments, NOW_MS)
    assert str(caught.value) == INVALID.format("x-stream-offset", text)


@pytest.mark.parametrize("argument", ["x-priority", "x-cancel-on-ha-failover"])
def test_arguments_of_consumers_that_streams_do_not_have(argument: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        consumer_settings("queue 's' in vhost '/'", "mine", {argument: 1}, NOW_MS)
    assert str(caught.value) == NOT_OF_STREAMS.format(argument)
