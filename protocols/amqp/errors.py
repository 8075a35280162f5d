"""AMQP reply codes, and the one exception a peer's fault turns into.

1. A reply text is `NAME - explanation`, as RabbitMQ writes it: client libraries and their users match on it.
2. Hard errors close the connection, soft errors the channel (AMQP 0-9-1 section 1.2, "reply codes").
3. `SyntaxFault` is what the value decoders raise; whoever knows the frame turns it into an `AmqpError`.
"""

from __future__ import annotations

from protocols.sansio import RemoteProtocolError

SOFT = {
    "CONTENT_TOO_LARGE": 311,
    "NO_ROUTE": 312,
    "NO_CONSUMERS": 313,
    "ACCESS_REFUSED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_LOCKED": 405,
    "PRECONDITION_FAILED": 406,
}

HARD = {
    "CONNECTION_FORCED": 320,
    "INVALID_PATH": 402,
    "FRAME_ERROR": 501,
    "SYNTAX_ERROR": 502,
    "COMMAND_INVALID": 503,
    "CHANNEL_ERROR": 504,
    "UNEXPECTED_FRAME": 505,
    "RESOURCE_ERROR": 506,
    "NOT_ALLOWED": 530,
    "NOT_IMPLEMENTED": 540,
    "INTERNAL_ERROR": 541,
}

REPLY_TEXT_BYTES_MAX = 255


class SyntaxFault(ValueError):
    """A value on the wire that cannot be decoded: truncated, unknown type, nested too deep, too long."""


class MalformedText(SyntaxFault):
    """Text that is not UTF-8 where it has to be."""


class AmqpError(RemoteProtocolError):
    """What to answer before a channel or the connection closes.

    `channel` is where it happened (0: the connection); `closes_connection` whether the whole connection must close;
    `in_step` is False when the frame boundary was lost and nothing more can be read.
    """

    def __init__(
        self,
        name: str,
        explanation: str,
        *,
        channel: int = 0,
        method_id: int = 0,
        hard: bool | None = None,
        in_step: bool = True,
    ) -> None:
        self.name = name
        self.code = HARD[name] if name in HARD else SOFT[name]
        self.explanation = explanation
        self.channel = channel
        self.class_id, self.method_id = divmod(method_id, 0x10000)
        self.closes_connection = (name in HARD if hard is None else hard) or channel == 0
        self.in_step = in_step
        super().__init__(self.reply_text)

    @property
    def reply_text(self) -> str:
        """`NAME - explanation`, cut to what a short string can hold."""
        text = f"{self.name} - {self.explanation}".encode("utf-8", "surrogateescape")
        if len(text) <= REPLY_TEXT_BYTES_MAX:
            return text.decode("utf-8", "surrogateescape")
        return text[:REPLY_TEXT_BYTES_MAX].decode("utf-8", "ignore")


def payload_snippet(payload: bytes) -> str:
    """The start of a frame's payload as RabbitMQ prints it in an explanation."""
    if len(payload) <= 16:
        return f"all octets = {erlang_binary(payload)}"
    return f"first 16 octets = {erlang_binary(payload[:16])}"


def erlang_binary(data: bytes) -> str:
    """`<<1,2,3>>`, or `<<"text">>` for printable bytes."""
    if data and all(32 <= byte < 127 for byte in data):
        return f'<<"{data.decode()}">>'
    return f"<<{','.join(map(str, data))}>>"
