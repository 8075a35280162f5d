"""A server of the native protocol that holds batches given by hand, for what a real broker cannot be told to do:
gaps, control batches, log append time, and records that vanish between planning and reading."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from core_log.containing import Groups, containing
from core_log.files import BytesLike
from core_log.record_batch import decode_columns, parse_header
from core_log.transaction_marker import stand_in
from protocols.native import wire
from protocols.native.errors import ErrorCode, wire_error
from protocols.native.wire_base import CONTAINING_SINCE


@dataclass
class Partition:
    """Batches in order of offset. The log may begin later than the first batch and end later than the last."""

    batches: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    extra_end: int = 0

    @property
    def end_offset(self) -> int:
        """The high watermark."""
        return (parse_header(self.batches[-1]).next_offset if self.batches else self.start_offset) + self.extra_end


class LogServer:
    """Topics as lists of partitions, served on a loopback port."""

    def __init__(self, topics: dict[str, list[Partition]], version: int = wire.VERSION) -> None:
        self.topics = topics
        self.ids: dict[str, bytes] = {}
        """Of topics whose ids it says."""
        self.fetched_ids: dict[str, bytes] = {}
        """What it says in answers to fetch in their place."""
        self.version = version
        """Of the protocol."""
        self.fetches = 0
        """Fetch requests answered."""
        self.fetched_bytes = 0
        """Bytes of records in what was answered."""
        self.connections = 0
        """Accepted so far."""
        self.questions = 0
        """Requests for where partitions begin and end."""
        self.leases: list[dict[str, Any]] = []
        """What was asked to be kept."""
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}
        """What was committed, by group."""
        self.broken_fetches: set[int] = set()
        """Numbers, from 1, of the fetches whose connection is closed instead of answering."""
        self.early_fetches: set[int] = set()
        """And of those that have come to a new leader, which has not heard yet that anything was committed."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        for one in (self._listener, *self._connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while head := stream.read(4):
            request = wire.decode_request(stream.read(int.from_bytes(head, "big")))
            if isinstance(request, wire.Fetch):
                self.fetches += 1
                if self.fetches in self.broken_fetches:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
            connection.sendall(b"".join(wire.encode(self._answer(request))))

    def _answer(self, request: wire.Request) -> wire.Reply:
        number = request.correlation_id
        match request:
            case wire.Hello():
                return wire.HelloReply(number, self.version, "test", 0, {})
            case wire.Metadata(topics=names):
                entries = [self._metadata(name) for name in (self.topics if names is None else names)]
                return wire.MetadataReply(number, [], entries, [self.ids.get(name, b"") for name, _, _ in entries])
            case wire.ListOffsets(entries=entries):
                self.questions += 1
                found = [self._list_offset(self._log(entry.topic, entry.partition), entry.which) for entry in entries]
                return wire.ListOffsetsReply(number, found)
            case wire.Administer(operation="topics.lease", arguments=said):
                self.leases.append(said)
                return wire.AdministerReply(number, None)
            case wire.CommitOffsets(group=group, entries=entries):
                self.offsets[group] = {(topic, partition): offset for topic, partition, offset, _ in entries}
                return wire.CommitOffsetsReply(number)
            case wire.Fetch(entries=[entry]):
                assert not request.containing or self.version >= CONTAINING_SINCE
                fetched = self._fetch(self._log(entry.topic, entry.partition), entry, request.containing)
                if self.fetches in self.early_fetches:
                    fetched.records = memoryview(b"")
                fetched.topic_id = self.fetched_ids.get(entry.topic, self.ids.get(entry.topic, b""))
                self.fetched_bytes += len(fetched.records)
                return wire.FetchReply(number, [fetched])
        raise AssertionError(f"unexpected request {request}")

    def _metadata(self, name: str) -> tuple[str, wire.WireError | None, list[tuple[int, int, int]]]:
        if name not in self.topics:
            return name, wire_error(ErrorCode.UNKNOWN_TOPIC), []
        return name, None, [(index, 0, 0) for index in range(len(self.topics[name]))]

    def _log(self, topic: str, partition: int) -> Partition | wire.WireError:
        """A partition, or that it is not there."""
        if topic not in self.topics:
            return wire_error(ErrorCode.UNKNOWN_TOPIC)
        logs = self.topics[topic]
        return logs[partition] if partition < len(logs) else wire_error(ErrorCode.UNKNOWN_PARTITION)

    @staticmethod
    def _list_offset(log: Partition | wire.WireError, which: int) -> tuple[wire.WireError | None, int | None, int]:
        if not isinstance(log, Partition):
            return log, None, -1
        if which == wire.EARLIEST:
            return None, log.start_offset, -1
        if which == wire.LATEST:
            return None, log.end_offset, -1
        for batch in log.batches:
            columns = decode_columns(batch)
            for offset, time_ms in zip(columns.offsets, columns.timestamps_ms, strict=True):
                if time_ms >= which:
                    return None, offset, time_ms
        return None, None, -1

    @staticmethod
    def _fetch(log: Partition | wire.WireError, entry: wire.FetchEntry, groups: Groups) -> wire.FetchedPartition:
        if not isinstance(log, Partition):
            return wire.FetchedPartition(log, 0, 0, memoryview(b""))
        if not log.start_offset <= entry.offset <= log.end_offset:
            error = wire_error(ErrorCode.OFFSET_OUT_OF_RANGE)
            return wire.FetchedPartition(error, log.start_offset, log.end_offset, memoryview(b""))
        chosen: list[BytesLike] = []
        size = 0
        for batch in log.batches:
            if parse_header(batch).next_offset > entry.offset and (not size or size + len(batch) <= entry.bytes_max):
                chosen.append(batch)
                size += len(batch)
        sent = containing(chosen, groups)
        if chosen and sent[-1:] != chosen[-1:]:
            sent.append(stand_in(parse_header(chosen[-1])))
        return wire.FetchedPartition(None, log.start_offset, log.end_offset, memoryview(b"".join(sent)))


@contextmanager
def log_server(topics: dict[str, list[Partition]], version: int = wire.VERSION) -> Iterator[LogServer]:
    """A running server, closed at the end."""
    server = LogServer(topics, version)
    try:
        yield server
    finally:
        server.close()
