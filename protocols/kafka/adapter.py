"""Kafka's protocol between a connection and the engine: requests in, replies in the order of the requests.

1. A request is served when it is read. One that waits (a produce for its commit, a fetch for records, a member for its
   group) is an object called back later, not a task; replies behind it wait for it, as Kafka's clients expect. Of a
   client that leaves too much unread, or asks for too much behind a request that waits, no more is read until then:
   librdkafka sends a request for each partition, however many they are.
2. Handlers are a file each (`adapter_NN_name.py`, NN the API key) and say which versions they serve.
3. A version that is not served, or a request that cannot be read, ends the connection, as with Kafka: a client that
   asked for the versions never sends one. Only ApiVersions is answered whatever its version.
4. Until it has logged in a client may ask for versions and log in, nothing else; who need not log in is welcome.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Protocol

import structlog

from protocols.buffers import BytesLike, FrameReader, Piece
from protocols.fetching import Fetches
from protocols.kafka import (  # noqa: F401  they register what they serve
    adapter_00_produce,
    adapter_01_fetch,
    adapter_02_list_offsets,
    adapter_03_metadata,
    adapter_08_offset_commit,
    adapter_09_offset_fetch,
    adapter_10_find_coordinator,
    adapter_11_join_group,
    adapter_12_heartbeat,
    adapter_13_leave_group,
    adapter_14_sync_group,
    adapter_15_describe_groups,
    adapter_16_list_groups,
    adapter_17_sasl_handshake,
    adapter_18_api_versions,
    adapter_19_create_topics,
    adapter_20_delete_topics,
    adapter_21_delete_records,
    adapter_22_init_producer_id,
    adapter_23_offset_for_leader_epoch,
    adapter_24_add_partitions_to_txn,
    adapter_25_add_offsets_to_txn,
    adapter_26_end_txn,
    adapter_27_write_txn_markers,
    adapter_28_txn_offset_commit,
    adapter_29_describe_acls,
    adapter_30_create_acls,
    adapter_31_delete_acls,
    adapter_32_describe_configs,
    adapter_33_alter_configs,
    adapter_34_alter_replica_log_dirs,
    adapter_35_describe_log_dirs,
    adapter_36_sasl_authenticate,
    adapter_37_create_partitions,
    adapter_42_delete_groups,
    adapter_43_elect_leaders,
    adapter_44_incremental_alter_configs,
    adapter_45_alter_partition_reassignments,
    adapter_46_list_partition_reassignments,
    adapter_47_offset_delete,
    adapter_48_describe_client_quotas,
    adapter_50_describe_user_scram_credentials,
    adapter_51_alter_user_scram_credentials,
    adapter_60_describe_cluster,
    adapter_61_describe_producers,
    adapter_65_describe_transactions,
    adapter_66_list_transactions,
    adapter_68_consumer_group_heartbeat,
    adapter_69_consumer_group_describe,
    adapter_74_list_config_resources,
    adapter_75_describe_topic_partitions,
)
from protocols.kafka.adapter_01_fetch import FetchDoor
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_produce_again import Again
from protocols.kafka.codec import (
    Entity,
    Malformed,
    read_message,
    reply_writer,
    request_reader,
    skip_tags,
    write_message,
)
from protocols.kafka.config import KafkaConfig
from protocols.kafka.errors import KafkaError
from protocols.kafka.fetch_sessions import FetchSessions
from protocols.kafka.registry import SERVED, Served
from protocols.peers import Authenticate, is_loopback, is_welcome
from protocols.sansio import Outbox, Rest
from routing.broker import Broker
from routing.clients import Client
from routing.errors import AccessRefused, BrokerError

log = structlog.get_logger(__name__)


_HEADER = Struct(">hhih")
_LENGTH = Struct(">i")
_CORRELATION = Struct(">i")
_PRODUCE, _API_VERSIONS = 0, 18


class ReplyOutbox(Outbox, Protocol):
    """One that can be waited for, and that may send pieces of files."""

    sends_files: bool
    """Whether it does."""

    def write(self, data: Piece) -> None:
        """Append what is not changed afterwards."""

    async def drained(self) -> None:
        """Wait until the client has read most of what is there, or is gone."""

    async def woken(self) -> None:
        """Wait until `wake_waiting`."""

    def wake_waiting(self) -> None:
        """Make those who wait look again."""


class KafkaAdapter:
    """One client connection; see the module's rules and `protocols.sansio.Adapter`."""

    def __init__(
        self,
        broker: Broker,
        outbox: ReplyOutbox,
        *,
        peer: str,
        local: tuple[str, int],
        clock: Callable[[], float],
        config: KafkaConfig,
        authenticate: Authenticate | None = None,
        door: str = "kafka",
        fetch_sessions: FetchSessions | None = None,
        peer_certificate_name: str | None = None,
    ) -> None:
        """`peer` is the address, for the loopback rule, `local` where it was reached; without `authenticate` everybody
        is the anonymous user. `door` is the one it came by, `fetch_sessions` those of all connections,
        `peer_certificate_name` what a verified certificate calls the peer.
        """
        self._broker = broker
        self._outbox = outbox
        self._config = config
        self._frames = FrameReader(min(config.login_request_bytes_max, config.request_bytes_max))
        self._calls: deque[Waiting] = deque()
        self.waiting = 0
        """Requests that have no reply yet, and those behind them."""
        self._again: Again | None = None
        self._behind_bytes = 0
        """Of replies that wait for another."""
        self._wanted = False
        """Somebody waits for these to be fewer."""
        self._login_deadline = clock() + config.login_timeout_ms / 1000
        self._ending = False
        self._name: str | None = None
        """What the client calls itself, once it has said so."""
        self.peer = peer
        self.closed = self.published = self.held = False
        self.left: Rest | None = None
        self.door = Door(
            broker,
            peer=peer,
            local=local,
            clock=clock,
            config=config,
            authenticate=authenticate,
            name=door,
            fetch_sessions=FetchSessions(config) if fetch_sessions is None else fetch_sessions,
        )
        self.door.login, self.door.end = self._login, self._end
        self.door.fetches = Fetches(
            FetchDoor(self.door), outbox, broker.timers, clock, config, broker.host.runnable,
            sends_files=outbox.sends_files,
        )  # fmt: skip
        self._certificate_name = peer_certificate_name if config.certificate_login else None
        if authenticate is None or (config.anonymous_loopback and is_loopback(peer)):
            self._login_anonymous()

    # The shell's side

    async def handle(self, data: bytes) -> None:
        """Take bytes from the peer; `b""` is its end."""
        if not data:
            self.closed = True
            return
        if self._certificate_name is not None:
            await self._login_by_certificate()
        await self._take(self._frames.feed(data), 0)

    async def _take(self, frames: Sequence[BytesLike], at: int) -> None:
        """Serve what came from `frames[at]` on."""
        while at < len(frames):
            if self._outbox.pending_bytes > self._config.replies_bytes_max:
                self._broker.end_turn()
                await self._outbox.drained()
            if self._is_full:
                self._broker.end_turn()
                while self._is_full and not self.closed:
                    self._wanted = True
                    await self._outbox.woken()
            if self.closed or self._ending:
                return
            try:
                served = await self._serve_next(frames, at)
                if not served:
                    self.left = partial(self._take, frames, at)
                    return
                at += served
            except Malformed as error:
                self._give_up(str(error))
                return
        if self._frames.wrong_length is not None:
            self._give_up(f"a request of {self._frames.wrong_length} bytes")

    @property
    def _is_full(self) -> bool:
        """As many requests wait, or as much of replies behind one of them, as may."""
        config = self._config
        return self.waiting >= config.requests_in_flight_max or self._behind_bytes > config.replies_bytes_max

    def next_timer_at(self) -> float:
        """The end of the time to log in."""
        return math.inf if self.door.grants is not None else self._login_deadline

    def handle_timer(self, now: float) -> None:
        """A connection that did not log in ends."""
        if self.door.grants is None and now >= self._login_deadline:
            self.closed = True

    def connection_lost(self) -> None:
        """Drop what waits. Committing goes on without anybody to tell."""
        self.closed = True
        self._calls.clear()
        self._broker.release(self)
        self.door.fetches.drop()
        self.door.fetch_sessions.detach(self.door)
        self.door.deadlines.clear()
        self.door.client = None
        del self.door.fetches, self.door.login, self.door.end  # they have the door, and memory is to be free at once

    def shut_down(self, reason: str) -> None:
        """Answer parked fetches with what there is, and close: a Kafka client looks for the new leader by itself."""
        self.door.fetches.answer_all()
        self.closed = True
        self._outbox.write(b"")

    def _give_up(self, why: str) -> None:
        log.warning("kafka connection ended", peer=self.peer, reason=why)
        self.closed = True

    def _end(self) -> None:
        self._ending = True
        if not self._calls:
            self.closed = True

    # Who it is

    def _login_anonymous(self) -> None:
        if self._broker.rights.user(self._config.anonymous_user) is not None:
            try:
                self._login(self._config.anonymous_user)
            except BrokerError as error:
                log.warning("a kafka client without a user name was refused", peer=self.peer, reason=str(error))

    async def _login_by_certificate(self) -> None:
        """Who shows one is the user whose name it has, until he logs in as another. No such user: it says nothing."""
        user, self._certificate_name = self._certificate_name, None
        assert user is not None
        try:
            if not await is_welcome(self.door.authenticate, user, None, self.peer):
                raise AccessRefused(f"'{user}', as its certificate calls it, is no user who may come from there")
            self.door.grants = None
            self._login(user)
        except BrokerError as error:
            log.warning("a kafka client was not logged in by its certificate", peer=self.peer, reason=str(error))

    def _login(self, user: str) -> None:
        self._broker.release(self)
        name, vhost = self._name or "", self._config.virtual_host
        library, shut_out = self.door.library, self._shut_out
        client = Client("kafka", user, vhost, self.peer, shut_out, name, send_on=shut_out, library=library)
        self.door.grants, self.door.client = self._broker.connect(self, client), client
        self._frames.frame_bytes_max = self._config.request_bytes_max

    def _named(self, client_id: str) -> None:
        """A request says what the client calls itself: it is one that logs in again, and may not be welcome."""
        self._name = client_id
        if self.door.grants is not None:
            user, self.door.grants = self.door.grants.user, None
            try:
                self._login(user)
            except BrokerError as error:
                log.warning("a kafka client was refused", peer=self.peer, reason=str(error))

    def _shut_out(self, reason: str) -> None:
        """Somebody wants this connection to end."""
        self._give_up(reason)
        self._outbox.write(b"")

    async def _take_token(self, token: BytesLike) -> None:
        """Of who logs in as the first version of SaslHandshake has it."""
        try:
            answer = await self.door.sasl.token(self.door, bytes(token))
        except KafkaError as error:
            raise Malformed(str(error)) from None
        self.door.bare_tokens = not self.door.sasl.done
        self._outbox.write(_LENGTH.pack(len(answer)) + answer)

    # Requests

    async def _serve_next(self, frames: Sequence[BytesLike], at: int) -> int:
        """Serve the request at `frames[at]`, maybe with some of those behind it; how many, 0: it has to wait."""
        if self.door.bare_tokens:
            await self._take_token(frames[at])
            return 1
        if self._again is not None:
            room = self._config.requests_in_flight_max - self.waiting
            if served := await self._again.serve(self, frames, at, room):
                return served
        return int(await self._serve(frames[at]))

    async def _serve(self, frame: BytesLike) -> bool:
        """False: it has to wait until publishers need not, as nobody would be told that it is refused."""
        if len(frame) < _HEADER.size:
            raise Malformed("no request header")
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        at = _HEADER.size + max(size, 0)
        served = SERVED.get(key)
        if served is None or at > len(frame):
            raise Malformed(f"request {key}, version {version} is not served")
        head = _CORRELATION.pack(correlation_id)
        if not served.version_min <= version <= served.version_max:
            if key != _API_VERSIONS:
                raise Malformed(f"version {version} of {served.api.name} is not served")
            waiting = self.queued(served, 0, head)
            waiting.answer(adapter_18_api_versions.unsupported_version())
            return True
        try:
            client_id = str(frame[_HEADER.size : at], "utf-8") if size >= 0 else None
            if served.api.is_flexible(version):
                _, at = skip_tags(frame, at, len(frame), {})
        except (IndexError, UnicodeDecodeError):
            raise Malformed("a request header that is cut short") from None
        if self._name is None and client_id is not None:
            self._named(client_id)
        reader = request_reader(served.api, version)
        request = read_message(reader, frame, at, self._config.request_elements_max)
        if self.door.grants is None and not served.before_login:
            raise Malformed(f"{served.api.name} before the login")
        if key == _PRODUCE:
            self.published = True
            if request.acks == adapter_00_produce.NONE and self._broker.blocked is not None:
                return False
        waiting = self.queued(served, version, head)
        call = Call(version, client_id, waiting.answer)
        try:
            reply = await served.handler(self.door, call, request)
        except ENGINE_ERRORS as error:
            # A handler says what its own requests are told; what is left has no reply to say it in.
            raise Malformed(f"{served.api.name}: {code_of(error).name}: {error}") from None
        if reply is not None:
            waiting.answer(reply)
        if key == _PRODUCE and Again.is_fit(request):
            self._again = Again(self.door, version, frame, request)
        return True

    def queued(self, served: Served, version: int, head: bytes, count: int = 1) -> Waiting:
        """A request's place in the line, or that of so many which are answered together."""
        waiting = Waiting(self, served, version, head, count)
        self._calls.append(waiting)
        self.waiting += count
        return waiting

    def note_answered(self, size: int) -> None:
        """A reply of so many bytes is there."""
        self._behind_bytes += size

    def send_answered(self) -> None:
        """Send the replies that no other stands before."""
        calls = self._calls
        while calls and calls[0].pieces is not None:
            answered = calls.popleft()
            self._behind_bytes -= answered.size
            self.waiting -= answered.count
            for piece in answered.pieces or ():
                self._outbox.write(piece)
        if self._ending and not calls:
            self.closed = True
        if self._wanted and not self._is_full:
            self._wanted = False
            self._outbox.wake_waiting()


class Waiting:
    """A request whose reply has its place in the line, or several whose replies have one."""

    __slots__ = ("_adapter", "_served", "_version", "count", "head", "pieces", "size")

    def __init__(self, adapter: KafkaAdapter, served: Served, version: int, head: bytes, count: int = 1) -> None:
        self._adapter = adapter
        self._served = served
        self._version = version
        self.head = head
        self.count = count
        self.pieces: list[Piece] | None = None
        self.size = 0

    def answer(self, reply: Entity | None) -> None:
        """Here it is; None: there is none."""
        if self.pieces is not None or self._adapter.closed:
            return
        if reply is None:
            self.pieces = []
        else:
            api, head = self._served.api, self.head
            if api.is_flexible(self._version) and api.key != _API_VERSIONS:
                head += b"\0"  # no tagged fields in the header
            pieces = write_message(reply_writer(api, self._version), head, reply)
            self.size = sum(map(len, pieces))
            self.pieces = [_LENGTH.pack(self.size), *pieces]
            self._adapter.note_answered(self.size)
        self._adapter.send_answered()

    def send(self, reply: BytesLike) -> None:
        """Here it is, written, with its length and `head`; or all of them."""
        if self.pieces is None and not self._adapter.closed:
            self.pieces, self.size = [reply], len(reply)
            self._adapter.note_answered(self.size)
            self._adapter.send_answered()
