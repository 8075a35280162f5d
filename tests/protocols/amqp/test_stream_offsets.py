"""The offset in a property list: added to every kind of list, and to nothing that is none."""

from __future__ import annotations

import itertools
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st

from protocols.amqp import methods
from protocols.amqp.errors import SyntaxFault
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from protocols.amqp.stream_offsets import with_offsets
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import call, publish

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": {"c": [True, None]}},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}
LARGE = 1 << 20


def test_every_set_of_properties_keeps_all_it_had() -> None:
    names = list(ALL)
    kinds = [set(names), set(), *({name} for name in names), *map(set, itertools.combinations(names, 2))]
    kinds += [set(names) - {name} for name in names]
    raws = [encode_properties(BasicProperties(**{name: ALL[name] for name in kind})) for kind in kinds]
    for offset, (kind, raw) in enumerate(zip(kinds, with_offsets(raws, 0, LARGE), strict=True)):
        expected = {name: ALL[name] for name in kind}
        expected["headers"] = expected.get("headers", {}) | {"x-stream-offset": offset}
        assert decode_properties(raw) == BasicProperties(**expected)


def test_equal_lists_differ_in_nothing_but_the_offset() -> None:
    raw = encode_properties(BasicProperties(**ALL))
    first, second, third = with_offsets([raw] * 3, (1 << 40) - 1, LARGE)
    offsets = [decode_properties(one).headers["x-stream-offset"] for one in (first, second, third)]  # type: ignore[index]
    assert offsets == [(1 << 40) - 1, 1 << 40, (1 << 40) + 1]
    assert len(first) == len(second) == len(third)


def test_a_publishers_own_header_of_the_name_comes_first() -> None:
    raw = encode_properties(BasicProperties(headers={"x-stream-offset": "mine", "a": 1}))
    (got,) = with_offsets([raw], 5, LARGE)
    assert decode_properties(got).headers == {"x-stream-offset": 5, "a": 1}


def test_what_is_no_property_list_is_replaced_by_the_offset_alone() -> None:
    good = encode_properties(BasicProperties(**ALL))
    bad = [b"", b"\0", b"\0\1", b"\0\2", good + b"x", *(good[:end] for end in range(len(good)))]
    bad.append(encode_properties(BasicProperties(headers={"a": 1})).replace(b"I", b"?"))
    for raw in bad:
        assert [decode_properties(one).headers for one in with_offsets([raw], 3, LARGE)] == [{"x-stream-offset": 3}]
        mixed = with_offsets([good, raw], 2, LARGE)
        assert decode_properties(mixed[0]).app_id == "app"
        assert decode_properties(mixed[1]).headers == {"x-stream-offset": 3}


def test_a_list_that_no_frame_holds_loses_all_but_the_offset() -> None:
    raw = encode_properties(BasicProperties(headers={"a": "x" * 5000}))
    (fits,) = with_offsets([raw], 0, len(raw) + 40)
    assert decode_properties(fits).headers == {"a": "x" * 5000, "x-stream-offset": 0}
    (cut,) = with_offsets([raw], 0, len(raw))
    assert decode_properties(cut).headers == {"x-stream-offset": 0}


async def test_each_consumer_gets_what_its_own_frames_hold(world: World) -> None:
    clients = [await world.client(), await world.client(frame_bytes_max=20_000)]
    await clients[0].calls(methods.QueueDeclare(queue="s", durable=True, arguments={"x-queue-type": "stream"}))
    await clients[0].calls(methods.ConfirmSelect())
    raws = [encode_properties(BasicProperties(headers={"h": "v" * size})) for size in (30_000, 1)]
    await clients[0].send(*(publish("s", b"x", raw=raw) for raw in raws))
    await clients[0].expect(methods.BasicAck(2, multiple=True))
    kept = []
    for client in clients:
        await client.calls(methods.BasicQos(prefetch_count=100))
        consume = methods.BasicConsume(queue="s", consumer_tag="c", arguments={"x-stream-offset": "first"})
        await client.send(call(1, consume))
        got: list[bytes] = []
        with trio.fail_after(5):
            while True:
                got += [raw for _, method, raw, _ in client.take() if isinstance(method, methods.BasicDeliver)]
                if len(got) == len(raws):
                    break
                await world.next_turn()
        kept.append(["h" in (decode_properties(raw).headers or {}) for raw in got])
    assert kept == [[True, True], [False, True]]


@given(st.binary(max_size=60), st.integers(0, 3))
def test_whatever_comes_out_can_be_read(noise: bytes, place: int) -> None:
    good = encode_properties(BasicProperties(headers={"a": 1}, app_id="x"))
    cut = len(good) * place // 3
    for raw in (noise, good[:cut] + noise, noise + good[cut:]):
        (got,) = with_offsets([raw], 1, LARGE)
        found = decode_properties(got)
        assert found.headers is not None
        assert found.headers["x-stream-offset"] == 1
        try:
            before = decode_properties(raw)
        except SyntaxFault:
            continue
        assert found.app_id == before.app_id
