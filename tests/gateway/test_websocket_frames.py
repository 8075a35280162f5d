"""Frames in and out (RFC 6455), without sockets: an independent implementation is at the other end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import CLIENT, Connection
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage

from gateway.websocket import CONTROL_FRAMES_MAX, FRAME_BYTES, ControlFrame, WebSocket, header, unmasked
from protocols.buffers import BytesLike

MESSAGE_BYTES_MAX = 1 << 20

MASK = bytes((1, 2, 3, 4))


def server(data: bytes = b"") -> WebSocket:
    return WebSocket(MESSAGE_BYTES_MAX, data)


def masked(first: int, payload: bytes) -> bytes:
    """A frame as a client sends it, whatever its first byte is."""
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((first, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + MASK + unmasked(payload, MASK)


def told(web: WebSocket) -> list[Event]:
    """What the client hears of the server's own accord."""
    client = Connection(CLIENT)
    client.receive_data(b"".join(web.answers()))
    return list(client.events())


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=12),
    large=st.integers(0, 70_000),
    seed=st.integers(0, 1 << 30),
)
def test_frames_of_any_size_cut_anywhere_give_their_bytes(messages: list[list[bytes]], large: int, seed: int) -> None:
    client, chance = Connection(CLIENT), random.Random(seed)
    messages = [*messages, [chance.randbytes(large)]]
    stream = b""
    for pieces in messages:
        for index, piece in enumerate(pieces):
            stream += client.send(Message(data=piece, message_finished=index == len(pieces) - 1))
            if chance.random() < 0.2:  # between the frames of a message it is allowed, too
                stream += client.send(Ping(payload=b"?"))
    web, received = server(), b""
    while stream:
        size = chance.choice((1, 2, 7, 100, 5000, 100_000))
        received += web.receive(stream[:size])
        stream = stream[size:]
    assert received == b"".join(piece for pieces in messages for piece in pieces)
    assert not web.ended


def test_what_came_with_the_handshake_is_read_first() -> None:
    stream = masked(0x82, b"first") + masked(0x82, b"second")
    web = server(stream[:8])
    assert web.receive(b"") + web.receive(stream[8:]) == b"firstsecond"


def packet(payload_bytes: int) -> bytes:
    """A PUBLISH at QoS 0 of so many random bytes."""
    rest, length = 3 + payload_bytes, bytearray()
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return b"0" + bytes((*length, rest)) + b"\0\1t" + random.Random(payload_bytes).randbytes(payload_bytes)


def taken(pieces: list[BytesLike]) -> list[bytes]:
    """What a client gets of pieces as they are sent, a message each."""
    client = Connection(CLIENT)
    client.receive_data(b"".join(bytes(piece) for piece in pieces))
    messages = [b""]
    for event in client.events():
        assert isinstance(event, BytesMessage)
        messages[-1] += event.data
        if event.message_finished:
            messages.append(b"")
    return messages[:-1]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 119, 120, 121, 124, 125, 300, 16_380, 65_530, 65_531, 70_000]), max_size=6),
    seed=st.integers(0, 1 << 30),
)
def test_each_packet_is_a_frame_however_it_was_written(sizes: list[int], seed: int) -> None:
    chance, packets = random.Random(seed), [packet(size) for size in sizes]
    web, written = server(), []
    while packets[len(written) :]:  # turns that write some packets each, in pieces that end anywhere behind a head
        turn = packets[len(written) : len(written) + chance.randint(1, 3)]
        written += turn
        data, pieces = b"".join(turn), []
        ends = [sum(map(len, turn[:index])) for index in range(len(turn))]
        cuts = sorted({0, *(end + 4 for end in ends if chance.random() < 0.5), *(end for end in ends if end & 1)})
        for start, stop in zip(cuts, [*cuts[1:], len(data)], strict=True):
            pieces.append(chance.choice((bytes, bytearray, memoryview))(data[start:stop]))
        assert taken(web.frame([piece for piece in pieces if piece])) == turn


@pytest.mark.parametrize("size", [FRAME_BYTES - 7, FRAME_BYTES - 6, 3 * FRAME_BYTES])
def test_a_packet_that_is_too_large_for_a_frame_is_several(size: int) -> None:
    large, small = packet(size), packet(1)
    frames = taken(server().frame([small + large[:5], large[5:] + small]))
    assert (frames[0], b"".join(frames[1:-1]), frames[-1]) == (small, large, small)
    assert len(frames) == 2 + -(-len(large) // FRAME_BYTES)


def test_what_a_turn_left_of_a_packet_comes_in_the_next() -> None:
    web, data = server(), packet(10)
    assert taken(web.frame([data + data[:7]])) == [data, data[:7]]
    assert taken(web.frame([data[7:] + data])) == [data[7:], data]


def test_control_frames_keep_their_place() -> None:
    web = server()
    web.receive(masked(0x89, b"are you there"))
    (pong,) = web.answers()
    client = Connection(CLIENT)
    first, second = packet(1), packet(2)
    client.receive_data(b"".join(bytes(piece) for piece in web.frame([first, second, pong, first])))
    kinds = [event.data if isinstance(event, BytesMessage) else event for event in client.events()]
    assert kinds == [first, second, Pong(payload=b"are you there"), first]


def test_of_many_pings_the_last_is_answered() -> None:
    web = server()
    assert web.receive(masked(0x89, b"1") + masked(0x82, b"data") + masked(0x89, b"2")) == b"data"
    assert told(web) == [Pong(payload=b"2")]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (masked(0x81, b"text"), 1003),  # [MQTT-6.0.0-1]
        (masked(0x01, b"te"), 1003),
        (b"\x82\x04data", 1002),  # not masked
        (masked(0xC2, b"compressed"), 1002),
        (masked(0x83, b"unknown"), 1002),
        (masked(0x8B, b"unknown control"), 1002),
        (masked(0x80, b"continues nothing"), 1002),
        (masked(0x02, b"begins") + masked(0x82, b"begins again"), 1002),
        (masked(0x09, b"ping in parts"), 1002),
        (masked(0x89, bytes(126)), 1002),
        (masked(0x88, b"\x03"), 1002),
        (masked(0x82, bytes(MESSAGE_BYTES_MAX + 1))[:20], 1009),
        (masked(0x02, bytes(MESSAGE_BYTES_MAX)) + masked(0x80, b"1"), 1009),
        (b"\x82\xff" + b"\xff" * 8 + MASK, 1009),
        (masked(0x8A, b"") * (CONTROL_FRAMES_MAX + 1), 1008),
    ],
)
def test_what_breaks_the_rules_ends_it_with_a_code(stream: bytes, code: int) -> None:
    web = server()
    before = web.receive(masked(0x82, b"before") + stream + masked(0x82, b"behind"))
    assert before.startswith(b"before")
    assert not before.endswith(b"behind")
    assert web.ended
    assert web.answers() == []  # what the protocol has to say to what came before goes first (RFC 6455 5.5.1)
    web.go_away()
    client = Connection(CLIENT)
    client.receive_data(web.goodbye())
    (closed,) = client.events()
    assert isinstance(closed, CloseConnection)
    assert closed.code == code
    assert web.receive(masked(0x82, b"more")) == b""
    assert web.goodbye() == b""  # closed is closed


def test_a_close_is_answered_with_its_code() -> None:
    web = server()
    client = Connection(CLIENT)
    assert web.receive(masked(0x82, b"last") + client.send(CloseConnection(4001, "enough"))) == b"last"
    assert web.ended
    client.receive_data(web.goodbye())
    (closed,) = client.events()
    assert isinstance(closed, CloseConnection)
    assert closed.code == 4001


@pytest.mark.parametrize("cut", range(1, 14))
def test_of_a_header_in_parts_only_its_bytes_are_kept(cut: int) -> None:
    frame = masked(0x82, bytes(70_000))
    web = server()
    assert web.receive(frame[:cut]) == b""
    assert web.receive(frame[cut:]) == bytes(70_000)


def test_lengths_are_written_as_short_as_they_are() -> None:
    assert [header(size).hex() for size in (0, 125, 126, 65_535, 65_536)] == [
        "8200", "827d", "827e007e", "827effff", "827f0000000000010000",
    ]  # fmt: skip


def test_the_server_closes_normally_or_goes_away() -> None:
    for code in (1000, 1001):
        web = server()
        web.farewell = code
        client = Connection(CLIENT)
        frame = web.goodbye()
        assert isinstance(frame, ControlFrame)
        client.receive_data(frame)
        (closed,) = client.events()
        assert isinstance(closed, CloseConnection)
        assert closed.code == code


def test_text_is_no_message_of_ours() -> None:
    client, web = Connection(CLIENT), server()
    web.receive(client.send(TextMessage(data="hello")))
    assert web.ended
