"""The native protocol between a connection and the engine. The only file of the folder that knows `routing`.

1. Produce and fetch never suspend `handle`, but for creating a topic and for reading from disk what left memory: a
   produce that waits for its commit and a fetch that waits for records are objects called back by the log, not tasks.
   So a produce is not held up by the long poll before it, and replies come in any order.
2. A batch is appended as the bytes that came: header and CRC are checked, records are not decoded.
3. After a batch was refused with a retriable error, later batches for the partition are refused as well (OUT_OF_ORDER)
   until the producer starts a new round, having seen the refusal: so pipelining keeps the order.
4. When the connection ends, its fetches are dropped; what was appended is committed all the same.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from core_log.partition_log import PartitionLog
from core_log.record_batch import validate
from protocols.adapter_topics import create_missing, know_producers, may_see
from protocols.fetching import Fetches
from protocols.native import wire, wire_groups, wire_topics
from protocols.native.adapter_errors import ENGINE_ERRORS, Refused, engine_error
from protocols.native.adapter_fetch import FetchDoor, check_containing
from protocols.native.adapter_groups import HANDLERS, GroupDoor, entries_of, offsets_of
from protocols.native.adapter_metadata import describe, node_id, nodes, partitions
from protocols.native.adapter_offsets import check_epoch, list_offsets, offsets_for_epochs
from protocols.native.adapter_produce import PendingProduce
from protocols.native.adapter_rights import require_operation, require_rights
from protocols.native.adapter_transactions import TRANSACTION_HANDLERS, membership
from protocols.native.config import NativeConfig
from protocols.native.connection import FrameReader
from protocols.native.errors import RETRIABLE, ErrorCode, WireError, wire_error
from protocols.native.wire_base import TOPIC_IDS_SINCE
from protocols.peers import Authenticate, is_loopback, is_welcome
from protocols.sansio import Outbox, Rest
from routing import errors
from routing.access.grants import Access, Grants
from routing.administration import LOOKS, administer, require_tag
from routing.broker import Broker
from routing.clients import Client
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition

_GROUP_HANDLERS = {**HANDLERS, **TRANSACTION_HANDLERS}
SERVER = "millrace 0.1.0"


class NativeAdapter:
    """One client connection; see the module's rules and `protocols.sansio.Adapter`."""

    def __init__(
        self,
        broker: Broker,
        outbox: Outbox,
        *,
        peer: str,
        clock: Callable[[], float],
        config: NativeConfig,
        authenticate: Authenticate | None = None,
        door: str = "native",
    ) -> None:
        """`peer` is the address, for the loopback rule; without `authenticate` everybody is the anonymous user. `door`
        is the one it came by.
        """
        self._broker = broker
        self._outbox = outbox
        self._clock = clock
        self._config = config
        self._authenticate = authenticate
        self._door = door
        self._frames = FrameReader(min(config.hello_bytes_max, config.request_bytes_max))
        self._greeted = False
        self._version = wire.VERSION_MIN
        self._grants: Grants
        """What the user may do, from hello on."""
        self._outside: errors.NotAllowed | None = None
        """Why the user may not enter the virtual host and can only ask for operations."""
        self._hello_deadline = clock() + config.hello_timeout_ms / 1000
        fetches = FetchDoor(self._led, self._id_of, outbox, broker.looked)
        self._fetches = Fetches(fetches, outbox, broker.timers, clock, config, broker.host.runnable)
        self._pending: dict[PendingProduce, None] = {}
        self._refused_rounds: dict[tuple[str, int], int] = {}
        self.peer = peer
        self.closed = self.published = self.held = False
        self.left: Rest | None = None

    # The shell's side

    async def handle(self, data: bytes) -> None:
        """Take bytes from the peer; `b""` is its end."""
        if not data:
            self.closed = True
            return
        for frame in self._frames.feed(data):
            if self.closed:
                return
            try:
                request = wire.decode_request(frame)
            except wire.BadRequest as bad:
                self._bad_request(bad)
                continue
            await self._serve(request)
        if self._frames.failure is not None:
            self._bad_request(self._frames.failure)

    def next_timer_at(self) -> float:
        """The end of the time to say hello."""
        return math.inf if self._greeted else self._hello_deadline

    def handle_timer(self, now: float) -> None:
        """A connection that said nothing ends."""
        if not self._greeted and now >= self._hello_deadline:
            self.closed = True

    def connection_lost(self) -> None:
        """Drop what waits. Committing goes on without anybody to tell."""
        self.closed = True
        self._broker.release(self)
        self._fetches.drop()
        for pending in self._pending:
            if pending.timer is not None:
                pending.timer.cancel()
        self._pending.clear()
        for part in ("_fetches", "_groups"):  # they have this, and memory is to be free at once
            vars(self).pop(part, None)

    def shut_down(self, reason: str) -> None:
        """Answer parked fetches with what there is, say goodbye, close."""
        self._fetches.answer_all()
        self._goodbye(ErrorCode.SHUTTING_DOWN, reason)

    def _shut_out(self, reason: str) -> None:
        """Somebody wants this connection to end."""
        self._goodbye(ErrorCode.ACCESS_REFUSED, reason)

    # Requests

    async def _serve(self, request: wire.AnyRequest) -> None:
        if self._greeted == isinstance(request, wire.Hello):
            self._goodbye(ErrorCode.HELLO_REQUIRED, correlation_id=request.correlation_id)
            return
        try:
            if self._outside is not None:
                require_operation(self._outside, request)
            if self._greeted:
                require_rights(self._grants, request)
            handler = self._HANDLERS.get(type(request))
            if handler is not None:
                reply = await handler(self, request)
            else:
                reply = await _GROUP_HANDLERS[type(request)](self._groups, request)
        except Refused as refusal:
            reply = wire.ErrorReply(request.correlation_id, refusal.error)
        except ENGINE_ERRORS as error:
            reply = wire.ErrorReply(request.correlation_id, engine_error(error))
        if reply is not None:
            self._send(reply)

    def _send(self, reply: wire.Reply) -> None:
        for piece in wire.encode(reply):
            self._outbox.write(piece)

    def _answer_later(self, reply: wire.Reply) -> None:
        """What had to wait."""
        if not self.closed:
            self._send(reply)

    def _bad_request(self, bad: wire.BadRequest) -> None:
        if bad.fatal:
            self._goodbye(bad.code, str(bad), bad.correlation_id)
        else:
            self._send(wire.ErrorReply(bad.correlation_id, wire_error(bad.code, str(bad))))

    def _goodbye(self, code: ErrorCode, message: str = "", correlation_id: int | None = None) -> None:
        if not self.closed:
            self._send(wire.ErrorReply(correlation_id, wire_error(code, message)))
            self.closed = True

    async def _hello(self, request: wire.Hello) -> wire.Reply | None:
        version = min(request.version_max, wire.VERSION)
        if version < max(request.version_min, wire.VERSION_MIN):
            self._goodbye(ErrorCode.UNSUPPORTED_VERSION, f"this is version {wire.VERSION}", request.correlation_id)
            return None
        try:
            self._broker.bans.require_welcome("", "", self.peer)
            user = await self._authenticated(request.credentials)
            if user is None:
                why = "" if request.credentials is not None else "a user is needed; the connection closes"
                self._goodbye(ErrorCode.AUTHENTICATION_FAILED, why, request.correlation_id)
                return None
            name, vhost = request.client_name, self._config.virtual_host
            client = Client("native", user, vhost, self.peer, self._shut_out, name, send_on=self.shut_down)
            self._grants = self._enter(client)
        except errors.BrokerError as error:
            self._goodbye(ErrorCode.ACCESS_REFUSED, str(error), request.correlation_id)
            return None
        self._greeted, self._version = True, version
        self._frames.frame_bytes_max = self._config.request_bytes_max
        self._groups = GroupDoor(
            self._broker,
            self._config,
            self._door,
            self.peer,
            request.client_name,
            self._grants,
            self._may_read,
            self._answer_later,
        )
        names = ("request_bytes_max", "fetch_bytes_max", "fetch_wait_ms_max", "produce_timeout_ms_max")
        limits = {name: getattr(self._config, name) for name in (*names, "requests_in_flight_max")}
        return wire.HelloReply(request.correlation_id, version, SERVER, node_id(self._broker, self._config), limits)

    def _enter(self, client: Client) -> Grants:
        """Raises NotAllowed (no such virtual host), Banned."""
        try:
            return self._broker.connect(self, client)
        except errors.NotAllowed as refusal:
            grants = self._broker.attend(self, client)
            self._outside = refusal
            return grants

    async def _authenticated(self, credentials: tuple[str, str] | None) -> str | None:
        """Who the peer is; None: not welcome."""
        anonymous = self._config.anonymous_user
        if self._authenticate is None:
            return anonymous
        if credentials is None:
            welcome = self._config.anonymous_loopback and is_loopback(self.peer)
            return anonymous if welcome and self._broker.rights.user(anonymous) is not None else None
        user, password = credentials
        return user if await is_welcome(self._authenticate, user, password.encode(), self.peer) else None

    async def _metadata(self, request: wire.Metadata) -> wire.Reply:
        topics: list[tuple[str, WireError | None, list[wire.PartitionMetadata]]] = []
        ids: list[bytes] = []
        if request.topics is None:
            names = [name for name in sorted(self._broker.topics) if may_see(self._grants, name)]
        else:
            names = request.topics
        for name in names:
            topic = self._broker.topics.get(name)
            try:
                if request.topics is not None and not may_see(self._grants, name):
                    self._grants.require("read", "topic", name)
                if topic is None and request.create_missing:
                    topic = await create_missing(self._broker, self._grants, name)
                if topic is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC, f"no topic {name!r}")
            except Refused as refusal:
                topics.append((name, refusal.error, []))
            except ENGINE_ERRORS as error:
                topics.append((name, engine_error(error), []))
            else:
                topics.append((name, None, partitions(self._broker, self._config, topic)))
            ids.append(topic.id if topic is not None and topics[-1][1] is None else b"")
        if self._version < TOPIC_IDS_SINCE:
            ids = []
        return wire.MetadataReply(request.correlation_id, nodes(self._broker, self._config, self._door), topics, ids)

    async def _create_topic(self, request: wire_topics.CreateTopic) -> wire.Reply:
        await self._broker.create_topic(request.name, partitions=request.partitions, config=request.config)
        return wire_topics.CreateTopicReply(request.correlation_id)

    async def _create_partitions(self, request: wire_topics.CreatePartitions) -> wire.Reply:
        await self._broker.create_partitions(self._topic(request.name).name, request.partitions)
        return wire_topics.CreatePartitionsReply(request.correlation_id)

    async def _delete_topic(self, request: wire_topics.DeleteTopic) -> wire.Reply:
        await self._broker.delete_topic(self._topic(request.name).name)
        return wire_topics.DeleteTopicReply(request.correlation_id)

    async def _describe_topic(self, request: wire_topics.DescribeTopic) -> wire.Reply:
        topic = self._topic(request.name)
        found = describe(self._broker, self._config, topic)
        return wire_topics.DescribeTopicReply(request.correlation_id, topic.name, topic.config, found)

    async def _describe_broker(self, request: wire.DescribeBroker) -> wire.Reply:
        broker = self._broker
        require_tag(broker, self._grants.user, "the status of the broker", LOOKS)
        homes = [wire.HomeDescription(*status) for status in broker.home_statuses()]
        return wire.DescribeBrokerReply(
            request.correlation_id, homes, len(broker.sessions), broker.refused_messages, broker.blocked
        )

    async def _bind(self, request: wire_topics.Bind) -> wire.Reply:
        await self._broker.bind(*self._binding(request), owner=self, vhost=self._config.virtual_host)
        return wire_topics.BindReply(request.correlation_id)

    async def _unbind(self, request: wire_topics.Unbind) -> wire.Reply:
        await self._broker.unbind(*self._binding(request), owner=self, vhost=self._config.virtual_host)
        return wire_topics.UnbindReply(request.correlation_id)

    def _binding(self, one: wire_topics.Bind | wire_topics.Unbind) -> tuple[str, str, str, str, Mapping[str, Any]]:
        return "topic", self._topic(one.topic).name, one.exchange, one.pattern, one.arguments

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC, f"no topic {name!r}")
        return topic

    def _partition(self, name: str, index: int, access: Access = "read") -> TopicPartition:
        self._grants.require(access, "topic", name)
        found = self._topic(name).partitions
        if index >= len(found):
            raise Refused(ErrorCode.UNKNOWN_PARTITION, f"topic {name!r} has no partition {index}, but {len(found)}")
        return found[index]

    def _may_read(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Raises Refused, AccessRefused."""
        for topic, index in partitions:
            self._partition(topic, index)

    def _led(self, name: str, index: int, leader_epoch: int, access: Access = "read") -> TopicPartition:
        """The same, of a partition that this broker leads now, in the epoch that the client knows if it says so.

        Raises NotLeader as well.
        """
        partition = self._partition(name, index, access)
        if leader_epoch != wire.NO_EPOCH:
            check_epoch(partition, leader_epoch)
        refused = partition.leadership.refusal() if partition.leadership is not None else None
        if refused is not None:
            raise refused
        if access == "read":
            partition.leases.used = True
        return partition

    def _id_of(self, name: str, index: int, log: PartitionLog) -> bytes:
        """Of the topic that a log is of, if it has the name still, for clients that know of ids."""
        topic = self._broker.topics.get(name)
        if self._version < TOPIC_IDS_SINCE or topic is None or index >= len(topic.partitions):
            return b""
        return topic.id if topic.partitions[index].log is log else b""

    def _check_in_flight(self) -> None:
        most = self._config.requests_in_flight_max
        if len(self._pending) + len(self._fetches) >= most:
            raise Refused(ErrorCode.LIMIT_EXCEEDED, f"{most} requests wait for their reply")

    # Records

    async def _produce(self, request: wire.Produce) -> None:
        if request.acks != wire.ACKS_NONE:
            self._check_in_flight()
        pending = PendingProduce(self, request)
        if len(request.entries) > 1:
            await know_producers(
                self._broker, self._grants, [(one.topic, one.partition, one.batch) for one in request.entries]
            )
        for index, entry in enumerate(request.entries):
            try:
                if self._broker.blocked is not None:
                    # Refused, not left unread: the connection may fetch as well, and consumers never wait.
                    raise Refused(ErrorCode.BLOCKED, f"producers are blocked: {self._broker.blocked}")
                if entry.topic not in self._broker.topics:
                    await create_missing(self._broker, self._grants, entry.topic)
                log, base_offset, end = await self._append(entry, request)
            except Refused as refusal:
                pending.settle(index, -1, refusal.error)
                continue
            except ENGINE_ERRORS as error:
                pending.settle(index, -1, engine_error(error))
                continue
            if request.acks == wire.ACKS_NONE:
                pending.settle(index, base_offset, None)
                continue
            done = partial(pending.committed, index, base_offset)
            sync = request.acks == wire.ACKS_ALL
            self._broker.commits.when_committed([(log, end)], done, sync=sync)
        if pending.waiting:
            timeout_ms = min(request.timeout_ms, self._config.produce_timeout_ms_max)
            pending.timer = self._broker.timers.at(self._clock() + timeout_ms / 1000, pending.timed_out)
            self._pending[pending] = None

    async def _append(self, entry: wire.ProduceEntry, request: wire.Produce) -> tuple[PartitionLog, int, int]:
        """The log, where the batch begins in it and where it ends. Batches of idempotent producers may have to wait,
        and those of topics whose records wait for their time or turn.
        """
        partition = self._led(entry.topic, entry.partition, entry.leader_epoch, "write")
        if partition.leadership is not None:
            short = partition.leadership.shortage()
            if short is not None and (request.acks == wire.ACKS_ALL or isinstance(short, errors.NotLeader)):
                raise short
        self._check_round(entry)
        header = validate(entry.batch)
        if header.is_control:
            raise Refused(ErrorCode.CORRUPT_BATCH, "a client does not write control batches")
        (header,), (batch,), _ = partition.admit([header], [entry.batch])
        if header.is_transactional:
            check = membership(self._broker, self._grants, partition, header, request.transactional_id)
            return partition.log, *await partition.append_once([header], [batch], check)
        if partition.log.config.delays or partition.log.config.priority_group:
            (batch,) = await self._broker.delayed.park(partition, [header], [batch])
            if self._led(entry.topic, entry.partition, entry.leader_epoch, "write") is not partition:
                raise Refused(ErrorCode.UNKNOWN_TOPIC, f"topic {entry.topic!r} was made anew meanwhile")
            self._check_round(entry)
        if header.producer_id >= 0 or partition.known is not None:
            return partition.log, *await partition.append_once([header], [batch])
        base_offset = partition.append(batch)
        return partition.log, base_offset, partition.log.log_end_offset

    def _check_round(self, entry: wire.ProduceEntry) -> None:
        """Raises Refused."""
        if entry.round <= self._refused_rounds.get((entry.topic, entry.partition), -1):
            raise Refused(ErrorCode.OUT_OF_ORDER)

    def refused(self, entry: wire.ProduceEntry, error: WireError) -> None:
        """Keep later batches of the partition out until the producer has seen this; rule 3."""
        if error[0] in RETRIABLE:
            key = (entry.topic, entry.partition)
            self._refused_rounds[key] = max(entry.round, self._refused_rounds.get(key, -1))

    def produced(
        self, pending: PendingProduce, request: wire.Produce, results: list[tuple[WireError | None, int] | None]
    ) -> None:
        """All entries of `request` are settled."""
        if pending.timer is not None:
            pending.timer.cancel()
        self._pending.pop(pending, None)
        if request.acks != wire.ACKS_NONE and not self.closed:
            entries = [result for result in results if result is not None]
            self._send(wire.ProduceReply(request.correlation_id, entries))

    async def _fetch(self, request: wire.Fetch) -> None:
        self._check_in_flight()
        if request.containing:
            check_containing(request)
        await self._fetches.start(request)

    async def _list_offsets(self, request: wire.ListOffsets) -> wire.Reply:
        return await list_offsets(request, self._led)

    async def _offsets_for_epochs(self, request: wire.OffsetsForEpochs) -> wire.Reply:
        return offsets_for_epochs(request, self._led)

    async def _administer(self, request: wire.Administer) -> wire.Reply:
        user, arguments = self._grants.user, request.arguments
        vhost = self._config.virtual_host
        result = await administer(
            self._broker, user, request.operation, arguments, asked_from=self.peer, topics_vhost=vhost
        )
        return wire.AdministerReply(request.correlation_id, result)

    # Groups

    async def _commit_offsets(self, request: wire.CommitOffsets) -> wire.Reply:
        offsets = offsets_of(request.entries)
        self._may_read(offsets)
        members = self._broker.groups.groups.get(request.group)
        if members is not None:
            members.check_commit("", None, wire_groups.NO_GENERATION)
        await self._broker.offsets.commit(request.group, offsets)
        return wire.CommitOffsetsReply(request.correlation_id)

    async def _fetch_offsets(self, request: wire.FetchOffsets) -> wire.Reply:
        found = await self._broker.offsets.fetch(request.group, request.partitions)
        return wire.FetchOffsetsReply(request.correlation_id, entries_of(found))

    _HANDLERS: ClassVar[dict[type[wire.Request], Callable[[NativeAdapter, Any], Awaitable[wire.Reply | None]]]] = {
        wire.Hello: _hello,
        wire.Metadata: _metadata,
        wire_topics.CreateTopic: _create_topic,
        wire_topics.CreatePartitions: _create_partitions,
        wire_topics.DeleteTopic: _delete_topic,
        wire_topics.DescribeTopic: _describe_topic,
        wire.DescribeBroker: _describe_broker,
        wire.Administer: _administer,
        wire_topics.Bind: _bind,
        wire_topics.Unbind: _unbind,
        wire.Produce: _produce,
        wire.Fetch: _fetch,
        wire.ListOffsets: _list_offsets,
        wire.CommitOffsets: _commit_offsets,
        wire.FetchOffsets: _fetch_offsets,
        wire.OffsetsForEpochs: _offsets_for_epochs,
    }
