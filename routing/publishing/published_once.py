"""Messages that a writer publishes to an exchange in steps, each of which takes effect once.

1. A writer is a name, its steps have rising numbers. Which was its last is kept in a store of redo records
   (`writers.py`), and changed by the very batch that decides on the step's messages: a step whose number is not above
   the last has taken effect, and takes none again, whoever asks, and after whatever crash. It has taken effect as it
   was decided: with the messages, and to the queues and topics, of the attempt that was first.
2. Steps of one writer follow each other. A step is one transaction, and has its limit.
3. A commit that a crash cuts off is done again at the start (`transactions.py`), or by another broker of a cluster
   (`cluster/clients/shared_steps.py`). Each log gets what it lacks of the step then (`step_parts.py`).
4. Messages come as record batches; their properties are those of records of streams (`topics/stream_records.py`),
   their delay is the header `x-delay`. They are persistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.batch_header import validate
from core_log.errors import CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.record_batch import encode_entries
from core_log.record_fields import decode_fields
from core_log.varint import read_varint, varint
from routing.errors import BrokerError, InvalidArgument, StorageUnavailable
from routing.facts import pack
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab, register_record_encoder
from routing.topics.stream_records import RECORD_PROTOCOL, neutral_of

if TYPE_CHECKING:
    from routing.access.grants import Grants
    from routing.broker import Broker
    from routing.consumer import Consumer

DELAY_HEADER = "x-delay"
MARKER_HEADER = "millrace.once"
DELAY_MS_MAX = (1 << 32) - 1
_BLOCKS_MAX = 4096


class Step(NamedTuple):
    """What a commit of a step says besides its messages."""

    writer: str
    number: int

    @property
    def marker(self) -> bytes:
        """Stands in the headers of each of its messages, and nowhere else."""
        digest = sha256(self.writer.encode("utf-8", NAME_ENCODING_ERRORS)).digest()[:16]
        return encode_entries([(MARKER_HEADER, digest + self.number.to_bytes(8, "big"))])


async def publish_once(
    broker: Broker, grants: Grants, exchange: str, writer: str, number: int, batches: Sequence[BytesLike]
) -> int:
    """Publish the records of batches as step `number` of a writer; how many there were, or -1 where that is done.

    Raises NotFound, AccessRefused, LimitExceeded, InvalidArgument (damaged batches), StorageUnavailable (then it may
    be done yet, as a whole).
    """
    grants.require("write", "exchange", exchange)
    transactions, step = broker.transactions, Step(writer, number)
    async with transactions.lock(writer):
        if transactions.is_done(step):
            return -1
        slabs = _slabs(exchange, batches, step.marker)
        for slab in slabs:
            grants.require_publish(exchange, slab.keys or (slab.routing_key,))
        session = broker.session(_Sink(), protocol="administration", owner=None, vhost=grants.vhost)
        try:
            session.begin()
            for slab in slabs:
                session.publish(slab)
            transaction, session.transaction = session.transaction, None
            assert transaction is not None
            with trio.CancelScope(shield=True):
                is_new = await transactions.commit(session, transaction, step)
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error
        finally:
            session.close()
            broker.end_turn()
    return sum(map(len, slabs)) if is_new else -1


def _slabs(exchange: str, batches: Iterable[BytesLike], marker: bytes) -> list[Slab]:
    common = Properties(RECORD_PROTOCOL, b"", persistent=True)
    facts_of: dict[bytes, int] = {}
    found = []
    try:
        for batch in batches:
            header = validate(batch)
            if header.is_control:
                raise CorruptBatch("a control batch")
            fields = decode_fields(batch)
            blocks = fields.header_blocks
            keys = [(key or b"").decode("utf-8", NAME_ENCODING_ERRORS) for key in fields.keys]
            if max(len(key or b"") for key in fields.keys) > 255:
                raise InvalidArgument("a routing key has at most 255 bytes")
            facts = []
            for block in blocks:
                known = facts_of.get(block)
                if known is None:
                    if len(facts_of) >= _BLOCKS_MAX:
                        facts_of.clear()
                    known = facts_of[block] = _facts(block)
                facts.append(known)
            bodies = [value or b"" for value in fields.values]
            raws = [_marked(block, marker) for block in blocks]
            found.append(Slab(exchange, keys[0], common, bodies, keys=keys, raws=raws, facts=facts))
    except CorruptBatch as error:
        raise InvalidArgument(f"no batch of records: {error}") from None
    return found


def _marked(block: bytes, marker: bytes) -> bytes:
    count, at = read_varint(block, 0, len(block))
    return varint(count + 1) + marker + block[at:]


def _facts(block: bytes) -> int:
    neutral = neutral_of(block)
    delay = neutral.headers.get(DELAY_HEADER)
    delay_ms = 0
    if delay is not None:
        if not isinstance(delay, str) or not delay.isascii() or not delay.isdigit() or int(delay) > DELAY_MS_MAX:
            raise InvalidArgument(f"{DELAY_HEADER} is a number of milliseconds up to {DELAY_MS_MAX}, not {delay!r}")
        delay_ms = int(delay)
    return pack(True, neutral.priority or 0, neutral.expiration_ms, delay_ms)


class _Sink:
    """Of a session that nobody listens to."""

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Nothing is consumed."""

    def confirm(self, up_to: int) -> None:
        """The commit says it."""

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """The commit says it."""

    def returned(self, slab: Slab, reason: str) -> None:
        """Nothing is mandatory."""

    def cancelled(self, consumer: Consumer) -> None:
        """Nothing is consumed."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


def _entries(block: bytes) -> tuple[int, bytes]:
    count, at = read_varint(block, 0, len(block))
    return count, block[at:]


register_record_encoder(RECORD_PROTOCOL, _entries)
