"""Bytes to events: tables of what is legal and what is not, each fed whole, byte by byte and truncated."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.connection import ServerConnection
from protocols.mqtt.events import (
    AcknowledgementKind,
    Acknowledgements,
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
from protocols.mqtt.reasons import MqttProtocolError
from tests.protocols.mqtt.wire import (
    DISCONNECT,
    PINGREQ,
    acknowledge,
    connect,
    one_by_one,
    packet,
    puback,
    publish,
    subscribe,
    text,
    unsubscribe,
)
from tests.protocols.mqtt.wire_5 import connect_5

LEGAL: list[tuple[bytes, list[Event]]] = [
    (connect("c1"), [Connect(4, "c1")]),
    (connect("", clean=False, keep_alive_s=65_535), [Connect(4, "", False, 65_535, session_expiry_s=0xFFFFFFFF)]),
    (connect("old", name="MQIsdp", level=3), [Connect(3, "old")]),
    (connect("old", name="MQIsdp", level=0x83), [Connect(3, "old", is_bridge=True)]),
    (connect("b", level=0x84), [Connect(4, "b", is_bridge=True)]),
    (
        connect("ü", will=("a/b", b"\0\xff", 2, True), user="me", password=b"\0secret"),
        [Connect(4, "ü", will=Will("a/b", b"\0\xff", 2, True), user_name="me", password=b"\0secret")],
    ),
    (connect("c", user="me"), [Connect(4, "c", user_name="me")]),
    (publish("t", b"x"), [PublishRun("t", 0, False, [b"x"], b"", publish("t", b"x"))]),
    (publish("t", b"", retain=True), [PublishRun("t", 0, True, [b""], b"", None)]),
    (publish("/", b"x" * 200), [PublishRun("/", 0, False, [b"x" * 200], b"", publish("/", b"x" * 200))]),
    (
        publish("t/ü", b"x", qos=1, packet_id=258, dup=True),
        [PublishRun("t/ü", 1, False, [b"x"], b"\1\2", None)],
    ),
    (publish("t", b"x", qos=2, packet_id=3), [PublishRun("t", 2, False, [b"x"], b"\0\3", None)]),
    (puback(65_535), [Acknowledgements([(65_535, 65_535)])]),
    (acknowledge(0x50, 1), [Acknowledgements([(1, 1)], AcknowledgementKind.PUBREC)]),
    (acknowledge(0x62, 256), [Acknowledgements([(256, 256)], AcknowledgementKind.PUBREL)]),
    (acknowledge(0x70, 1), [Acknowledgements([(1, 1)], AcknowledgementKind.PUBCOMP)]),
    (
        subscribe(7, ("a/+/#", 2), ("#", 0), ("+", 1)),
        [Subscribe(7, [SubscriptionRequest(*each) for each in (("a/+/#", 2), ("#", 0), ("+", 1))])],
    ),
    (unsubscribe(65_535, "a", "/"), [Unsubscribe(65_535, ["a", "/"])]),
    (PINGREQ, [PingRequest()]),
    (DISCONNECT, [Disconnect()]),
    (publish("\ufefft", b""), [PublishRun("\ufefft", 0, False, [b""], b"", publish("\ufefft", b""))]),
]
LEGAL_IDS = ["connect", "connect not clean", "MQTT 3.1", "a bridge of MQTT 3.1", "a bridge", "will and credentials",
             "user without password", "publish",
             "retained and empty", "two length bytes", "qos 1 dup", "qos 2", "puback", "pubrec", "pubrel", "pubcomp",
             "subscribe", "unsubscribe", "pingreq",
             "disconnect", "MQTT-1.5.3-3 keeps the byte order mark"]  # fmt: skip

CUT_CONNECT = connect("c1", will=("w", b"m", 1, False), user="u", password=b"p")[2:]

ILLEGAL = {
    "MQTT-1.5.3-1 surrogate in topic": publish(b"\xed\xa0\x80"),
    "MQTT-1.5.3-1 invalid UTF-8 in topic": publish(b"a\xff"),
    "MQTT-1.5.3-1 invalid UTF-8 in filter": subscribe(1, ("a", 0))[:-2] + b"\xff\0",
    "MQTT-1.5.3-2 null in topic": publish("a\0b"),
    "MQTT-1.5.3-2 null in filter": subscribe(1, ("a\0", 0)),
    "MQTT-1.5.3 truncated filter": packet(0x82, b"\0\1\0\5ab"),
    "MQTT-2.2.1 reserved type 0": packet(0x00, b""),
    "MQTT-2.2.1 reserved type 15": packet(0xF0, b""),
    "MQTT-2.2.1 CONNACK from a client": packet(0x20, b"\0\0"),
    "MQTT-2.2.1 SUBACK from a client": packet(0x90, b"\0\1\0"),
    "MQTT-2.2.1 UNSUBACK from a client": packet(0xB0, b"\0\1"),
    "MQTT-2.2.1 PINGRESP from a client": packet(0xD0, b""),
    "MQTT-2.2.2-2 flags of PUBACK": packet(0x41, b"\0\1"),
    "MQTT-2.2.2-2 flags of PINGREQ": packet(0xC1, b""),
    "MQTT-2.2.2-2 flags of a second CONNECT": packet(0x11, b""),
    "MQTT-2.2.3 five length bytes": b"\x30\xff\xff\xff\xff\x01",
    "MQTT-2.3.1-1 PUBLISH with id 0": publish("a", qos=1, packet_id=0),
    "MQTT-2.3.1-1 SUBSCRIBE with id 0": subscribe(0, ("a", 0)),
    "MQTT-2.3.1-1 UNSUBSCRIBE with id 0": unsubscribe(0, "a"),
    "MQTT-2.3.1-1 SUBSCRIBE without id": packet(0x82, b"\1"),
    "MQTT-2.3.1-6 PUBACK with id 0": puback(0),
    "MQTT-2.3.1-6 PUBREC with id 0": acknowledge(0x50, 0),
    "MQTT-2.3.1-6 PUBREL with id 0": acknowledge(0x62, 0),
    "MQTT-2.3.1-6 PUBCOMP with id 0": acknowledge(0x70, 0),
    "MQTT-3.1.0-2 second CONNECT": connect("c2"),
    "MQTT-3.3.1-2 DUP with QoS 0": publish("a", dup=True),
    "MQTT-3.3.1-4 QoS 3": publish("a", qos=3),
    "MQTT-3.3.2-1 PUBLISH of nothing": packet(0x30, b""),
    "MQTT-3.3.2-1 PUBLISH with half a topic": packet(0x30, b"\0\4abc"),
    "MQTT-3.3.2-1 QoS 1 without id": packet(0x32, text("a") + b"\1"),
    "MQTT-3.3.2-2 + in topic": publish("a/+"),
    "MQTT-3.3.2-2 # in topic": publish("#"),
    "MQTT-3.4.1 PUBACK of 3 bytes": packet(0x40, b"\0\1\0"),
    "MQTT-3.8.1-1 flags of SUBSCRIBE": packet(0x80, subscribe(1, ("a", 0))[2:]),
    "MQTT-3.8.3-3 SUBSCRIBE without filter": packet(0x82, b"\0\1"),
    "MQTT-3.8.3-3 filter without QoS": packet(0x82, b"\0\1" + text("a")),
    "MQTT-3.8.3-4 QoS byte 3": subscribe(1, ("a", 3)),
    "MQTT-3.8.3-4 reserved bits of QoS byte": subscribe(1, ("a", 0x11)),
    "MQTT-3.10.1-1 flags of UNSUBSCRIBE": packet(0xA0, unsubscribe(1, "a")[2:]),
    "MQTT-3.10.3-2 UNSUBSCRIBE without filter": packet(0xA2, b"\0\1"),
    "MQTT-3.12.1 PINGREQ with a body": packet(0xC0, b"x"),
    "MQTT-3.14.1 DISCONNECT with a body": packet(0xE0, b"x"),
    "MQTT-3.14.1-1 flags of DISCONNECT": packet(0xE1, b""),
    "MQTT-4.7.1-2 # not last": subscribe(1, ("a/#/b", 0)),
    "MQTT-4.7.1-2 # not a level": subscribe(1, ("a#", 0)),
    "MQTT-4.7.1-2 two #": subscribe(1, ("##", 0)),
    "MQTT-4.7.1-3 + not a level": subscribe(1, ("a+/b", 0)),
    "MQTT-4.7.3-1 empty topic": publish(""),
    "MQTT-4.7.3-1 empty filter": subscribe(1, ("", 0)),
    "MQTT-3.5.1 PUBREC of 1 byte": packet(0x50, b"\1"),
    "MQTT-3.6.1 PUBREL of 3 bytes": packet(0x62, b"\0\1\0"),
    "MQTT-3.6.1-1 flags of PUBREL": packet(0x60, b"\0\1"),
    "MQTT-3.7.1 PUBCOMP of nothing": packet(0x70, b""),
    "MQTT-2.3.1-1 PUBLISH with QoS 2 and id 0": publish("a", qos=2, packet_id=0),
    "MQTT-2.2.1 AUTH": packet(0xF0, b""),
    " topic too long": publish("a" * 256),
    " topic too deep": publish("/" * 32),
}

ILLEGAL_FIRST = {
    "MQTT-3.1.0-1 PUBLISH before CONNECT": publish("a"),
    "MQTT-3.1.0-1 PINGREQ before CONNECT": PINGREQ,
    "MQTT-3.1.0-1 flags of CONNECT": packet(0x11, connect()[2:]),
    "MQTT-3.1.2-1 protocol name": connect(name="MQTX"),
    "MQTT-3.1.2-1 protocol name in lower case": connect(name="mqtt"),
    "MQTT-3.1.2-2 level 6": connect(level=6),
    "MQTT-3.1.2-2 level 5 of MQIsdp": connect(name="MQIsdp", level=5),
    "MQTT-3.1.2-2 level 3 of MQTT": connect(level=3),
    "MQTT-3.1.2-2 level 4 of MQIsdp": connect(name="MQIsdp", level=4),
    "MQTT-3.1.2-3 reserved flag": connect(extra_flags=1),
    "MQTT-3.1.2-13 will QoS without will": connect(extra_flags=0x08),
    "MQTT-3.1.2-14 will QoS 3": connect(will=("w", b"", 3, False)),
    "MQTT-3.1.2-15 will retain without will": connect(extra_flags=0x20),
    "MQTT-3.1.2-22 password without user": connect(password=b"p"),
    "MQTT-3.1.3-1 bytes after the last field": packet(0x10, connect()[2:] + b"x"),
    "MQTT-3.1 no flags": packet(0x10, text("MQTT") + b"\4"),
    "MQTT-1.5.3 truncated password": packet(0x10, CUT_CONNECT[:-1]),
    "MQTT-1.5.3-1 client id not UTF-8": connect(b"\xff"),
    "MQTT-1.5.3-2 null in client id": connect("a\0"),
    "MQTT-3.3.2-2 wildcard in will topic": connect(will=("a/#", b"", 0, False)),
    "MQTT-4.7.3-1 empty will topic": connect(will=("", b"", 0, False)),
}


def connected(config: MqttConfig | None = None) -> ServerConnection:
    """A machine that has seen its CONNECT."""
    machine = ServerConnection(config or MqttConfig())
    machine.receive_data(connect())
    return machine


def machine_for(data: bytes) -> ServerConnection:
    """One that may get `data` now: a new one for CONNECT."""
    return ServerConnection(MqttConfig()) if data[0] == 0x10 else connected()


def feed(machine: ServerConnection, pieces: list[bytes]) -> tuple[list[object], MqttProtocolError | None]:
    """All events, and the violation that ended it."""
    events: list[Event] = []
    try:
        for piece in pieces:
            events += machine.receive_data(piece)
    except MqttProtocolError as error:
        return one_by_one(events + error.events), error
    return one_by_one(events), None


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


@pytest.mark.parametrize(("data", "events"), LEGAL, ids=LEGAL_IDS)
def test_legal_packets(data: bytes, events: list[Event]) -> None:
    assert machine_for(data).receive_data(data) == events
    assert feed(machine_for(data), single_bytes(data)) == (one_by_one(events), None)
    for cut in range(len(data)):
        assert machine_for(data).receive_data(data[:cut]) == []
        assert feed(machine_for(data), [data[:cut], data[cut:]]) == (one_by_one(events), None)


@pytest.mark.parametrize("name", [*ILLEGAL, *ILLEGAL_FIRST])
def test_violations_close_the_connection(name: str) -> None:
    clause = name.split(" ")[0]
    data = ILLEGAL.get(name) or ILLEGAL_FIRST[name]

    def fresh() -> ServerConnection:
        return ServerConnection(MqttConfig()) if name in ILLEGAL_FIRST else connected()

    for pieces in ([data], single_bytes(data), [data + PINGREQ * 3]):
        machine = fresh()
        events, error = feed(machine, pieces)
        assert events == []
        assert error is not None
        assert error.clause == clause
        assert machine.closed
        assert machine.receive_data(PINGREQ) == []


def test_mqtt_3_1_2_2_unacceptable_level_is_answered_with_connack_1() -> None:
    for level in (0, 3, 6, 0x80, 0x83, 0x85, 255):
        _, error = feed(ServerConnection(MqttConfig()), [connect(level=level)])
        assert error is not None
        assert error.answer == b"\x20\x02\x00\x01"


@pytest.mark.parametrize("name", ILLEGAL)
def test_events_before_a_violation_count(name: str) -> None:
    good = publish("a", b"1") * 3 + publish("b", b"2", qos=1, packet_id=9) * 20 + puback(1, 2)
    expected = one_by_one(connected().receive_data(good))
    assert feed(connected(), [good + ILLEGAL[name]])[0] == expected
    assert feed(connected(), single_bytes(good + ILLEGAL[name]))[0] == expected


def test_packet_id_0_in_the_middle_of_a_run_ends_it_there() -> None:
    data = b"".join(publish("a", b"xy", qos=1, packet_id=i) for i in (256, 1, 2, 0, 3))
    events, error = feed(connected(), [data])
    assert [event[3] for event in events] == [b"\1\0", b"\0\1", b"\0\2"]  # type: ignore[index]
    assert error is not None
    assert error.clause == "MQTT-2.3.1-1"


def test_mqtt_3_14_4_nothing_is_read_after_disconnect() -> None:
    machine = connected()
    assert machine.receive_data(DISCONNECT + publish("a") + b"\xff") == [Disconnect()]
    assert machine.receive_data(publish("a")) == []


def test_packet_limit_is_checked_before_the_packet_arrives() -> None:
    config = MqttConfig(packet_bytes_max=1024)
    largest = publish("t", b"x" * (1024 - 6))
    assert len(largest) == 1024
    assert len(connected(config).receive_data(largest)) == 1
    for data in (publish("t", b"x" * (1024 - 5)), b"\x30\xff\xff\xff\x7f", largest * 20 + b"\x30\xff\xff\x7f"):
        events, error = feed(connected(config), [data])
        assert error is not None
        assert "at most 1024" in str(error)
        assert len(events) in (0, 20)


def test_topic_limits_at_the_limit() -> None:
    config = MqttConfig(topic_bytes_max=6, topic_levels_max=3)
    for topic, legal in (
        ("aaaaaa", True),
        ("aaaaaaa", False),
        ("äää", True),
        ("äääa", False),
        ("//", True),
        ("///", False),
    ):
        assert (feed(connected(config), [publish(topic)])[1] is None) is legal, topic
        assert (config.over_limit(topic) is None) is legal, topic


def test_runs_of_equal_and_unequal_length_are_one_event_each() -> None:
    payloads = [b"x" * 10] * 100 + [b"y" * n for n in range(5)] + [b"", b""] + [b"z" * 300] * 30
    data = b"".join(publish("a/b", payload) for payload in payloads)
    assert connected().receive_data(data) == [PublishRun("a/b", 0, False, payloads, b"", data)]
    data = b"".join(publish("a/b", payload, qos=1, packet_id=i + 1) for i, payload in enumerate(payloads))
    packet_ids = b"".join((i + 1).to_bytes(2, "big") for i in range(len(payloads)))
    assert connected().receive_data(data) == [PublishRun("a/b", 1, False, payloads, packet_ids, None)]
    data = b"".join(publish("a/b", payload, qos=2, packet_id=i + 1) for i, payload in enumerate(payloads))
    assert connected().receive_data(data) == [PublishRun("a/b", 2, False, payloads, packet_ids, None)]


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("level", [4, 5])
def test_what_states_its_length_in_more_bytes_than_it_needs_is_not_passed_on_as_it_came(
    level: int, digits: int
) -> None:
    """Clients may close the connection over it [MQTT-1.5.5-1]."""
    block = b"\0" if level == 5 else b""
    for topics in (["t"] * 40, [f"t{n}" for n in range(40)]):
        plain = [publish(topic, block + b"x%d" % at) for at, topic in enumerate(topics)]
        data = list(plain)
        for at in (0, 3, 4, 9, 39):
            length = data[at][1]
            data[at] = bytes((0x30, length | 128, *[128] * (digits - 2), 0)) + data[at][2:]
        for some in (data, data[:1]):
            machine = ServerConnection(MqttConfig())
            machine.receive_data(connect(level=level) if level == 4 else connect_5("c1"))
            runs = [event for event in machine.receive_data(b"".join(some)) if isinstance(event, PublishRun)]
            payloads = [payload for run in runs for payload in run.payloads]
            assert payloads == [b"x%d" % at for at in range(len(some))]
            passed_on = b"".join(run.wire for run in runs if run.wire is not None)
            assert passed_on == b"".join(one for one, sent in zip(plain, some, strict=False) if one == sent)


def test_payloads_that_look_like_packets_do_not_confuse_a_run() -> None:
    head = publish("a", b"x" * 20)[:-20]
    payloads = [head * 4, b"0" * 20, head + b"1" * 15, b"2" * 15 + head, b"3" * 18 + head[:2], head[3:] + b"4" * 18]
    data = b"".join(publish("a", payload[:20].ljust(20, b".")) for payload in payloads * 30)
    expected = [payload[:20].ljust(20, b".") for payload in payloads * 30]
    assert connected().receive_data(data) == [PublishRun("a", 0, False, expected, b"", data)]


def test_payloads_that_look_like_packets_with_ids_do_not_confuse_a_run() -> None:
    head = publish("a", b"x" * 20, qos=1, packet_id=1)[:-20]
    shapes = [head * 3, b"0" * 20, head + b"1" * 13, b"2" * 13 + head, b"3" * 17 + head[:3], head[3:] + b"4" * 16]
    payloads = [shape[:20].ljust(20, b".") for shape in shapes * 30]
    # Ids that differ in the upper byte, in the lower byte, and that come again.
    for step, first in ((1, 1), (256, 256), (0, 1), (-1, 1000)):
        ids = [(first + i * step) % 65_535 + 1 for i in range(len(payloads))]
        data = b"".join(publish("a", payload, qos=1, packet_id=i) for i, payload in zip(ids, payloads, strict=True))
        packet_ids = b"".join(i.to_bytes(2, "big") for i in ids)
        assert connected().receive_data(data) == [PublishRun("a", 1, False, payloads, packet_ids, None)]


@pytest.mark.parametrize(
    ("packet_ids", "ranges"),
    [
        ([1, 2, 3], [(1, 3)]),
        (list(range(1, 1001)), [(1, 1000)]),
        ([65_534, 65_535, 1, 2], [(65_534, 65_535), (1, 2)]),
        ([5, 4, 3], [(5, 5), (4, 4), (3, 3)]),
        ([7, 7], [(7, 7), (7, 7)]),
        ([255, 256, 257, 300, 301], [(255, 257), (300, 301)]),
    ],
)
def test_acknowledgements_come_as_ranges(packet_ids: list[int], ranges: list[tuple[int, int]]) -> None:
    assert connected().receive_data(puback(*packet_ids)) == [Acknowledgements(ranges)]
    mixed = puback(*packet_ids) + PINGREQ + puback(9)
    assert connected().receive_data(mixed) == [Acknowledgements(ranges), PingRequest(), Acknowledgements([(9, 9)])]


@pytest.mark.parametrize("good", [1, 2, 100])
def test_mqtt_2_3_1_6_what_was_acknowledged_before_an_id_of_0_counts(good: int) -> None:
    ids = [256 * (i + 1) for i in range(good)]  # whose bytes make zeros that are no id
    expected = Acknowledgements([(i, i) for i in ids])
    with pytest.raises(MqttProtocolError) as raised:
        connected().receive_data(puback(*ids, 0, 1))
    assert raised.value.events == [expected]
    assert connected().receive_data(puback(*ids)) == [expected]


topics = st.sampled_from(["a", "a/b", "ü", "long/" * 12])
some_packets = st.one_of(
    st.builds(publish, topics, st.binary(max_size=8), qos=st.sampled_from([0, 1, 2]), packet_id=st.integers(1, 65_535)),
    st.builds(
        lambda qos, first, count, payload: b"".join(
            publish("a/b", payload, qos=qos, packet_id=first + i) for i in range(count)
        ),
        st.sampled_from([1, 2]),
        st.integers(1, 65_000),
        st.integers(1, 90),
        st.binary(max_size=3),
    ),
    st.builds(acknowledge, st.sampled_from([0x40, 0x50, 0x62, 0x70]), st.integers(1, 65_535)),
    st.builds(
        lambda topic, payload, count: publish(topic, payload) * count, topics, st.binary(max_size=3), st.integers(1, 80)
    ),
    st.builds(lambda first, count: puback(*range(first, first + count)), st.integers(1, 65_000), st.integers(1, 99)),
    st.sampled_from([PINGREQ, subscribe(3, ("a/#", 1)), unsubscribe(4, "a/#"), publish("r", b"r", retain=True)]),
)


@given(st.lists(some_packets, max_size=12), st.lists(st.integers(0, 4000), max_size=6))
@settings(max_examples=150, deadline=None)
def test_how_the_stream_is_cut_makes_no_difference(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole = feed(connected(), [data])
    assert whole[1] is None
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert feed(connected(), [data[a:b] for a, b in pairwise(edges)]) == whole
    assert feed(connected(), single_bytes(data[:600])) == feed(connected(), [data[:600]])


@given(st.lists(some_packets, min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_streams_end_in_a_violation_or_in_other_events(parts: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(parts))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    whole, error = feed(connected(), [bytes(data)])
    pieces, error_in_pieces = feed(connected(), single_bytes(bytes(data)))
    assert whole == pieces
    assert str(error) == str(error_in_pieces)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_bytes_at_all(data: bytes, as_connect: bool) -> None:
    machine = ServerConnection(MqttConfig()) if as_connect else connected()
    feed(machine, [packet(0x10, text("MQTT") + b"\4" + data) if as_connect else data])


def test_what_is_sent_again_may_have_dup_in_3_1() -> None:
    """Section 2.1 of MQTT 3.1 has DUP for PUBREL, SUBSCRIBE and UNSUBSCRIBE, too; later versions refuse it."""
    once = [
        acknowledge(0x62, 1),
        acknowledge(0x62, 2),
        subscribe(7, ("a", 2)),
        unsubscribe(8, "a"),
        acknowledge(0x62, 3),
    ]
    again = [bytes((one[0] | 8,)) + one[1:] for one in once]
    connection = ServerConnection(MqttConfig())
    connection.receive_data(connect("old", name="MQIsdp", level=3))
    assert connection.receive_data(b"".join(again)) == [
        Acknowledgements([(1, 2)], AcknowledgementKind.PUBREL),
        Subscribe(7, [SubscriptionRequest("a", 2)]),
        Unsubscribe(8, ["a"]),
        Acknowledgements([(3, 3)], AcknowledgementKind.PUBREL),
    ]
    for one in again:
        later = ServerConnection(MqttConfig())
        later.receive_data(connect("new"))
        with pytest.raises(MqttProtocolError, match="reserved flags"):
            later.receive_data(one)
