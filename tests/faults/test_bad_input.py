"""Garbage on every door, while other clients of all doors go on working.

Each hostile connection gets the error its protocol provides, if it has one, and is closed; the broker logs no surprise,
keeps its memory, and nobody else notices anything.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import msgpack
import pytest

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_mqtt import Mqtt, packet, utf8
from benchmarks.wire_proto import CHANNEL_OPEN, CONFIRM_SELECT, Amqp, frame, method, shortstr
from protocols.native.errors import ErrorCode
from tests.faults.neighbours import CLOSE, Neighbours, amqp_close_code, batch_of, hostile, until_closed
from tests.faults.wire_clients import persistent_publish, wire_options
from tests.support import BrokerProcess

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMQP_HEADER = b"AMQP\0\0\x09\x01"
TUNE = bytes.fromhex("000a001e")


@pytest.fixture(scope="module")
def neighbours(shared_broker: BrokerProcess) -> Iterator[Neighbours]:
    """Clients that were there before."""
    with Neighbours(shared_broker) as found:
        yield found


@pytest.fixture(autouse=True)
def others_go_on(shared_broker: BrokerProcess, neighbours: Neighbours) -> Iterator[None]:
    """Around every test: the neighbours work before and after, and the log has no traceback that is new."""
    neighbours.work()
    logged = len(shared_broker.log())
    yield
    neighbours.work()
    assert "Traceback" not in shared_broker.log()[logged:]


# AMQP ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [HTTP, b"AMQP\x01\x01\0\x0a", b"AMQP\0\0\x09\x02", bytes(64), b"\xff" * 1000, b"\x16\x03\x01\x02\0\x01\0\x01\xfc"],
    ids=["http", "amqp 0-10", "wrong revision", "zeros", "ones", "tls"],
)
def test_amqp_answers_an_unknown_protocol_with_its_own_header(shared_broker: BrokerProcess, data: bytes) -> None:
    """AMQP 0-9-1 section 4.2.2."""
    assert hostile(shared_broker.amqp_port, data) == AMQP_HEADER


def amqp_frame_without_end() -> bytes:
    """A heartbeat with a wrong end octet."""
    return frame(8, 0, b"")[:-1] + b"\xcd"


ENDLESS = persistent_publish("x", b"x").replace(struct.pack(">Q", 1), b"\x80" + bytes(7))
AMQP_HARD = [
    ("frame end", amqp_frame_without_end(), {501}),
    ("frame too large", struct.pack(">BHI", 1, 1, 1 << 30), {501}),
    ("unknown frame type", frame(77, 1, b"abc"), {501}),
    ("unknown class", method(1, 0x0BAD0001), {540, 503, 502}),
    ("cut arguments", method(1, 0x32000A, b"\0\0\xffabc"), {501, 502}),
    ("no method id", frame(1, 1, b"\0"), {502, 501}),
    ("header without publish", frame(2, 1, bytes(14)), {505}),
    ("body without publish", frame(3, 1, b"body"), {505}),
    ("channel that is not open", method(7, 0x3C000A, bytes(7)), {504}),
    ("channel opened twice", method(1, CHANNEL_OPEN, b"\0"), {504}),
    ("body on channel 0", frame(3, 0, b"body"), {505, 504, 501}),
    ("channel method on channel 0", method(0, CONFIRM_SELECT, b"\0"), {503, 504}),
    ("a second connection.open", method(0, 0x0A0028, shortstr("/") + b"\0\0"), {503, 504, 505, 530}),
    ("publish interrupted by a method", method(1, 0x3C0028, b"\0\0\0\0\0") + method(1, CONFIRM_SELECT, b"\0"), {505}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "codes"), [case[1:] for case in AMQP_HARD], ids=[case[0] for case in AMQP_HARD])
def test_amqp_closes_the_connection_with_a_code(shared_broker: BrokerProcess, data: bytes, codes: set[int]) -> None:
    """AMQP 0-9-1 section 1.2, hard errors; where RabbitMQ and the specification differ, either is right."""
    connection = Amqp.open(wire_options(shared_broker.amqp_port))
    with connection.sock:
        connection.sock.sendall(data)
        assert amqp_close_code(until_closed(connection.sock)) in codes


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (method(1, 0x32000A, b"\0\1" + shortstr("nowhere-to-be-found") + b"\1" + bytes(4)), 404),
        (method(1, 0x28000A, b"\0\0" + shortstr("amq.mine") + shortstr("direct") + b"\0" + bytes(4)), 403),
        (method(1, 0x3C0050, struct.pack(">QB", 4711, 0)), 406),
        (ENDLESS, 406),
    ],
    ids=["queue not found", "reserved name", "unknown delivery tag", "a body of 2**63 bytes"],
)
def test_amqp_soft_errors_close_the_channel_only(shared_broker: BrokerProcess, data: bytes, code: int) -> None:
    """AMQP 0-9-1 section 1.2, soft errors: another channel of the connection goes on."""
    connection = Amqp.open(wire_options(shared_broker.amqp_port))
    with connection.sock:
        connection.call(method(2, CHANNEL_OPEN, b"\0"), CHANNEL_OPEN + 1)
        arguments = connection.call(data, 0x140028)
        assert struct.unpack_from(">H", arguments)[0] == code
        connection.sock.sendall(method(1, 0x140029))
        connection.call(method(2, CONFIRM_SELECT, b"\0"), CONFIRM_SELECT + 1)


def start_ok(plain: bytes, properties: bytes = b"") -> bytes:
    """The answer to connection.start."""
    arguments = struct.pack(">I", len(properties)) + properties + shortstr("PLAIN")
    return method(0, 0x0A000B, arguments + struct.pack(">I", len(plain)) + plain + shortstr("en_US"))


def test_amqp_refuses_a_wrong_password(shared_broker: BrokerProcess) -> None:
    """A closed connection (section 2.2.4), and 403 before it for those who say that they understand it."""
    said = hostile(shared_broker.amqp_port, AMQP_HEADER + start_ok(b"\0guest\0wrong"))
    assert TUNE not in said
    assert CLOSE not in said
    capability = shortstr("authentication_failure_close") + b"t\1"
    table = shortstr("capabilities") + b"F" + struct.pack(">I", len(capability)) + capability
    said = hostile(shared_broker.amqp_port, AMQP_HEADER + start_ok(b"\0guest\0wrong", table))
    assert TUNE not in said
    assert amqp_close_code(said) == 403


# MQTT ------------------------------------------------------------------------------------


def connect(level: int = 4, flags: int = 2, client_id: str = "hostile", name: str = "MQTT") -> bytes:
    """A CONNECT packet."""
    return packet(0x10, utf8(name) + bytes([level, flags]) + b"\0\x3c" + utf8(client_id))


MQTT_STRANGERS = [
    ("http", HTTP, b""),
    ("amqp", AMQP_HEADER, b""),
    ("publish before connect", packet(0x30, utf8("a") + b"x"), b""),
    ("level 9", connect(level=9), b"\x20\x02\0\x01"),
    ("wrong protocol name", connect(name="MQIsdp"), b"\x20\x02\0\x01"),
    ("reserved connect flag", connect(flags=3), b""),
    ("remaining length of 5 bytes", b"\x10\xff\xff\xff\xff\x01", b""),
    ("remaining length of 256 MiB", b"\x10\xff\xff\xff\x7f", b""),
    ("no client id, session kept", connect(flags=0, client_id=""), b"\x20\x02\0\x02"),
    ("cut connect", packet(0x10, connect()[2:10]), b""),
]


@pytest.mark.parametrize(
    ("data", "said"), [case[1:] for case in MQTT_STRANGERS], ids=[case[0] for case in MQTT_STRANGERS]
)
def test_mqtt_closes_on_strangers(shared_broker: BrokerProcess, data: bytes, said: bytes) -> None:
    """Before CONNECT only two faults have an answer (MQTT-3.1.2-2, MQTT-3.1.3-8); all close (MQTT-4.8.0-1)."""
    assert hostile(shared_broker.mqtt_port, data) == said


MQTT_FAULTS = [
    ("a second connect", connect()),
    ("publish with qos 3", packet(0x36, utf8("a") + b"\0\1x")),
    ("publish to a wildcard", packet(0x30, utf8("a/#") + b"x")),
    ("publish to nothing", packet(0x30, utf8("") + b"x")),
    ("packet id 0", packet(0x32, utf8("a") + b"\0\0x")),
    ("topic that is not utf-8", packet(0x30, b"\0\2\xc3\x28x")),
    ("topic with a zero", packet(0x30, utf8("a\0b") + b"x")),
    ("topic longer than the packet", packet(0x30, b"\xff\xffabc")),
    ("subscribe with wrong flags", packet(0x80, b"\0\1" + utf8("a") + b"\0")),
    ("subscribe to nothing", packet(0x82, b"\0\1")),
    ("subscribe with qos 3", packet(0x82, b"\0\1" + utf8("a") + b"\3")),
    ("a wildcard in the wrong place", packet(0x82, b"\0\1" + utf8("a#/b") + b"\0")),
    ("a broker's packet", packet(0x20, b"\0\0")),
    ("a reserved packet", packet(0xF0, b"")),
    ("ping with a payload", packet(0xC0, b"x")),
]


@pytest.mark.parametrize("data", [case[1] for case in MQTT_FAULTS], ids=[case[0] for case in MQTT_FAULTS])
def test_mqtt_closes_on_protocol_violations(shared_broker: BrokerProcess, data: bytes) -> None:
    """MQTT-4.8.0-1; in 3.1.1 there is nothing to say."""
    connection = Mqtt.open(wire_options(shared_broker.mqtt_port))
    with connection.sock:
        connection.sock.sendall(data)
        assert until_closed(connection.sock) == b""


# Native ----------------------------------------------------------------------------------


def native_frame(*fields: object) -> bytes:
    """A request."""
    body: bytes = msgpack.packb(fields)
    return len(body).to_bytes(4, "big") + body


HELLO = native_frame(0, 0, 1, 1, "hostile", None)


def replies(said: bytes) -> list[list[object]]:
    """The frames in what the broker said."""
    found = []
    while said:
        size = int.from_bytes(said[:4], "big")
        found.append(msgpack.unpackb(said[4 : 4 + size]))
        said = said[4 + size :]
    return found


NATIVE_FATAL = [
    ("http", HTTP, ErrorCode.REQUEST_TOO_LARGE),
    ("4 GiB", b"\xff" * 8, ErrorCode.REQUEST_TOO_LARGE),
    ("nothing", bytes(4), ErrorCode.MALFORMED_FRAME),
    ("not msgpack", b"\0\0\0\4\xc1\xc1\xc1\xc1", ErrorCode.MALFORMED_FRAME),
    ("a map", native_frame()[:4] + msgpack.packb({}), ErrorCode.MALFORMED_FRAME),
    ("no hello", native_frame(1, 1, None, False), ErrorCode.HELLO_REQUIRED),
    ("hello twice", HELLO + HELLO, ErrorCode.HELLO_REQUIRED),
    ("a version to come", native_frame(0, 0, 99, 100, "hostile", None), ErrorCode.UNSUPPORTED_VERSION),
    ("deep", HELLO + (1000).to_bytes(4, "big") + b"\x91" * 1000, ErrorCode.MALFORMED_FRAME),
]


@pytest.mark.parametrize(("data", "code"), [case[1:] for case in NATIVE_FATAL], ids=[case[0] for case in NATIVE_FATAL])
def test_native_says_why_it_closes(shared_broker: BrokerProcess, data: bytes, code: ErrorCode) -> None:
    """An error reply (api 255) is the last thing it says."""
    last = replies(hostile(shared_broker.native_port, data))[-1]
    assert last[0] == 255
    assert last[2][0] == code  # type: ignore[index]


def test_native_answers_bad_requests_and_goes_on(shared_broker: BrokerProcess, neighbours: Neighbours) -> None:
    """What is wrong within a request is that request's error; the connection stays."""
    topic, batch = neighbours.stream.name, bytearray(batch_of([b"value"]))
    batch[-1] ^= 1
    bad = [
        (native_frame(200, 1), ErrorCode.UNKNOWN_API),
        (native_frame(1, 2), ErrorCode.INVALID_REQUEST),
        (native_frame(1, 3, "not a list", False), ErrorCode.INVALID_REQUEST),
        (native_frame(7, 4, -1, 1000, [[topic, 0, 0, bytes(batch)]]), ErrorCode.CORRUPT_BATCH),
        (native_frame(7, 5, -1, 1000, [[topic, 0, 0, bytes(batch[:30])]]), ErrorCode.CORRUPT_BATCH),
        (native_frame(7, 6, -1, 1000, [[topic, 99, 0, batch_of([b"value"])]]), ErrorCode.UNKNOWN_PARTITION),
        (native_frame(8, 7, 0, 1, 1000, [[topic, 0, 1 << 40, 1000]]), ErrorCode.OFFSET_OUT_OF_RANGE),
        (native_frame(8, 8, 0, 1, 1000, [["no such topic", 0, 0, 1000]]), ErrorCode.UNKNOWN_TOPIC),
        (native_frame(2, 9, "../../etc/passwd", 1, {}), ErrorCode.INVALID_ARGUMENT),
    ]
    said = hostile(shared_broker.native_port, HELLO + b"".join(data for data, _ in bad), half_close=True)
    answers = {reply[1]: reply for reply in replies(said)[1:]}
    for number, (_, code) in enumerate(bad, 1):
        reply = answers[number]
        error = reply[2] if reply[0] == 255 else reply[2][0][0]  # type: ignore[index]
        assert error[0] == code, f"request {number}: {reply}"  # type: ignore[index]


# All doors -------------------------------------------------------------------------------


def transcript(door: str) -> bytes:
    """What a decent client sends, as one piece."""
    if door == "amqp":
        return (
            AMQP_HEADER
            + start_ok(b"\0guest\0guest")
            + method(0, 0x0A001F, struct.pack(">HIH", 100, 131072, 0))
            + method(0, 0x0A0028, shortstr("/") + b"\0\0")
            + method(1, CHANNEL_OPEN, b"\0")
            + method(1, 0x32000A, b"\0\0" + shortstr("fuzzed") + b"\x08" + bytes(4))
            + persistent_publish("fuzzed", b"body") * 3
            + method(1, 0x3C0014, b"\0\0" + shortstr("fuzzed") + shortstr("c") + b"\0" + bytes(4))
        )
    if door == "mqtt":
        subscribe = packet(0x82, b"\0\1" + utf8("fuzzed/#") + b"\1")
        return connect(client_id="fuzzed") + subscribe + packet(0x32, utf8("fuzzed/a") + b"\0\1body") * 3 + b"\xc0\0"
    produce = native_frame(7, 2, 1, 100, [["fuzzed", 0, 0, batch_of([b"value"])]])
    return (
        HELLO + native_frame(1, 1, ["fuzzed"], True) + produce + native_frame(8, 3, 0, 1, 1000, [["fuzzed", 0, 0, 99]])
    )


@pytest.mark.parametrize("door", ["amqp", "mqtt", "native"])
def test_mutated_sessions_hurt_nobody(shared_broker: BrokerProcess, neighbours: Neighbours, door: str) -> None:
    """Bytes of a good session changed, doubled, cut or left out: the connection ends, memory stays where it was."""
    dice, session = random.Random(7), transcript(door)
    usage = ProcessUsage(shared_broker.pid)
    usage.find()
    before = usage.rss_mib()
    for _ in range(60):
        data = bytearray(session)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(data))
            action = dice.randrange(4)
            if action == 0:
                data[at] = dice.randrange(256)
            elif action == 1:
                data[at:at] = data[at : at + dice.randrange(40)]
            elif action == 2:
                del data[at : at + dice.randrange(1, 10)]
            else:
                data[at : at + 4] = b"\xff\xff\xff\xff"
        hostile(shared_broker.ports[door], bytes(data), half_close=True)
    neighbours.work()
    assert usage.rss_mib() - before < 32
