"""Blocks that are recognised say what they say when they are read; what is not in order is never recognised."""

from __future__ import annotations

import random

import pytest

from protocols.mqtt import alike_blocks, publish_runs_5
from protocols.mqtt.alike_blocks import note_alike, read_alike
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.properties import Property, encode_properties, with_length
from protocols.mqtt.publish_blocks import read_publish_block
from protocols.mqtt.publish_runs_5 import PublishRuns5
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.wire import remaining_length

USER, TYPE, CORRELATION = Property.USER_PROPERTY, Property.CONTENT_TYPE, Property.CORRELATION_DATA


def block(*properties: tuple[int, object]) -> bytes:
    return with_length(encode_properties(properties))


def body(whole: bytes) -> bytes:
    return whole[1 if whole[0] < 128 else 2 :]


def kinds(number: int) -> list[bytes]:
    """Blocks of many kinds whose values differ from number to number, and nothing else does."""
    time, id_bytes = f"{number:013}", number.to_bytes(8, "big")
    return [
        block((USER, ("ts", time))),
        block((TYPE, "application/json"), (USER, ("sensor", "7")), (USER, ("ts", time))),
        block((CORRELATION, id_bytes), (USER, ("a", "b"))),
        block((Property.PAYLOAD_FORMAT, 1), (CORRELATION, id_bytes)),
        block((Property.MESSAGE_EXPIRY, number % 7), (USER, ("n", time))),
        block((USER, ("name", time)), (Property.TOPIC_ALIAS, number % 9 + 1), (Property.MESSAGE_EXPIRY, number)),
        block((USER, ("long", time * 20))),
    ]


def test_what_is_recognised_says_the_same_as_when_it_is_read() -> None:
    alike_blocks._blueprints.clear()
    for whole in kinds(1):
        assert read_alike(whole) is None
        note_alike(whole)
    for number in range(2, 50):
        for whole in kinds(number):
            assert read_alike(whole) == read_publish_block(body(whole))


def test_whatever_is_changed_in_a_block_nothing_is_recognised_that_is_not_in_order() -> None:
    alike_blocks._blueprints.clear()
    chosen = random.Random(7)
    for whole in kinds(1):
        note_alike(whole)
    recognised = 0
    for number in range(2, 3000):
        changed = bytearray(chosen.choice(kinds(number)))
        for _ in range(chosen.randrange(3)):
            changed[chosen.randrange(len(changed))] = chosen.choice(
                (0, 1, 35, 38, 127, 128, 255, chosen.randrange(256))
            )
        quick = read_alike(bytes(changed))
        if quick is not None:
            recognised += 1
            assert quick == read_publish_block(body(bytes(changed)))
    assert recognised > 1000


def test_blocks_that_cannot_be_recognised_are_not() -> None:
    alike_blocks._blueprints.clear()
    for whole in (block((Property.RESPONSE_TOPIC, "a/b")), block((USER, ("ä", "1")))):
        note_alike(whole)
        assert read_alike(whole) is None
    note_alike(block((Property.TOPIC_ALIAS, 3), (USER, ("a", "b"))))
    assert read_alike(block((Property.TOPIC_ALIAS, 0), (USER, ("a", "b")))) is None


def publishes(first: int, count: int) -> bytes:
    packets = []
    for number in range(first, first + count):
        content = b"\0\3a/b" + kinds(number)[1] + b"x"
        packets.append(b"\x30" + remaining_length(len(content)) + content)
    return b"".join(packets)


def test_a_stream_of_blocks_that_never_come_again_reads_as_it_did_at_first() -> None:
    publish_runs_5._blocks.clear()
    runs, found = PublishRuns5(MqttConfig()), []
    data = publishes(0, publish_runs_5._BLOCKS_REMEMBERED_MAX + 300)
    position = 0
    while position < len(data):
        run, position = runs.take(data, position, position + 2, position + 2 + data[position + 1])
        found += run.raws or [run.raw] * len(run.payloads)
    assert len(publish_runs_5._blocks) == publish_runs_5._BLOCKS_REMEMBERED_MAX
    assert found == [body(kinds(number)[1]) for number in range(len(found))]
    bad = publishes(9_999_999, 1).replace(b"9999999", b"999\x00999")
    with pytest.raises(MqttProtocolError, match=r"U\+0000"):
        runs.take(bad, 0, 2, 2 + bad[1])


def test_now_and_then_what_comes_is_remembered_anew() -> None:
    blocks = publish_runs_5._Blocks()
    for number in range(publish_runs_5._BLOCKS_REMEMBERED_MAX):
        blocks[b"%d" % number] = read_publish_block(b"")
    asked = 0
    while blocks.are_many():
        asked += 1
    assert asked == publish_runs_5._STRANGERS_MAX - 1
    assert not blocks
