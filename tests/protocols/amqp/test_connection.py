"""The state machine: handshake, terms, channels, closing, and what is answered to everything that is wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp import methods
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import PROTOCOL_HEADER, Event, MethodReceived, State
from protocols.amqp.errors import AmqpError
from protocols.amqp.login import Credentials, read_credentials
from protocols.amqp.properties import BasicProperties, encode_properties
from protocols.amqp.publish_run import AckRange, PublishRun
from protocols.amqp.timers import ConnectionTimers, Due
from protocols.amqp.wire import table
from protocols.sansio import RemoteProtocolError
from tests.protocols.amqp.wire import HANDSHAKE, OPEN, PERSISTENT, START_OK, TUNE_OK, Wire, call, frame, publish

CLOSE = methods.ConnectionClose(200, "bye")
PUBLISH = methods.BasicPublish(0, "", "q").encode()
HEADER = b"\0\x3c\0\0" + (4).to_bytes(8, "big") + b"\0\0"


def fault(wire: Wire, data: bytes) -> AmqpError:
    """The error that `data` ends in."""
    error = wire.receive(data)[-1]
    assert isinstance(error, AmqpError)
    return error


# --- handshake -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_a_client_may_begin_as_in_0_9(size: int) -> None:
    # aioamqp and others speak 0-9-1 with the header of 0-9; RabbitMQ 3.10 was seen to answer both alike
    wire = Wire()
    wire.receive_in(b"AMQP\1\1\0\x09" + HANDSHAKE[8:], size)
    assert wire.answers() == [(0, methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US"))]
    assert wire.connection.state is State.OPEN


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_handshake_leads_to_an_open_connection(size: int) -> None:
    wire = Wire()
    events = wire.receive_in(HANDSHAKE, size)
    assert [event.method for event in events if isinstance(event, MethodReceived)] == [START_OK, TUNE_OK, OPEN]
    ((channel, start),) = wire.answers()
    assert (channel, start) == (0, methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US"))
    assert wire.connection.state is State.OPEN
    assert wire.connection.heartbeat_s == 60


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\0\1\0\0",
        b"AMQP\3\1\0\0",
        b"AMQP\0\0\x09\0",
        b"AMQP\1\1\x08\0",
        b"AMQP\1\1\0\x0a",
        b"GET / HT",
        b"\x16\3\1\0\1\0\0\0",
        b"X",
    ],
)
def test_other_protocols_are_told_which_one_is_spoken(header: bytes) -> None:
    wire = Wire()
    assert wire.receive(header + b"whatever") == []
    assert bytes(wire.sent) == PROTOCOL_HEADER
    assert wire.connection.closed
    assert wire.receive(HANDSHAKE) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            methods.ConnectionTuneOk(2048, 131072, 60),
            "channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
        (
            methods.ConnectionTuneOk(1, 131073, 60),
            "frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (methods.ConnectionTuneOk(1, 4095, 60), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_terms_beyond_the_offer_are_refused(answer: methods.ConnectionTuneOk, text: str) -> None:
    error = fault(Wire(), PROTOCOL_HEADER + call(0, START_OK, answer))
    assert (error.code, error.reply_text) == (530, f"NOT_ALLOWED - negotiated {text}")
    assert error.closes_connection


@pytest.mark.parametrize("answer", [methods.ConnectionTuneOk(1, 4096, 0), methods.ConnectionTuneOk(0, 0, 1)])
def test_terms_within_the_offer_are_taken(answer: methods.ConnectionTuneOk) -> None:
    wire = Wire()
    wire.receive(PROTOCOL_HEADER + call(0, START_OK, answer, OPEN))
    assert wire.connection.frame_bytes_max == (answer.frame_max or 131072)
    assert wire.connection.channel_max == (answer.channel_max or 2047)
    assert wire.connection.heartbeat_s == answer.heartbeat


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (call(0, TUNE_OK), "starting"),
        (call(0, START_OK, OPEN), "tuning"),
        (call(0, START_OK, TUNE_OK, START_OK), "opening"),
        (call(0, START_OK, TUNE_OK, OPEN, START_OK), "running"),
        (call(0, START_OK, TUNE_OK, OPEN, OPEN), "running"),
        (call(0, START_OK, TUNE_OK, OPEN, methods.ChannelOpen()), "running"),
    ],
)
def test_methods_out_of_order_are_channel_errors(data: bytes, state: str) -> None:
    error = fault(Wire(), PROTOCOL_HEADER + data)
    assert (error.code, error.reply_text) == (504, f"CHANNEL_ERROR - unexpected method in connection state {state}")


def test_channels_wait_for_the_handshake() -> None:
    error = fault(Wire(), PROTOCOL_HEADER + call(1, methods.ChannelOpen()))
    assert error.code == 505


def test_frames_before_login_are_small() -> None:
    limit = AmqpConfig().handshake_frame_bytes_max
    wire = Wire()
    wire.receive(PROTOCOL_HEADER)
    assert wire.receive(frame(1, 0, bytes(limit))[:-1]) == []
    wire = Wire()
    assert fault(wire, PROTOCOL_HEADER + frame(1, 0, bytes(limit + 1))[:7]).code == 501


@pytest.mark.parametrize(
    ("mechanism", "response", "found"),
    [
        ("PLAIN", b"\0guest\0secret", Credentials("guest", b"secret")),
        ("PLAIN", b"\0guest\0", Credentials("guest", b"")),
        ("PLAIN", b"other\0guest\0", 403),
        ("PLAIN", b"guest\0secret", 403),
        ("PLAIN", b"", 403),
        ("AMQPLAIN", table({"LOGIN": "guest", "PASSWORD": "secret"})[4:], Credentials("guest", b"secret")),
        ("AMQPLAIN", table({"LOGIN": "guest"})[4:], 403),
        ("AMQPLAIN", b"\5LOGIN", 502),
    ],
)
def test_credentials(mechanism: str, response: bytes, found: Credentials | int) -> None:
    if isinstance(found, Credentials):
        assert read_credentials(mechanism, response) == found
    else:
        with pytest.raises(AmqpError) as caught:
            read_credentials(mechanism, response)
        assert caught.value.code == found


# --- what is wrong with frames -----------------------------------------------------------

FAULTS = [
    (frame(1, 1, b"\0\x3c\0\x28", b"\xcd"), 501, "type 1, all octets = <<0,60,0,40>>: {invalid_frame_end_marker,205}"),
    (frame(2, 1, bytes(131073))[:7], 501, "type 2, all octets = <<>>: {frame_too_large,131073,131064}"),
    (frame(8, 0, b"")[:-1] + b"A", 501, "type 8, all octets = <<>>: {invalid_frame_end_marker,65}"),
    (frame(4, 1, b"abc"), 501, 'type 4, all octets = <<"abc">>: unknown_frame'),
    (frame(8, 0, b"x"), 501, 'type 8, all octets = <<"x">>: unknown_frame'),
    (frame(0, 0, bytes(20)), 501, "type 0, first 16 octets = <<0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0>>: unknown_frame"),
    (frame(8, 1, b""), 505, "type 8, all octets = <<>>"),
    (frame(2, 0, b""), 505, "type 2, all octets = <<>>"),
    (frame(3, 1, b"x"), 505, "expected method frame, got non method frame instead"),
    (frame(2, 7, b"x"), 505, "expected method frame, got non method frame instead"),
    (
        frame(1, 1, PUBLISH) + frame(1, 1, PUBLISH),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        frame(1, 1, PUBLISH) + frame(3, 1, b"x"),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        frame(1, 1, PUBLISH) + frame(2, 1, HEADER) + frame(1, 1, PUBLISH),
        505,
        "expected content body, got non content body frame instead",
    ),
    (
        frame(1, 1, PUBLISH) + frame(2, 1, b"\0\x32" + HEADER[2:]),
        505,
        "expected content header for class 60, got one for class 50 instead",
    ),
    (
        frame(1, 1, PUBLISH) + frame(2, 1, HEADER[:13]),
        501,
        "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,4,0>>: unknown_frame",
    ),
    (
        frame(1, 1, PUBLISH) + frame(2, 1, HEADER[:3] + b"\1" + HEADER[4:]),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (frame(1, 1, PUBLISH) + frame(2, 1, HEADER[:12] + b"\0\1\0\0"), 502, "unknown property flags"),
    (publish("q", b"body", raw=b"\x20\0\0\0\0\3\1a?"), 502, "unknown field type b'?'"),
    (
        frame(1, 1, PUBLISH) + frame(2, 1, HEADER) + frame(3, 1, b"12345"),
        505,
        "expected content body, got non content body frame instead",
    ),
    (frame(1, 1, b""), 501, "type 1, all octets = <<>>: unknown_frame"),
    (frame(1, 1, PUBLISH[:-1]), 501, "cannot decode <<0,0,0,1,113>>"),
    (frame(1, 1, PUBLISH + b"\0"), 501, "cannot decode <<0,0,0,1,113,0,0>>"),
    (frame(1, 1, b"\0\x3c\0\x50"), 501, "cannot decode <<>>"),
    (frame(1, 1, b"\0\x32\0\x0a\0\0\1q\0\0\0\0\5\1aS\0\0"), 501, "cannot decode <<0,0,1,113,0,0,0,0,5,1,97,83,0,0>>"),
    (frame(1, 1, b"\0\x63\0\1"), 540, "no method 1 in class 99"),
    (frame(1, 0, b"\0\x63\0\1"), 540, "no method 1 in class 99"),
    (frame(1, 1, methods.BasicPublish(immediate=True).encode()), 540, "immediate=true"),
    (call(1, methods.BasicDeliver()), 503, "unimplemented method"),
    (call(1, methods.QueueDeclareOk()), 503, "unimplemented method"),
    (call(1, CLOSE), 503, "unimplemented method"),
    (call(1, methods.ChannelCloseOk()), 503, "unimplemented method"),
    (call(1, methods.ChannelOpen()), 504, "second 'channel.open' seen"),
    (call(2, methods.BasicQos()), 504, "expected 'channel.open'"),
    (frame(1, 2, PUBLISH), 504, "expected 'channel.open'"),
    (call(1, methods.ChannelFlowOk(True)), 503, "unimplemented method"),
    (call(1, methods.BasicCancelOk("c")), 503, "unimplemented method"),
    (call(5, methods.ChannelCloseOk()), 504, "expected 'channel.open'"),
    (call(0, methods.ConnectionTune()), 504, "unexpected method in connection state running"),
]


@pytest.mark.parametrize(("data", "code", "text"), FAULTS)
@pytest.mark.parametrize("size", [1, 100_000_000])
def test_faults_close_the_connection_with_the_right_words(data: bytes, code: int, text: str, size: int) -> None:
    wire = Wire.opened()
    before = publish("q", b"safe")
    events: list[Event] = []
    for at in range(0, len(before + data), size):
        events += wire.receive((before + data)[at : at + size])
        if events and isinstance(events[-1], AmqpError):
            break
    # What came before the fault is not lost.
    assert events[0] == PublishRun(1, "", "q", False, b"\x10\0\2", [b"safe"])
    error = events[-1]
    assert isinstance(error, AmqpError)
    assert len(events) == 2
    assert (error.code, error.explanation, error.closes_connection) == (code, text, True)
    wire.connection.close_connection(error)
    ((channel, close),) = wire.answers()
    assert (channel, close) == (
        0, methods.ConnectionClose(code, f"{error.name} - {text}", error.class_id, error.method_id)
    )  # fmt: skip


def test_frames_may_be_as_large_as_agreed_and_eight_bytes_more() -> None:
    for body_bytes, legal in ((131064, True), (131072, True), (131073, False)):
        data = publish("q", bytes(body_bytes), frame_bytes_max=200_000)
        event = Wire.opened().receive(data)[-1]
        assert isinstance(event, PublishRun if legal else AmqpError)


def test_a_fault_found_in_step_leaves_the_close_readable() -> None:
    wire = Wire.opened()
    tail = publish("q", b"dropped") + call(0, methods.ConnectionCloseOk())
    error = fault(wire, call(2, methods.BasicQos()) + tail[:10])
    wire.connection.close_connection(error)
    assert wire.receive(tail[10:]) == [MethodReceived(0, methods.ConnectionCloseOk())]
    assert wire.connection.closed


def test_a_lost_frame_boundary_ends_reading() -> None:
    wire = Wire.opened()
    error = fault(wire, frame(1, 1, b"\0\x3c\0\x28", b"\0"))
    wire.connection.close_connection(error)
    assert wire.receive(call(0, methods.ConnectionCloseOk())) == []


def test_while_closing_only_the_close_counts() -> None:
    wire = Wire.opened()
    wire.connection.close_connection(AmqpError("INTERNAL_ERROR", "x"))
    wire.sent.clear()
    assert wire.receive(publish("q", b"x") + frame(8, 0, b"") + call(1, methods.BasicQos()) + call(0, CLOSE)) == []
    assert wire.answers() == [(0, methods.ConnectionCloseOk())]
    wire.connection.close_connection(AmqpError("INTERNAL_ERROR", "again"))
    assert len(wire.answers()) == 1


def test_the_peers_close_ends_everything() -> None:
    wire = Wire.opened()
    assert wire.receive(call(0, CLOSE) + publish("q", b"late")) == [MethodReceived(0, CLOSE)]
    assert wire.connection.closed


# --- channels ----------------------------------------------------------------------------


def test_a_closed_channel_ignores_all_but_the_answer() -> None:
    wire = Wire.opened(channels=2)
    wire.receive(publish("q", b"partly", channel=1)[:-3])
    wire.connection.close_channel(AmqpError("NOT_FOUND", "no such thing", channel=1, method_id=0x32000A))
    assert wire.answers() == [(1, methods.ChannelClose(404, "NOT_FOUND - no such thing", 50, 10))]
    wire.sent.clear()
    ignored = publish("q", b"x") + call(1, methods.BasicAck(1), methods.BasicQos()) + frame(3, 1, b"?")
    rest = publish("q", b"partly", channel=1)[-3:]
    assert wire.receive(rest + ignored + publish("q", b"two", channel=2)) == [
        PublishRun(2, "", "q", False, b"\x10\0\2", [b"two"])
    ]
    # Both sides closing at once is answered, and our own close is still to be answered.
    assert wire.receive(call(1, methods.ChannelClose(200, "bye"), methods.BasicAck(1))) == []
    assert wire.answers() == [(1, methods.ChannelCloseOk())]
    events = wire.receive(call(1, methods.ChannelCloseOk(), methods.ChannelOpen()) + publish("q", b"again"))
    assert [type(event) for event in events] == [MethodReceived, PublishRun]


def test_a_channel_may_be_closed_and_opened_again() -> None:
    wire = Wire.opened()
    again = call(1, methods.ChannelClose(), methods.ChannelOpen())
    events = wire.receive(publish("q", b"1") + again + publish("q", b"2") + call(1, methods.BasicAck(1)))
    assert [type(event) for event in events] == [PublishRun, MethodReceived, MethodReceived, PublishRun, AckRange]


def test_channels_up_to_the_limit() -> None:
    wire = Wire.opened(AmqpConfig(channel_max=2047), channels=2047)
    assert fault(wire, call(2048, methods.ChannelOpen())).code == 530
    assert len(Wire.opened().receive(call(0xFFFF, methods.ChannelOpen()))) == 1
    wire = Wire()
    wire.receive(PROTOCOL_HEADER + call(0, START_OK, methods.ConnectionTuneOk(2, 0, 0), OPEN))
    assert len(wire.receive(call(1, methods.ChannelOpen()) + call(2, methods.ChannelOpen()))) == 2
    assert fault(wire, call(3, methods.ChannelOpen())).explanation == (
        "number of channels opened (2) has reached the negotiated channel_max (2)"
    )


@pytest.mark.parametrize("frame_bytes_max", [4096, 131072])
def test_messages_up_to_the_limit(frame_bytes_max: int) -> None:
    config = AmqpConfig(message_bytes_max=10_000)
    fits, too_large = (publish("q", bytes(size), frame_bytes_max=frame_bytes_max) for size in (10_000, 10_001))
    for size in (1 << 20, 500):
        wire = Wire.opened(config)
        events = wire.receive_in(fits + too_large + publish("q", b"ignored"), size)
        assert [type(event) for event in events] == [PublishRun, AmqpError]
        error = events[-1]
        assert isinstance(error, AmqpError)
        assert error.reply_text == ("PRECONDITION_FAILED - message size 10001 is larger than configured max size 10000")
        assert not error.closes_connection
        wire.connection.close_channel(error)
        assert wire.answers() == [(1, methods.ChannelClose(406, error.reply_text, 60, 40))]
        events = wire.receive(call(1, methods.ChannelCloseOk(), methods.ChannelOpen()) + publish("q", b"fine"))
        assert isinstance(events[-1], PublishRun)


def test_unfinished_messages_up_to_the_limit() -> None:
    wire = Wire.opened(AmqpConfig(unfinished_bytes_max=3001 + 3 * len(PERSISTENT)), channels=4)

    def begin(channel: int) -> bytes:
        return publish("q", bytes(1001), channel=channel, frame_bytes_max=1008)[:-9]

    assert wire.receive(b"".join(map(begin, (1, 2, 3)))) == []
    # One that is finished, and one whose channel closes, no longer count.
    (run,) = wire.receive(frame(3, 1, b"x"))
    assert isinstance(run, PublishRun)
    wire.connection.close_channel(AmqpError("NOT_FOUND", "x", channel=2))
    assert wire.receive(begin(1) + begin(4)) == []
    # Channels 1, 3 and 4 hold 1000 bytes each; with the end of each there is room for one byte more.
    assert len(wire.receive(frame(3, 1, b"x") + begin(1) + frame(3, 3, b"x") + begin(3))) == 2
    grown = publish("q", bytes(1002), channel=5, frame_bytes_max=9)
    wire.receive(call(5, methods.ChannelOpen()))
    error = fault(wire, grown)
    assert (error.code, error.closes_connection) == (506, True)


def test_properties_of_unfinished_messages_count() -> None:
    raw = encode_properties(BasicProperties(headers={"h": "x" * 1000}))
    wire = Wire.opened(AmqpConfig(unfinished_bytes_max=2 * len(raw) + 1), channels=3)
    first, second, third = (publish("q", b"x", channel=channel, raw=raw)[:-9] for channel in (1, 2, 3))
    assert wire.receive(first + second) == []
    (run,) = wire.receive(frame(3, 1, b"x"))
    assert isinstance(run, PublishRun)
    assert wire.receive(third) == []
    error = fault(wire, first)
    assert (error.code, error.closes_connection) == (506, True)


# --- anything at all ---------------------------------------------------------------------

NOISE = st.one_of(
    st.binary(max_size=40),
    st.builds(frame, st.sampled_from([0, 1, 2, 3, 8, 255]), st.sampled_from([0, 1, 2, 65535]), st.binary(max_size=30)),
    st.builds(
        lambda ident, rest: frame(1, 1, ident.to_bytes(4, "big") + rest),
        st.sampled_from(sorted(methods.METHODS)),
        st.binary(max_size=20),
    ),
    st.sampled_from([frame(1, 1, PUBLISH), frame(2, 1, HEADER), frame(3, 1, b"body"), publish("q", b"x"), HANDSHAKE]),
)


@settings(max_examples=400)
@given(st.lists(NOISE, max_size=6), st.booleans(), st.integers(1, 50))
def test_any_bytes_give_events_or_the_error_to_answer(pieces: list[bytes], opened: bool, size: int) -> None:
    wire = Wire.opened() if opened else Wire()
    if not opened:
        wire.receive(PROTOCOL_HEADER)
    for event in wire.receive_in(b"".join(pieces), size):
        if isinstance(event, AmqpError):
            assert isinstance(event, RemoteProtocolError)
            if event.closes_connection:
                wire.connection.close_connection(event)
            else:
                wire.connection.close_channel(event)
    wire.answers()


# --- timers ------------------------------------------------------------------------------


def test_the_handshake_must_be_over_in_time() -> None:
    timers = ConnectionTimers(100.0, 10.0)
    timers.received(105.0)
    assert timers.next_at() == 110.0
    assert timers.due(109.9) is Due.NOTHING
    assert timers.due(110.0) is Due.GIVE_UP


def test_heartbeats_are_sent_when_idle_and_expected() -> None:
    timers = ConnectionTimers(0.0, 10.0)
    timers.opened(1.0, 10)
    assert timers.next_at() == 6.0
    assert timers.due(6.0) is Due.SEND_HEARTBEAT
    timers.wrote = True
    assert timers.due(11.0) is Due.NOTHING
    assert timers.next_at() == 13.5
    assert timers.due(13.5) is Due.SEND_HEARTBEAT
    assert timers.next_at() == 18.5
    timers.received(17.0)
    assert timers.due(46.9) is Due.SEND_HEARTBEAT, "RabbitMQ may take as long, and there are clients that do"
    assert timers.next_at() == 47.0
    assert timers.due(47.0) is Due.GIVE_UP


@pytest.mark.parametrize("writes", [[], [1.0], [6.01], [6.01, 8.6, 11.2], [11.0, 16.0, 18.5]])
def test_no_silence_of_ours_is_as_long_as_an_interval(writes: list[float]) -> None:
    timers = ConnectionTimers(0.0, 10.0)
    timers.opened(1.0, 10)
    timers.wrote = True
    sent, left = [1.0], list(writes)
    while sent[-1] < 60:
        timers.received(now := timers.next_at())
        while left and left[0] <= now:
            sent.append(left.pop(0))
            timers.wrote = True
        if timers.due(now) is Due.SEND_HEARTBEAT:
            sent.append(now)
    assert not left
    assert max(later - earlier for earlier, later in pairwise(sent)) <= 7.5


def test_without_heartbeats_nothing_is_due() -> None:
    timers = ConnectionTimers(0.0, 10.0)
    timers.opened(1.0, 0)
    assert timers.next_at() == float("inf")
    assert timers.due(1e9) is Due.NOTHING
    timers.closing(2e9, 5.0)
    assert timers.next_at() == 2e9 + 5
    assert timers.due(2e9 + 5) is Due.GIVE_UP


def test_a_peer_that_is_busy_may_be_silent_for_longer() -> None:
    timers = ConnectionTimers(0.0, 10.0, 600.0)
    timers.opened(0.0, 60)
    timers.received(10.0)
    now, due = 10.0, Due.NOTHING
    while due is not Due.GIVE_UP:
        now = timers.next_at()
        due = timers.due(now, lambda: True)
    assert now == 610.0
    timers.received(700.0)
    while timers.due(now, lambda now=now: now < 850.0) is not Due.GIVE_UP:
        now = timers.next_at()
    assert 850.0 <= now < 1000.0
    timers.received(1000.0)
    while timers.due(now) is not Due.GIVE_UP:
        now = timers.next_at()
    assert now == 1180.0
