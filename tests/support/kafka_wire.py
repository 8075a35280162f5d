"""Kafka's protocol by hand: one request after the other, for measures with many clients at once."""

from __future__ import annotations

from struct import pack
from typing import Any

import trio

from protocols.kafka import codec
from protocols.kafka.codec import Entity
from protocols.kafka.schema import Api

_API_VERSIONS = 18


class KafkaWire:
    """A connection; see the module. Raises what trio's streams raise."""

    def __init__(self, stream: trio.SocketStream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id.encode()
        self._buffer = bytearray()
        self._number = 0

    @classmethod
    async def open(cls, port: int, client_id: str = "wire") -> KafkaWire:
        """To a broker on this machine."""
        return cls(await trio.open_tcp_stream("127.0.0.1", port), client_id)

    async def ask(self, api: Api, version: int, **fields: Any) -> Any:
        """The reply to a request."""
        self._number += 1
        head = pack(">hhih", api.key, version, self._number, len(self._client_id)) + self._client_id
        if api.is_flexible(version):
            head += b"\0"
        body = b"".join(codec.write_message(codec.request_writer(api, version), head, Entity(**fields)))
        await self._stream.send_all(pack(">i", len(body)) + body)
        frame = await self._frame()
        at = 4 + (api.is_flexible(version) and api.key != _API_VERSIONS)
        return codec.read_message(codec.reply_reader(api, version), frame, at)

    async def _frame(self) -> bytes:
        buffer = self._buffer
        while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
            data = await self._stream.receive_some(1 << 18)
            if not data:
                raise trio.BrokenResourceError("the broker has closed the connection")
            buffer += data
        size = 4 + int.from_bytes(buffer[:4], "big")
        frame = bytes(buffer[4:size])
        del buffer[:size]
        return frame

    async def close(self) -> None:
        """End it."""
        await self._stream.aclose()
