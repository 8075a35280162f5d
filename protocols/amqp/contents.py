"""Publishes that arrive in pieces: a method frame, later a content header, later body frames (section 4.2.6).

1. A channel has at most one unfinished content, and until it is finished only its next frame may come on that channel.
2. A body is kept as the list of its frames and joined once, so its cost is linear in its size.
3. The announced size is checked before a byte of the body is kept, and all unfinished contents together are limited:
   a peer that never finishes pins no more than that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from protocols.amqp.config import AmqpConfig
from protocols.amqp.errors import AmqpError, SyntaxFault, payload_snippet
from protocols.amqp.publish_run import PropertiesMemo, PublishRun, Route

HEADER_FRAME, BODY_FRAME = 2, 3
PUBLISH = 0x3C0028

_CONTENT_HEADER = struct.Struct(">HHQ")
_NO_HEADER = "expected content header for class 60, got non content header frame instead"
_NO_BODY = "expected content body, got non content body frame instead"


@dataclass(slots=True)
class _Content:
    route: Route
    properties: Any = None
    raw: bytes = b""
    remaining: int = -1
    """Bytes of the body still to come; -1 before the header."""
    pieces: list[bytes] = field(default_factory=list)


class Contents:
    """The unfinished contents of a connection, by channel."""

    def __init__(self, config: AmqpConfig, properties: PropertiesMemo) -> None:
        self.unfinished: dict[int, _Content] = {}
        self.unfinished_bytes = 0
        self._config = config
        self._properties = properties

    def begin(self, route: Route) -> None:
        """A method frame of a publish came."""
        self.unfinished[route.channel] = _Content(route)

    def drop(self, channel: int) -> None:
        """Forget what is unfinished on a channel, if anything is."""
        content = self.unfinished.pop(channel, None)
        if content is not None:
            self.unfinished_bytes -= len(content.raw) + sum(map(len, content.pieces))

    def clear(self) -> None:
        """Forget everything."""
        self.unfinished.clear()
        self.unfinished_bytes = 0

    def take(self, channel: int, kind: int, payload: bytes) -> PublishRun | None:
        """The next frame of an unfinished content; the publish, once it is whole.

        Raises AmqpError; when that closes only the channel the content is dropped, and its body is to be ignored.
        """
        content = self.unfinished[channel]
        if content.remaining < 0:
            if kind != HEADER_FRAME:
                raise self._error("UNEXPECTED_FRAME", _NO_HEADER, channel)
            self._take_header(channel, content, payload)
        else:
            if kind != BODY_FRAME:
                raise self._error("UNEXPECTED_FRAME", _NO_BODY, channel)
            self._take_body(channel, content, payload)
        if content.remaining:
            return None
        self.drop(channel)
        body = content.pieces[0] if len(content.pieces) == 1 else b"".join(content.pieces)
        route = content.route
        return PublishRun(
            channel, route.exchange, route.routing_key, route.mandatory, content.properties, [body], content.raw
        )

    def _take_header(self, channel: int, content: _Content, payload: bytes) -> None:
        if len(payload) < 14:
            explanation = f"type 2, {payload_snippet(payload)}: unknown_frame"
            raise AmqpError("FRAME_ERROR", explanation, channel=channel)
        class_id, weight, size = _CONTENT_HEADER.unpack_from(payload)
        if weight:
            raise self._error("UNEXPECTED_FRAME", _NO_HEADER, channel)
        if class_id != 60:
            explanation = f"expected content header for class 60, got one for class {class_id} instead"
            raise self._error("UNEXPECTED_FRAME", explanation, channel)
        if size > self._config.message_bytes_max:
            self.drop(channel)
            limit = self._config.message_bytes_max
            explanation = f"message size {size} is larger than configured max size {limit}"
            raise self._error("PRECONDITION_FAILED", explanation, channel)
        raw = payload[12:]
        try:
            content.properties = self._properties.get(raw)
        except SyntaxFault as fault:
            raise self._error("SYNTAX_ERROR", str(fault), channel) from None
        content.raw, content.remaining = raw, size
        self._hold(channel, len(content.raw))

    def _take_body(self, channel: int, content: _Content, payload: bytes) -> None:
        content.remaining -= len(payload)
        if content.remaining < 0:
            raise self._error("UNEXPECTED_FRAME", _NO_BODY, channel)
        if not payload:
            return
        content.pieces.append(payload)
        self._hold(channel, len(payload))

    def _hold(self, channel: int, size: int) -> None:
        self.unfinished_bytes += size
        limit = self._config.unfinished_bytes_max
        if self.unfinished_bytes > limit:
            explanation = f"unfinished messages of the connection are larger than {limit} bytes"
            raise self._error("RESOURCE_ERROR", explanation, channel)

    @staticmethod
    def _error(name: str, explanation: str, channel: int) -> AmqpError:
        return AmqpError(name, explanation, channel=channel, method_id=PUBLISH)
