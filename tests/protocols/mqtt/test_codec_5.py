"""MQTT 5, bytes to events: tables of what is legal and what is not, each fed whole, byte by byte and truncated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.connection import ServerConnection
from protocols.mqtt.events import (
    AcknowledgementKind,
    Acknowledgements,
    Authenticate,
    Connect,
    Disconnect,
    Event,
    PingRequest,
    PublishRun,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import IN_PUBLISH, read_block
from protocols.mqtt.publish_blocks import read_publish_block
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from tests.protocols.mqtt.test_codec import feed, single_bytes
from tests.protocols.mqtt.wire import DISCONNECT, PINGREQ, acknowledge, one_by_one, packet, puback, publish, text
from tests.protocols.mqtt.wire_5 import (
    acknowledge_5,
    auth_5,
    block,
    connect_5,
    disconnect_5,
    publish_5,
    sized,
    subscribe_5,
    unsubscribe_5,
)

_K = AcknowledgementKind
BAD, ERROR = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
NAME, FILTER = ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_FILTER_INVALID
ALIAS = ReasonCode.TOPIC_ALIAS_INVALID
RICH = block(("a", "1"), ("b", "ü"), ("a", "2"), content_type="text/plain", response_topic="r/1",
             correlation_data=b"\0\xff", payload_format=1)  # fmt: skip
WILL = sized(block(("w", "1"), will_delay=5, message_expiry=60, content_type="x")) + text("w/t") + text(b"gone")

LEGAL: dict[str, tuple[bytes, list[Event]]] = {
    "connect": (connect_5("c1"), [Connect(5, "c1")]),
    "connect with everything": (
        connect_5(
            "c2",
            block(
                ("u", "1"), ("u", "1"), session_expiry=0xFFFFFFFF, receive_maximum=7, packet_bytes_max=1000,
                topic_alias_max=3, request_response_information=1, request_problem_information=0,
                authentication_method="M", authentication_data=b"\0\1",
            ),
            flags=0x80 | 0x40 | 0x20 | 0x10 | 0x04,
            keep_alive_s=9,
            rest=WILL + text("me") + text(b"\0pw"),
        ),
        [
            Connect(
                5, "c2", False, 9, Will("w/t", b"gone", 2, True, block(content_type="x") + block(("w", "1")), 5, 60),
                "me", b"\0pw", 0xFFFFFFFF, 7, 1000, 3, "M", b"\0\1",
            )
        ],
    ),
    "MQTT-3.1.3 a password needs no user name": (
        connect_5("c", flags=0x42, rest=text(b"p")), [Connect(5, "c", password=b"p")],
    ),
    "publish": (publish_5("t", b"x"), [PublishRun("t", 0, False, [b"x"], b"", publish_5("t", b"x"))]),
    "publish with properties": (
        publish_5("t", b"x", RICH), [PublishRun("t", 0, False, [b"x"], b"", publish_5("t", b"x", RICH), raw=RICH)],
    ),
    "long properties": (
        publish_5("t", b"x" * 200, block(("n", "v" * 300))),
        [PublishRun("t", 0, False, [b"x" * 200], b"", publish_5("t", b"x" * 200, block(("n", "v" * 300))),
                    raw=block(("n", "v" * 300)))],
    ),
    "expiry and alias stand apart": (
        publish_5("t", b"", block(("n", "v"), message_expiry=9, topic_alias=256, content_type="y"), qos=1),
        [PublishRun("t", 1, False, [b""], b"\0\1", None, raw=block(("n", "v"), content_type="y"), expiries_s=[9])],
    ),
    "an expiry of 0": (
        publish_5("t", b"", block(message_expiry=0)), [PublishRun("t", 0, False, [b""], b"", None, expiries_s=[0])],
    ),
    "retained": (publish_5("t", b"", RICH, retain=True), [PublishRun("t", 0, True, [b""], b"", None, raw=RICH)]),
    "qos 2": (
        publish_5("t", b"x", RICH, qos=2, dup=True), [PublishRun("t", 2, False, [b"x"], b"\0\1", None, raw=RICH)],
    ),
    "puback": (acknowledge(0x40, 3), [Acknowledgements([(3, 3)])]),
    "puback with a reason": (acknowledge_5(0x40, 3, 0x10), [Acknowledgements([(3, 3)])]),
    "puback that failed": (acknowledge_5(0x40, 3, 0x97), [Acknowledgements([(3, 3)], failed=[(3, 0x97)])]),
    "pubrec with a text": (
        acknowledge_5(0x50, 3, 0x80, block(("a", "b"), reason_string="no")),
        [Acknowledgements([(3, 3)], _K.PUBREC, failed=[(3, 0x80)])],
    ),
    "pubrel": (acknowledge_5(0x62, 3, 0x92, b""), [Acknowledgements([(3, 3)], _K.PUBREL, failed=[(3, 0x92)])]),
    "pubcomp": (acknowledge_5(0x70, 3, 0, b""), [Acknowledgements([(3, 3)], _K.PUBCOMP)]),
    "subscribe": (
        subscribe_5(
            7, ("a/+/#", 2), ("$share/g/a/#", 1), ("x", 0x2D), properties=block(("a", "b"), subscription_id=1234),
        ),
        [Subscribe(7, [SubscriptionRequest("a/+/#", 2), SubscriptionRequest("$share/g/a/#", 1),
                       SubscriptionRequest("x", 1, True, True, 2)], 1234)],
    ),
    "unsubscribe": (
        unsubscribe_5(8, "a/+", "$share/g/x", properties=block(("a", "b"))), [Unsubscribe(8, ["a/+", "$share/g/x"])],
    ),
    "pingreq": (PINGREQ, [PingRequest()]),
    "disconnect": (DISCONNECT, [Disconnect()]),
    "disconnect with a reason": (disconnect_5(4), [Disconnect(4)]),
    "disconnect with properties": (
        disconnect_5(0, block(("a", "b"), reason_string="bye", session_expiry=0)), [Disconnect(0, 0)],
    ),
}  # fmt: skip

ILLEGAL: dict[str, tuple[bytes, ReasonCode]] = {
    "MQTT-1.5.4-1 user property is not UTF-8": (publish_5("t", b"", b"\x26\0\1\xff\0\0"), BAD),
    "MQTT-1.5.4-2 null in a content type": (publish_5("t", b"", block(content_type="\0")), BAD),
    "MQTT-1.5.4-1 topic is not UTF-8": (packet(0x30, text(b"\xff") + b"\0"), BAD),
    "MQTT-1.5.4 truncated property": (publish_5("t", b"", b"\x03\0\5ab"), BAD),
    "MQTT-1.5.5 property length of five bytes": (packet(0x30, text("t") + b"\xff\xff\xff\xff\1"), BAD),
    "MQTT-1.5.5-1 property length in two bytes": (packet(0x30, text("t") + b"\x80\0"), BAD),
    "MQTT-1.5.5-1 subscription id in two bytes": (packet(0x82, b"\0\1" + sized(b"\x0b\x81\0") + b"\0\1a\0"), BAD),
    "MQTT-1.5.5 five length bytes": (b"\x30\xff\xff\xff\xff\x01", BAD),
    "MQTT-2.1.2 reserved type 0": (packet(0, b""), BAD),
    "MQTT-2.1.2 CONNACK from a client": (packet(0x20, b"\0\0\0"), ERROR),
    "MQTT-2.1.3-1 flags of PUBACK": (packet(0x41, b"\0\1"), BAD),
    "MQTT-2.2.1-3 PUBLISH with id 0": (publish_5("t", qos=1, packet_id=0), ERROR),
    "MQTT-2.2.1-3 SUBSCRIBE with id 0": (subscribe_5(0, ("a", 0)), ERROR),
    "MQTT-2.2.2-1 property length beyond the packet": (packet(0x30, text("t") + b"\5\1\0"), BAD),
    "MQTT-2.2.2-2 unknown property": (publish_5("t", b"", b"\x04\0"), BAD),
    "MQTT-2.2.2-2 property of another packet": (publish_5("t", b"", block(session_expiry=1)), BAD),
    "MQTT-2.2.2-2 subscription id in PUBLISH": (publish_5("t", b"", block(subscription_id=1)), BAD),
    "MQTT-2.2.2-2 truncated expiry": (publish_5("t", b"", b"\x02\0\0\0"), BAD),
    "MQTT-2.2.2-2 server reference in DISCONNECT": (disconnect_5(0, block(server_reference="x")), BAD),
    " content type twice": (publish_5("t", b"", block(content_type="a") * 2), ERROR),
    " payload format 2": (publish_5("t", b"", block(payload_format=2)), ERROR),
    " subscription id 0": (subscribe_5(1, ("a", 0), properties=block(subscription_id=0)), ERROR),
    " neither topic nor alias": (publish_5("", b""), ERROR),
    " an alias that stands for nothing": (publish_5("", b"", block(topic_alias=7)), ERROR),
    "MQTT-2.2.1-5 PUBACK with id 0": (acknowledge_5(0x40, 0, 0, b""), ERROR),
    "MQTT-2.2.1-5 PUBREC with id 0": (acknowledge_5(0x50, 0, 0x80), ERROR),
    "MQTT-2.2.1-5 PUBREL with id 0": (acknowledge(0x62, 0), ERROR),
    "MQTT-2.2.1-5 PUBCOMP with id 0": (acknowledge_5(0x70, 0, 0, block(reason_string="x")), ERROR),
    "MQTT-3.1.0-2 a second CONNECT": (connect_5("c"), ERROR),
    "MQTT-3.3.1-2 DUP with QoS 0": (publish_5("t", dup=True), BAD),
    "MQTT-3.3.1-4 QoS 3": (publish_5("t", qos=3), BAD),
    "MQTT-3.3.2-1 PUBLISH of nothing": (packet(0x30, b""), BAD),
    "MQTT-3.3.2-1 PUBLISH as 3.1.1 writes it": (publish("t"), BAD),
    "MQTT-3.3.2-2 wildcard": (publish_5("t/+"), NAME),
    "MQTT-3.3.2-8 alias 0": (publish_5("t", b"", block(topic_alias=0)), ALIAS),
    "MQTT-3.3.2-9 alias beyond the limit": (publish_5("t", b"", block(topic_alias=257)), ALIAS),
    "MQTT-3.3.2-14 response topic with a wildcard": (publish_5("t", b"", block(response_topic="#")), ERROR),
    "MQTT-3.4.1 PUBACK of 1 byte": (packet(0x40, b"\1"), BAD),
    "MQTT-3.4.2-1 reason of PUBACK": (acknowledge_5(0x40, 1, 0x92), ERROR),
    "MQTT-3.6.2-1 reason of PUBREL": (acknowledge_5(0x62, 1, 0x80, b""), ERROR),
    "MQTT-3.7.1 bytes after PUBCOMP": (packet(0x70, b"\0\1\0\0x"), BAD),
    "MQTT-3.6.1-1 flags of PUBREL": (packet(0x60, b"\0\1"), BAD),
    "MQTT-2.2.2-2 property of PUBACK": (acknowledge_5(0x40, 1, 0, block(content_type="x")), BAD),
    "MQTT-3.8.1-1 flags of SUBSCRIBE": (packet(0x80, subscribe_5(1, ("a", 0))[2:]), BAD),
    "MQTT-3.8.3-2 SUBSCRIBE without filter": (subscribe_5(1), ERROR),
    "MQTT-3.8.3-4 no-local of a share": (subscribe_5(1, ("$share/g/a", 4)), ERROR),
    "MQTT-3.8.3-5 reserved option bits": (subscribe_5(1, ("a", 0x40)), BAD),
    " subscription with QoS 3": (subscribe_5(1, ("a", 3)), ERROR),
    " retain handling 3": (subscribe_5(1, ("a", 0x30)), ERROR),
    "MQTT-3.10.1-1 flags of UNSUBSCRIBE": (packet(0xA0, unsubscribe_5(1, "a")[2:]), BAD),
    "MQTT-3.10.3-2 UNSUBSCRIBE without filter": (unsubscribe_5(1), ERROR),
    "MQTT-3.12.1 PINGREQ with a body": (packet(0xC0, b"x"), BAD),
    "MQTT-3.14.1-1 flags of DISCONNECT": (packet(0xE1, b""), BAD),
    "MQTT-3.14.2-1 reason of DISCONNECT": (disconnect_5(0x8E), ERROR),
    "MQTT-3.14.2.2.2 session expiry begins": (disconnect_5(0, block(session_expiry=1)), ERROR),
    "MQTT-3.15.1-1 flags of AUTH": (packet(0xF1, b""), BAD),
    "MQTT-4.12.0-6 AUTH without a method": (auth_5(0x18, block(authentication_method="M")), ERROR),
    "MQTT-4.7.1-1 misplaced #": (subscribe_5(1, ("a#", 0)), FILTER),
    "MQTT-4.7.1-2 misplaced +": (unsubscribe_5(1, "a+"), FILTER),
    "MQTT-4.7.3-1 empty filter": (subscribe_5(1, ("", 0)), FILTER),
    "MQTT-4.8.2-1 share without a name": (subscribe_5(1, ("$share//a", 0)), FILTER),
    "MQTT-4.8.2-2 wildcard in a share's name": (subscribe_5(1, ("$share/+/a", 0)), FILTER),
    "MQTT-4.8.2-2 share without a filter": (subscribe_5(1, ("$share/g", 0)), FILTER),
    " packet too large": (b"\x30\xff\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
    " topic too long": (publish_5("a" * 256), NAME),
}  # fmt: skip

ILLEGAL_CONNECTS: dict[str, tuple[bytes, ReasonCode]] = {
    "MQTT-2.2.2-2 property of another packet": (connect_5("c", block(content_type="x")), BAD),
    " session expiry twice": (connect_5("c", block(session_expiry=1) * 2), ERROR),
    " receive maximum 0": (connect_5("c", block(receive_maximum=0)), ERROR),
    " maximum packet size 0": (connect_5("c", block(packet_bytes_max=0)), ERROR),
    " request problem information 2": (connect_5("c", block(request_problem_information=2)), ERROR),
    " data without a method": (connect_5("c", block(authentication_data=b"x")), ERROR),
    "MQTT-3.1.2-3 reserved flag": (connect_5("c", flags=3), BAD),
    "MQTT-3.1.2-11 will QoS without a will": (connect_5("c", flags=0x0A), BAD),
    "MQTT-3.1.2-12 will QoS 3": (connect_5("c", flags=0x1E, rest=WILL), BAD),
    "MQTT-3.1.2-13 will retain without a will": (connect_5("c", flags=0x22), BAD),
    "MQTT-3.1.3-1 bytes after the last field": (connect_5("c", rest=b"x"), BAD),
    "MQTT-2.2.2-2 alias in a will": (
        connect_5("c", flags=6, rest=sized(block(topic_alias=1)) + text("w") + text("")), BAD,
    ),
    "MQTT-3.3.2-2 wildcard in a will's topic": (
        connect_5("c", flags=6, rest=b"\0" + text("w/#") + text("")), NAME,
    ),
}  # fmt: skip


def connected(config: MqttConfig | None = None, properties: bytes = b"") -> ServerConnection:
    """A machine that has seen its CONNECT."""
    machine = ServerConnection(config or MqttConfig())
    machine.receive_data(connect_5("c1", properties))
    return machine


def machine_for(data: bytes) -> ServerConnection:
    """One that may get `data` now: a new one for CONNECT."""
    return ServerConnection(MqttConfig()) if data[0] == 0x10 else connected()


@pytest.mark.parametrize("name", LEGAL)
def test_legal_packets(name: str) -> None:
    data, events = LEGAL[name]
    assert machine_for(data).receive_data(data) == events
    assert feed(machine_for(data), single_bytes(data)) == (one_by_one(events), None)
    for cut in range(len(data)):
        assert machine_for(data).receive_data(data[:cut]) == []
        assert feed(machine_for(data), [data[:cut], data[cut:]]) == (one_by_one(events), None)


@pytest.mark.parametrize("name", ILLEGAL)
def test_violations_are_answered_with_a_disconnect(name: str) -> None:
    clause, (data, code) = name.split(" ")[0], ILLEGAL[name]
    for pieces in ([data], single_bytes(data), [data + PINGREQ * 3]):
        machine = connected()
        events, error = feed(machine, pieces)
        assert events == []
        assert error is not None
        assert (error.clause, error.code) == (clause, code)
        assert error.answer[0] == 0xE0
        assert error.answer[2] == code
        assert machine.closed
        assert machine.receive_data(PINGREQ) == []


@pytest.mark.parametrize("name", ILLEGAL_CONNECTS)
def test_violations_of_connect_are_answered_with_connack(name: str) -> None:
    clause, (data, code) = name.split(" ")[0], ILLEGAL_CONNECTS[name]
    for pieces in ([data], single_bytes(data)):
        events, error = feed(ServerConnection(MqttConfig()), pieces)
        assert events == []
        assert error is not None
        assert (error.clause, error.code) == (clause, code)
        assert error.answer == bytes((0x20, 3, 0, code, 0))


@pytest.mark.parametrize("name", ILLEGAL)
def test_events_before_a_violation_count(name: str) -> None:
    good = publish_5("a", b"1", RICH) * 3 + publish_5("b", b"2", RICH, qos=1, packet_id=9) * 20 + puback(1, 2)
    good += b"".join(acknowledge_5(0x40, i, 0x80) for i in (3, 4, 7))
    data = ILLEGAL[name][0]
    expected = one_by_one(connected().receive_data(good))
    assert feed(connected(), [good + data])[0] == expected
    assert feed(connected(), single_bytes(good + data))[0] == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("length", [b"\x80", b"\xff", b"\x80\x80", b"\xff\x00"])
def test_publishes_before_one_whose_properties_have_half_a_length_count(qos: int, length: bytes) -> None:
    good = publish_5("a", b"1", qos=qos, packet_id=1)
    bad = packet(0x30 | qos << 1, text("b") + (b"\0\2" if qos else b"") + length)
    expected = one_by_one(connected().receive_data(good))
    events, error = feed(connected(), [good + bad])
    assert events == expected
    assert error is not None
    assert error.code == BAD


def test_the_text_of_a_disconnect_is_left_out_where_the_client_takes_no_more() -> None:
    machine = connected(properties=block(packet_bytes_max=10))
    _, error = feed(machine, [publish_5("t/+")])
    assert error is not None
    assert error.answer == bytes((0xE0, 2, ReasonCode.TOPIC_NAME_INVALID, 0))


def test_auth_names_the_method_of_connect() -> None:
    machine = connected(properties=block(authentication_method="M", authentication_data=b"1"))
    data = auth_5(0x18, block(authentication_method="M", authentication_data=b"2"))
    assert machine.receive_data(data) == [Authenticate(0x18, "M", b"2")]
    assert machine.receive_data(auth_5(0x19, block(authentication_method="M"))) == [Authenticate(0x19, "M")]
    _, error = feed(machine, [auth_5(0x18, block(authentication_method="N"))])
    assert error is not None
    assert error.clause == "MQTT-4.12.0-5"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("alias", [0, 5])
def test_runs_with_equal_blocks_are_one_event_each(qos: int, alias: int) -> None:
    payloads = [b"x" * 10] * 100 + [b"y" * n for n in range(5)] + [b"", b""] + [b"z" * 300] * 30
    raw = block(("n", "v"), content_type="text/plain")
    whole = raw + (block(topic_alias=alias) if alias else b"")
    data = b"".join(
        publish_5("" if alias else "a/b", payload, whole, qos=qos, packet_id=i + 1)
        for i, payload in enumerate(payloads)
    )
    ids = b"".join((i + 1).to_bytes(2, "big") for i in range(len(payloads))) if qos else b""
    wire = None if qos or alias else data
    machine = connected()
    machine.receive_data(publish_5("a/b", b"", whole))
    assert machine.receive_data(data) == [PublishRun("a/b", qos, False, payloads, ids, wire, raw=raw)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_runs_with_blocks_that_differ_are_one_event(qos: int) -> None:
    count = 300
    raws = [block(("i", str(i % 9)), ("i", "x")) for i in range(count)]
    expiries = [i if i % 3 else None for i in range(count)]
    data = b"".join(
        publish_5(
            "" if i > 7 else f"t/{i % 4}",
            bytes(i % 5),
            raws[i] + block(topic_alias=i % 4 + 1) + (b"" if expiries[i] is None else block(message_expiry=i)),
            qos=qos,
            packet_id=i + 1,
        )
        for i in range(count)
    )
    ids = b"".join((i + 1).to_bytes(2, "big") for i in range(count)) if qos else b""
    topics = [f"t/{i % 4}" for i in range(count)]
    payloads = [bytes(i % 5) for i in range(count)]
    expected = PublishRun("t/0", qos, False, payloads, ids, None, topics, raws[0], raws, expiries)
    assert connected().receive_data(data) == [expected]


def test_what_has_neither_alias_nor_expiry_is_passed_on_as_it_is() -> None:
    data = b"".join(publish_5(f"t/{i % 3}", b"x", block(("i", str(i)))) for i in range(50))
    (run,) = connected().receive_data(data)
    assert isinstance(run, PublishRun)
    assert run.wire == data


def test_mqtt_3_3_2_an_alias_can_be_given_another_topic() -> None:
    one = block(topic_alias=1)
    data = b"".join(publish_5(topic, b"", one) for topic in ("a", "", "b", "", "a", ""))
    (run,) = connected().receive_data(data)
    assert isinstance(run, PublishRun)
    assert run.topics == ["a", "a", "b", "b", "a", "a"]
    machine = connected()
    for topic, expected in (("a", "a"), ("", "a"), ("b", "b"), ("", "b"), ("", "b")):
        (run,) = machine.receive_data(publish_5(topic, b"", one))
        assert isinstance(run, PublishRun)
        assert run.topic == expected


@pytest.mark.parametrize("qos", [0, 1])
def test_aliases_may_get_other_topics_all_the_time(qos: int) -> None:
    sent = []
    for i in range(300):
        sent += [(f"t/{i}", i % 3 + 1), ("", i % 3 + 1), ("", (i + 1) % 3 + 1 if i > 2 else i % 3 + 1), ("", i % 3 + 1)]
    topics, aliases = [], {}
    for topic, alias in sent:
        aliases[alias] = topic or aliases[alias]
        topics.append(aliases[alias])
    packets = [publish_5(topic, b"", RICH + block(topic_alias=alias), qos=qos) for topic, alias in sent]
    for size in (1, 7, len(packets)):
        machine, found = connected(), []
        for start in range(0, len(packets), size):
            for run in machine.receive_data(b"".join(packets[start : start + size])):
                assert isinstance(run, PublishRun)
                found += run.topics or [run.topic] * len(run.payloads)
        assert found == topics


def test_no_alias_is_allowed_where_the_limit_is_0() -> None:
    _, error = feed(connected(MqttConfig(topic_alias_max=0)), [publish_5("t", b"", block(topic_alias=1))])
    assert error is not None
    assert error.code == ReasonCode.TOPIC_ALIAS_INVALID


@pytest.mark.parametrize("bad", [puback(0), acknowledge_5(0x40, 0, 0x80), acknowledge_5(0x40, 0, 0, b"")])
def test_mqtt_2_2_1_5_what_was_acknowledged_before_an_id_of_0_counts(bad: bytes) -> None:
    good = puback(1, 256) + acknowledge_5(0x40, 512, 0x97) + acknowledge_5(0x40, 9, 0, block(reason_string="x"))
    machine = connected()
    with pytest.raises(MqttProtocolError) as raised:
        machine.receive_data(good + bad + acknowledge_5(0x40, 7, 0x97))
    expected = Acknowledgements([(1, 1), (256, 256), (512, 512), (9, 9)], failed=[(512, 0x97)])
    assert raised.value.events == [expected]


def test_acknowledgements_of_all_forms_are_one_event() -> None:
    data = puback(*range(1, 40))
    data += b"".join(acknowledge_5(0x40, i, 0x97 if i == 50 else 0) for i in range(40, 80))
    data += b"".join(acknowledge_5(0x40, i, 0, b"") for i in range(80, 120))
    data += acknowledge_5(0x40, 120, 0x80, block(reason_string="x" * 200)) + puback(121, 130)
    expected = Acknowledgements([(1, 121), (130, 130)], failed=[(50, 0x97), (120, 0x80)])
    assert connected().receive_data(data) == [expected]


parts = st.lists(
    st.one_of(
        st.tuples(st.text("abü", max_size=3), st.text("xy", max_size=3)).map(block),
        st.sampled_from([block(content_type="t"), block(message_expiry=7), block(correlation_data=b"\0\1\2")]),
    ),
    max_size=3,
    unique=True,
).map(lambda some: b"".join(sorted(some, reverse=True)))
some_packets = st.one_of(
    st.builds(
        publish_5,
        st.sampled_from(["a", "a/b", "ü", "long/" * 12]),
        st.binary(max_size=8),
        parts,
        qos=st.sampled_from([0, 1, 2]),
        packet_id=st.integers(1, 65_535),
    ),
    st.builds(
        lambda qos, first, count, properties: b"".join(
            publish_5("a/b", b"xyz", properties, qos=qos, packet_id=first + i) for i in range(count)
        ),
        st.sampled_from([0, 1, 2]),
        st.integers(1, 65_000),
        st.integers(1, 90),
        parts,
    ),
    st.builds(
        lambda topic, alias: (
            publish_5(topic, b"", block(topic_alias=alias)) + publish_5("", b"", block(topic_alias=alias))
        ),
        st.sampled_from(["a", "b"]),
        st.integers(1, 3),
    ),
    st.builds(
        acknowledge_5,
        st.sampled_from([0x40, 0x50]),
        st.integers(1, 65_535),
        st.sampled_from([0, 0x10, 0x80]),
        st.sampled_from([None, b"", block(reason_string="x")]),
    ),
    st.sampled_from([PINGREQ, subscribe_5(3, ("a/#", 1)), unsubscribe_5(4, "a/#"), publish_5("r", b"r", retain=True)]),
)


@given(st.lists(some_packets, max_size=12), st.lists(st.integers(0, 4000), max_size=6))
@settings(max_examples=150, deadline=None)
def test_how_the_stream_is_cut_makes_no_difference(packets: list[bytes], cuts: list[int]) -> None:
    data = b"".join(packets)
    whole = feed(connected(), [data])
    if any(piece.count(b"\x03\0\1t") > 1 for piece in packets):
        assert whole[1] is None or "twice" in str(whole[1])
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    in_pieces = feed(connected(), [data[a:b] for a, b in pairwise(edges)])
    assert without_order_of_repeats(in_pieces[0]) == without_order_of_repeats(whole[0])
    assert str(in_pieces[1]) == str(whole[1])
    by_bytes, at_once = feed(connected(), single_bytes(data[:600])), feed(connected(), [data[:600]])
    assert without_order_of_repeats(by_bytes[0]) == without_order_of_repeats(at_once[0])


@given(st.lists(some_packets, min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_streams_end_in_a_violation_or_in_other_events(packets: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(packets))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    whole, error = feed(connected(), [bytes(data)])
    pieces, error_in_pieces = feed(connected(), single_bytes(bytes(data)))
    assert without_order_of_repeats(whole) == without_order_of_repeats(pieces)
    assert str(error) == str(error_in_pieces)


def without_order_of_repeats(events: list[object]) -> tuple[list[object], Counter[object]]:
    """A run does not say which of several acknowledgements of one id it was that failed: none but the first matters."""
    plain = [event[:3] if isinstance(event, tuple) and event[0] == "ack" else event for event in events]
    return plain, Counter(event for event in events if isinstance(event, tuple) and event[0] == "ack")


@given(st.binary(max_size=200), st.sampled_from([b"", text("MQTT") + b"\5"]))
@settings(max_examples=200, deadline=None)
def test_any_bytes_at_all(data: bytes, start: bytes) -> None:
    feed(ServerConnection(MqttConfig()) if start else connected(), [packet(0x10, start + data) if start else data])


some_properties = st.one_of(
    st.tuples(st.text("aü\0", max_size=3), st.text("x", max_size=3)).map(block),
    st.builds(lambda text: block(content_type=text), st.text("aü\0", max_size=3)),
    st.builds(lambda text: block(response_topic=text), st.text("a+/#", max_size=2)),
    st.builds(lambda data: block(correlation_data=data), st.binary(max_size=4)),
    st.builds(lambda number: block(payload_format=number), st.integers(0, 2)),
    st.builds(lambda number: block(topic_alias=number), st.integers(0, 300)),
    st.builds(lambda number: block(message_expiry=number), st.integers(0, 0xFFFFFFFF)),
    st.binary(max_size=3),
)


def read(work: Callable[[], Any]) -> tuple[Any, tuple[str, ReasonCode] | None]:
    """What `work` returns, and what is wrong."""
    try:
        return work(), None
    except MqttProtocolError as error:
        return None, (str(error), error.code)


@given(st.lists(some_properties, max_size=5).map(b"".join), st.integers(0, 40))
@settings(max_examples=600, deadline=None)
def test_any_block_is_taken_or_refused(data: bytes, cut: int) -> None:
    """The quick reader says what the plain one says."""
    data = data[: len(data) - cut] if cut < 5 else data
    found, wrong = read(lambda: read_block(data, IN_PUBLISH, "PUBLISH"))
    if wrong:
        assert read(lambda: read_publish_block(data)) == (None, wrong)
        return
    alias, expiry_s, topic = found.pop(0x23, None), found.pop(0x02, None), found.get(0x08)
    if alias == 0 or topic == "" or any(wildcard in (topic or "") for wildcard in "+#"):
        with pytest.raises(MqttProtocolError):
            read_publish_block(data)
        return
    quick = read_publish_block(data)
    assert (quick.alias, quick.expiry_s) == (alias or 0, expiry_s)
    assert read_block(quick.raw, IN_PUBLISH, "PUBLISH") == found
    assert quick.raw in data or alias is not None or expiry_s is not None
