"""A blocking AMQP client that can do everything wrong, and writes down what it is answered.

A case is a list of steps: methods (sent on channel 1, or on another with `on`), and raw bytes. After a step that has an
answer the client waits for it; at the end it asks for something harmless, so that errors of steps without an answer are
seen. The transcript is one line for each method received, in words that two brokers can be compared by.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import Any

from protocols.amqp import methods
from protocols.amqp.connection import PROTOCOL_HEADER
from protocols.amqp.deliveries import method_frame
from protocols.amqp.methods import Method, decode_method

PROBE = methods.BasicQos(0, 0)
_CLOSES = (methods.ChannelClose, methods.ConnectionClose)
_GENERATED = re.compile(r"amq\.(gen|ctag)-[\w=-]+")
_LINE_BREAK = re.compile(r"(?<=,)\n +")
_ANSWERED = {
    kind
    for kind in methods.METHODS.values()
    if (kind.IDENT + 1 in methods.METHODS and methods.METHODS[kind.IDENT + 1].NAME == kind.NAME + "-ok")
}


@dataclass(frozen=True)
class On:
    """A method for another channel than 1."""

    channel: int
    method: Method


@dataclass(frozen=True)
class Other:
    """A method for channel 1 of another connection, which lives as long as the case; its answers are no part of it."""

    method: Method | bytes


Step = Method | On | Other | bytes


@dataclass(frozen=True)
class Login:
    """How a case begins; `steps_only` sends nothing at all before the steps, `until` stops after a part of it."""

    mechanism: str = "PLAIN"
    response: bytes = b"\0guest\0guest"
    capabilities: dict[str, Any] = field(
        default_factory=lambda: {"authentication_failure_close": True, "consumer_cancel_notify": True}
    )
    virtual_host: str = "/"
    tune_ok: methods.ConnectionTuneOk = field(default_factory=lambda: methods.ConnectionTuneOk(2047, 131072, 60))
    until: str = "channel"
    """"nothing", "header", "start-ok", "tune-ok", "open" or "channel": the last thing sent before the steps."""


class ReplyClient:
    """One connection; see the module."""

    def __init__(self, port: int, login: Login | None = None, timeout_s: float = 5.0) -> None:
        self.login = login or Login()
        self._port, self._timeout_s = port, timeout_s
        self._other: ReplyClient | None = None
        self.transcript: list[str] = []
        self.ended = False
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._open = True
        self._begun = False

    def run(self, steps: list[Step]) -> list[str]:
        """Do a case; what was answered from the end of the handshake on."""
        try:
            if not self._begun:
                self._begin()
            for step in steps:
                if self.ended:
                    break
                self._take_step(step)
            if not self.ended:
                self._probe()
            self._leave()
        finally:
            self._socket.close()
            if self._other is not None:
                self._other.run([])
        return self.transcript

    def _begin(self) -> None:
        self._begun = True
        login = self.login
        start_ok = methods.ConnectionStartOk(
            {"capabilities": login.capabilities}, login.mechanism, login.response, "en_US"
        )
        parts: list[tuple[str, bytes, type[Method] | None]] = [
            ("header", PROTOCOL_HEADER, methods.ConnectionStart),
            ("start-ok", method_frame(0, start_ok.encode()), methods.ConnectionTune),
            ("tune-ok", method_frame(0, login.tune_ok.encode()), None),
            ("open", method_frame(0, methods.ConnectionOpen(login.virtual_host).encode()), methods.ConnectionOpenOk),
            ("channel", method_frame(1, methods.ChannelOpen().encode()), methods.ChannelOpenOk),
        ]
        if login.until == "nothing":
            return
        for name, data, answer in parts:
            self._send(data)
            if answer is not None and not self._wait_for(answer, quiet=True):
                return
            if name == login.until:
                return

    def _take_step(self, step: Step) -> None:
        if isinstance(step, bytes):
            self._send(step)
            return
        if isinstance(step, Other):
            if self._other is None:
                self._other = ReplyClient(self._port, None, self._timeout_s)
                self._other._begin()
            self._other._take_step(step.method)
            if isinstance(step.method, bytes):
                self._other._probe()
            return
        channel, method = (step.channel, step.method) if isinstance(step, On) else (1, step)
        if isinstance(method, methods.ConnectionOpen | methods.ConnectionUpdateSecret):
            channel = 0
        self._send(method_frame(channel, method.encode()))
        if isinstance(method, methods.BasicGet):
            self._wait_for(methods.BasicGetOk, methods.BasicGetEmpty)
        elif type(method) in _ANSWERED and not getattr(method, "nowait", False):
            self._wait_for(methods.METHODS[method.IDENT + 1])

    def _probe(self) -> None:
        if self.login.until == "channel":
            # What a turn confirms follows what it answers: the second answer follows both.
            for _ in range(2):
                if not self.ended:
                    self._send(method_frame(1, PROBE.encode()))
                    self._wait_for(methods.BasicQosOk, quiet=True)
        else:
            self._wait_for(quiet=True)

    def _leave(self) -> None:
        """End in order where that is still possible: RabbitMQ deletes exclusive queues before it agrees, and some time
        after an end without a word. What is answered is no part of the case.
        """
        if self.login.until != "channel" or not self._open:
            return
        said = list(self.transcript)
        self._send(method_frame(0, methods.ConnectionClose(200, "", 0, 0).encode()))
        while (received := self._receive()) is not None:
            if isinstance(received[1], methods.ConnectionCloseOk | methods.ConnectionClose):
                break
        self.transcript = said

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            pass  # what was answered can still be read

    def _wait_for(self, *kinds: type[Method], quiet: bool = False) -> bool:
        """Read up to a method of these kinds; False when a close or the end came first."""
        while True:
            received = self._receive()
            if received is None:
                self.ended, self._open = True, False
                return False
            channel, method = received
            if isinstance(method, methods.ConnectionClose | methods.ConnectionCloseOk):
                self._open = False
            if isinstance(method, methods.BasicQosOk) and methods.BasicQosOk not in kinds:
                continue
            if not (quiet and isinstance(method, kinds)):
                self.transcript.append(describe(method, channel))
            if isinstance(method, _CLOSES):
                self._answer_close(channel, method)
                self.ended = True
                return False
            if isinstance(method, methods.ConnectionCloseOk):
                self.ended = True
            if isinstance(method, kinds):
                return True

    def _answer_close(self, channel: int, method: Method) -> None:
        answer = methods.ChannelCloseOk() if isinstance(method, methods.ChannelClose) else methods.ConnectionCloseOk()
        self._send(method_frame(channel, answer.encode()))

    def _receive(self) -> tuple[int, Method] | None:
        while True:
            while len(self._buffer) >= 7:
                if self._buffer.startswith(b"AMQP"):
                    self.transcript.append(f"protocol header {self._buffer[4:8].hex()}")
                    self._buffer = self._buffer[8:]
                    continue
                size = int.from_bytes(self._buffer[3:7], "big")
                if len(self._buffer) < size + 8:
                    break
                frame, self._buffer = self._buffer[: size + 8], self._buffer[size + 8 :]
                if frame[0] == 1:
                    method = decode_method(frame[7:-1])
                    assert method is not None, f"an unknown method from the broker: {frame!r}"
                    return int.from_bytes(frame[1:3], "big"), method
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                self.transcript.append("silence")
                return None
            except OSError:
                data = b""
            if not data:
                self.transcript.append("closed")
                return None
            self._buffer += data


def describe(method: Method, channel: int) -> str:
    """A method received, in words."""
    if isinstance(method, methods.ChannelClose | methods.ConnectionClose):
        at = methods.METHODS.get(method.class_id << 16 | method.method_id)
        where = at.NAME if at is not None else f"{method.class_id}.{method.method_id}"
        reply_text = _LINE_BREAK.sub("", method.reply_text)
        return _GENERATED.sub(r"amq.\1-*", f"{method.NAME} {method.reply_code} {reply_text} ({where})")
    shown = []
    for argument in method.__struct_fields__:
        value = getattr(method, argument)
        if value and not argument.startswith(("reserved", "ticket", "server_properties")):
            shown.append(f"{argument}={value!r}")
    text = " ".join([method.NAME, *shown])
    return _GENERATED.sub(r"amq.\1-*", text)
