"""How packets are taken apart, beside a reader that goes byte by byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from protocols.mqtt import shapes
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import PublishRun
from protocols.mqtt.properties import encode_text, encode_variable, with_length
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.shapes import DUP, Shapes, shapes_of
from tests.protocols.mqtt.test_codec import connected as connected_3
from tests.protocols.mqtt.test_codec_5 import connected as connected_5

Message = tuple[str, bytes, int, bool, bytes, bytes]
"""Topic, packet id, QoS, RETAIN, property block without its alias, payload."""
_own_tables = iter(range(1 << 19, 1 << 20))


def config() -> MqttConfig:
    """One whose limit nobody else has, so that nothing is known of its packets."""
    return MqttConfig(packet_bytes_max=next(_own_tables), topic_alias_max=10)


def packet(first: int, topic: str, packet_id: bytes, block: bytes, payload: bytes) -> bytes:
    """A PUBLISH; `block` has its length in front, or is nothing."""
    body = encode_text(topic) + packet_id + block + payload
    return bytes((first,)) + encode_variable(len(body)) + body


def traffic(draw: random.Random, version_5: bool, count: int) -> Iterator[tuple[bytes, Message]]:
    """Packets, each with what it says: stretches of one topic, of one length, and others."""
    named: dict[int, str] = {}
    topic, first, size, block, alias = "t", 0x30, 40, b"", 0
    for _ in range(count):
        if draw.random() < 0.05:
            first = 0x30 | draw.choice((0, 2, 4)) | draw.choice((0, 0, 1))
        if draw.random() < draw.choice((0.02, 0.8)):
            topic = "t" * draw.choice((1, 3, 100, 250)) + str(draw.randrange(5))
        if draw.random() < 0.5:
            size = draw.choice((0, 1, 40, 120, 127, 128, 300, 17_000))
        if version_5 and draw.random() < 0.4:
            alias = draw.randrange(4)
            users = [
                b"\x26\0\1a\0%c%b" % (len(text), text) for text in (b"xyz", b"abc", b"abcd", b"u" * 120, b"v" * 200)
            ]
            block = b"".join(draw.sample(users, draw.randrange(3)))
        qos = first >> 1 & 3
        packet_id = draw.randrange(1, 65_536).to_bytes(2, "big") if qos else b""
        payload = draw.randbytes(size)
        said, written = topic, b""
        if version_5:
            whole = block + (b"\x23\0%c" % alias if alias else b"")
            if alias and named.get(alias) == topic and draw.random() < 0.8:
                said = ""
            elif alias:
                named[alias] = topic
            written = with_length(whole)
        dup = DUP if qos and draw.random() < 0.1 else 0
        message = topic, packet_id, qos, first & 1 == 1, block, payload
        yield packet(first | dup, said, packet_id, written, payload), message


def messages(run: PublishRun) -> Iterator[Message]:
    """Those of a run."""
    for at, payload in enumerate(run.payloads):
        topic = run.topic if run.topics is None else run.topics[at]
        raw = run.raw if run.raws is None else run.raws[at]
        packet_id = run.packet_ids[2 * at : 2 * at + 2] if run.qos else b""
        yield topic, packet_id, run.qos, run.retain, raw, payload


@pytest.mark.parametrize("shapes_max", [0, 3, 4096], ids="shapes_max={}".format)
@pytest.mark.parametrize("connected", [connected_3, connected_5], ids=["3.1.1", "5"])
def test_all_that_was_published_is_found(
    connected: Callable[[MqttConfig], object], shapes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "SHAPES_MAX", shapes_max)
    monkeypatch.setattr(shapes, "_STRANGERS_MAX", 7)
    draw = random.Random(shapes_max)
    for _ in range(15):
        machine = connected(config())
        said, expected = zip(*traffic(draw, connected is connected_5, 400), strict=True)
        data, found = b"".join(said), []
        while data:
            cut = draw.choice((1, 7, 300, 5_000, 100_000))
            for run in machine.receive_data(data[:cut]):  # type: ignore[attr-defined]
                assert isinstance(run, PublishRun)
                found += messages(run)
            data = data[cut:]
        assert found == [*expected]


def test_a_table_that_is_full_stays_for_a_while_and_is_emptied_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "SHAPES_MAX", 2)
    monkeypatch.setattr(shapes, "_STRANGERS_MAX", 3)
    table = Shapes(0x30, 1 << 20, blocks=False)
    sizes = []
    for size in range(6):
        assert table.learn(packet(0x30, "a", b"", b"", bytes(size)), 0) is not None
        sizes.append(len(table.known))
    assert sizes == [1, 2, 2, 2, 1, 2]


@pytest.mark.parametrize("blocks", [False, True])
def test_what_is_not_in_order_or_not_whole_has_no_shape(blocks: bool) -> None:
    table = Shapes(0x32, 1 << 10, blocks=blocks)
    whole = packet(0x32, "a", b"\0\1", b"\0" if blocks else b"", b"")
    assert table.learn(whole, 0) is not None
    known = dict(table.known)
    wrong = [whole[:cut] for cut in range(1, len(whole))]
    wrong += [b"\x32\x04\0\1a\0", b"\x32\xff\xff\xff\xff\xff\0\1a\0\1", packet(0x32, "a" * 256, b"\0\1", b"\0", b"")]
    wrong.append(packet(0x32, "a", b"\0\1", b"\0", bytes(1 << 10)))
    if blocks:
        wrong.append(b"\x32\x05\0\1a\0\1")
    for data in wrong:
        assert table.learn(data, 0) is None, data
    assert table.known == known


def test_tables_are_shared_by_those_of_one_limit() -> None:
    assert shapes_of(0x32, 1000) is shapes_of(0x32 | DUP, 1000)
    others = [shapes_of(0x32, 1001), shapes_of(0x34, 1000), shapes_of(0x33, 1000), shapes_of(0x32, 1000, blocks=True)]
    assert shapes_of(0x32, 1000) not in others


@pytest.mark.parametrize("connected", [connected_3, connected_5], ids=["3.1.1", "5"])
def test_what_is_wrong_is_found_behind_packets_of_its_shape(connected: Callable[[MqttConfig], object]) -> None:
    block = b"\0" if connected is connected_5 else b""
    good = [packet(0x30, f"a/{index % 3}", b"", block, b"%04d" % index) for index in range(40)]
    for wrong in (b"a/+", b"a\0b", b"a/\xff"):
        body = len(wrong).to_bytes(2, "big") + wrong + block + b"0000"
        machine = connected(config())
        with pytest.raises(MqttProtocolError) as caught:
            machine.receive_data(b"".join(good) + bytes((0x30, len(body))) + body)  # type: ignore[attr-defined]
        assert sum(len(run.payloads) for run in caught.value.events) == 40


def test_what_stands_for_no_topic_is_found_behind_packets_of_its_shape() -> None:
    named = packet(0x32, "t", b"\0\1", b"\0", b"payload")
    alias = packet(0x32, "u", b"\0\1", b"\3\x23\0\1", b"payload")
    again = [packet(0x32, "", b"\0\1", b"\3\x23\0\1", b"%d" % index) for index in range(10)]
    wrong = packet(
        0x32, "", b"\0\1", b"\0\1t\0", b"1"
    )  # no property, and a payload that looks like the head of `named`
    machine = connected_5(config())
    for _ in range(2):
        found = machine.receive_data(b"".join([alias, named, *again, named]))
        assert sum(len(run.payloads) for run in found if isinstance(run, PublishRun)) == 13
    with pytest.raises(MqttProtocolError):
        machine.receive_data(b"".join([named, *again, wrong]))
