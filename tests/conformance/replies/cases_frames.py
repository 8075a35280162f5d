"""Frames, channels and connections."""

from __future__ import annotations

from protocols.amqp import methods as m
from protocols.amqp.connection import PROTOCOL_HEADER
from tests.conformance.replies.client import Login, On
from tests.conformance.replies.steps import EMPTY_HEADER, HEADER_60, PUBLISH_HEAD, Q, call, case, frame, publish

# --- frames
case("an unknown frame type", frame(9, 1, b"abc"))
case("an unknown frame type on channel 0", frame(9, 0, b"abc"))
case("a wrong end marker", frame(1, 1, m.BasicQos().encode(), b"\0"))
case("a frame that is too large", frame(1, 1, bytes(200_000)))
case("a frame of the largest size and 8", frame(3, 1, bytes(131072)))
case("a frame of the largest size and 9", frame(3, 1, bytes(131073)))
case("a heartbeat on channel 1", frame(8, 1, b""))
case("a heartbeat with a payload", frame(8, 0, b"a"))
case("an empty method frame", frame(1, 1, b""))
case("a method of an unknown class", frame(1, 1, b"\0\x63\0\x0a"))
case("an unknown method", frame(1, 1, b"\0\x3c\0\x63"))
case("an unknown method on channel 0", frame(1, 0, b"\0\x0a\0\x63"))
case("a method that is cut short", frame(1, 1, m.QueueDeclare(queue=Q).encode()[:8]))
case("a method with bytes behind it", frame(1, 1, m.BasicQos().encode() + b"more"))
BAD_TEXT = "\udcff"
case("a queue's name that is not UTF-8", m.QueueDeclare(queue=BAD_TEXT))
case("a binding's key that is not UTF-8", m.QueueBind(exchange="amq.direct", routing_key=BAD_TEXT))
case("a routing key that is not UTF-8", m.ConfirmSelect(), publish(BAD_TEXT, b"abcd", mandatory=True))
case("a table that is longer than its frame", frame(1, 1, m.QueueDeclare(queue=Q).encode()[:-4] + b"\0\0\1\0"))
case("a table with an unknown type", frame(1, 1, m.QueueDeclare(queue=Q).encode()[:-4] + b"\0\0\0\4\1aZx"))
case("a body without a header", PUBLISH_HEAD, frame(3, 1, b"abcd"))
case("a method instead of a header", PUBLISH_HEAD, call(m.BasicQos()))
case("a method instead of a body", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER), call(m.BasicQos()))
case("a header instead of a body", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER), frame(2, 1, EMPTY_HEADER))
case("a header out of place", frame(2, 1, EMPTY_HEADER))
case("a body out of place", frame(3, 1, b"abcd"))
case("a header of another class", PUBLISH_HEAD, frame(2, 1, b"\0\x32" + EMPTY_HEADER[2:]))
case("a header with a weight", PUBLISH_HEAD, frame(2, 1, b"\0\x3c\0\1" + EMPTY_HEADER[4:]), frame(3, 1, b"abcd"))
case("a header that is cut short", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER[:7]))
case("a body that is too long", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER), frame(3, 1, b"abcdefgh"))
case(
    "properties that are cut short", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER[:-2] + b"\x80\0\5ab"), frame(3, 1, b"abcd")
)
case("unknown property flags", PUBLISH_HEAD, frame(2, 1, EMPTY_HEADER[:-2] + b"\0\2"), frame(3, 1, b"abcd"))
case(
    "a body that is announced too large", PUBLISH_HEAD, frame(2, 1, HEADER_60 + (1 << 40).to_bytes(8, "big") + b"\0\0")
)
case("a header on channel 0", frame(2, 0, EMPTY_HEADER))
case("a body on channel 0", frame(3, 0, b"abcd"))

# --- channels
case("a method on a channel that is not open", On(7, m.QueueDeclare(queue=Q)))
case("a body on a channel that is not open", frame(3, 7, b"abcd"))
case("close a channel that is not open", On(7, m.ChannelClose(200, "bye")))
case("close-ok on a channel that is not open", call(m.ChannelCloseOk(), 7))
case("close-ok without a close", call(m.ChannelCloseOk()))
case("open a channel twice", m.ChannelOpen())
case("open channel 0", call(m.ChannelOpen(), 0))
case("a channel method on channel 0", call(m.QueueDeclare(queue=Q), 0))
case("a channel above channel_max", On(2048, m.ChannelOpen()))
case(
    "a channel above the agreed channel_max",
    On(6, m.ChannelOpen()),
    login=Login(tune_ok=m.ConnectionTuneOk(5, 131072, 60)),
)
case(
    "more channels than agreed",
    On(2, m.ChannelOpen()),
    On(3, m.ChannelOpen()),
    login=Login(tune_ok=m.ConnectionTuneOk(2, 131072, 60)),
)
case("a connection method on channel 1", call(m.ConnectionOpen("/")))
case("a method of the server on channel 1", call(m.QueueDeclareOk("a", 0, 0)))
case("a method of the server on channel 0", call(m.ConnectionTune(1, 4096, 0), 0))
case("stop deliveries", m.ChannelFlow(False))
case("go on with deliveries", m.ChannelFlow(True))
case("an unasked flow-ok", call(m.ChannelFlowOk(True)))
case("an unasked cancel-ok", call(m.BasicCancelOk("t")))
case("access.request", m.AccessRequest("/data"))
case("close a channel", On(2, m.ChannelOpen()), On(2, m.ChannelClose(200, "bye")), On(2, m.ChannelOpen()))

# --- connections
case("a wrong password", login=Login(response=b"\0guest\0wrong"))
case("a wrong password, not told", login=Login(response=b"\0guest\0wrong", capabilities={}))
case("an unknown user", login=Login(response=b"\0nobody\0guest"))
case("an unknown mechanism", login=Login(mechanism="SIDEWAYS"))
case("mechanism EXTERNAL without a certificate", login=Login(mechanism="EXTERNAL", response=b""))
case("mechanism ANONYMOUS", login=Login(mechanism="ANONYMOUS", response=b""))
case("PLAIN without a password", login=Login(response=b"\0guest"))
case("PLAIN with nothing", login=Login(response=b""))
case("PLAIN with another identity", login=Login(response=b"other\0guest\0guest"))
AMQPLAIN = b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\5guest"
case("AMQPLAIN", login=Login(mechanism="AMQPLAIN", response=AMQPLAIN))
case("AMQPLAIN without a password", login=Login(mechanism="AMQPLAIN", response=AMQPLAIN[:16]))
case("AMQPLAIN that is no table", login=Login(mechanism="AMQPLAIN", response=b"nonsense"))
case("a frame_max that is too small", login=Login(tune_ok=m.ConnectionTuneOk(2047, 4095, 60)))
case("a frame_max that is too large", login=Login(tune_ok=m.ConnectionTuneOk(2047, 131073, 60)))
case("a channel_max that is too large", login=Login(tune_ok=m.ConnectionTuneOk(2048, 131072, 60)))
case("no frame_max", login=Login(tune_ok=m.ConnectionTuneOk(0, 0, 0)))
case("a method before the login", On(0, m.ConnectionOpen("/")), login=Login(until="header"))
case("a channel before the login", On(1, m.ChannelOpen()), login=Login(until="header"))
case("open before tune-ok", On(0, m.ConnectionOpen("/")), login=Login(until="start-ok"))
case("tune-ok twice", call(m.ConnectionTuneOk(0, 131072, 0), 0))
case("open twice", On(0, m.ConnectionOpen("/")))
case("start-ok again", call(m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), 0))
case("an unasked blocked", call(m.ConnectionBlocked("me"), 0))
case("an unasked close-ok", call(m.ConnectionCloseOk(), 0))
case("update-secret", On(0, m.ConnectionUpdateSecret(b"guest", "because")))
case("update-secret with a wrong one", On(0, m.ConnectionUpdateSecret(b"wrong", "because")))
case("update-secret on channel 1", call(m.ConnectionUpdateSecret(b"guest", "because")))
case("close", On(0, m.ConnectionClose(200, "bye")))
case("a frame too large before the login", frame(1, 0, bytes(9000)), login=Login(until="header"))
case("another protocol", b"GET / HTTP/1.1\r\n\r\n", login=Login(until="nothing"))
case("AMQP 1.0", b"AMQP\0\1\0\0", login=Login(until="nothing"))
case("AMQP 1.0 with SASL", b"AMQP\3\1\0\0", login=Login(until="nothing"))
case("AMQP 0-8", b"AMQP\1\1\x08\0", login=Login(until="nothing"))
case("AMQP 0-9", b"AMQP\1\1\0\x09", login=Login(until="nothing"))
case("the protocol header twice", PROTOCOL_HEADER, login=Login(until="header"))
