"""What a message is to the engine.

1. A message keeps the property bytes of the protocol it came in by (`Properties.raw`, tagged with `protocol`); only
   what routing and expiry need is extracted, once. Other protocols read the neutral form, decoded on first use.
2. `Properties` are immutable and shared: adapters intern them by their raw bytes, so that a run of messages with the
   same properties costs one object. Compare them by identity on the hot path.
3. A `Slab` is a run of messages with one exchange that agree in persistence. What else they share is kept once, the
   rest in parallel lists: keys, raw properties, and the facts the engine decides by (`facts.py`). It is the unit that
   is routed, logged, queued and delivered; a slab of one message is normal. Slabs are never changed after publishing.
4. Names are `str`; bytes that are not UTF-8 travel as surrogate escapes, so nothing is lost on the way through.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core_log.errors import CorruptBatch
from core_log.record_batch import encode_entries
from routing.facts import DELAYED_FROM, TIMED_FROM, pack, ttl_ms_of

RESERVED_HEADER_PREFIX = "millrace."

NAME_ENCODING_ERRORS = "surrogateescape"

KEY_BYTES_MAX = 255
"""A routing key has at most so many; a longer key of a record is cut for those who get it as one."""


def is_key(text: str) -> bool:
    """Whether a message can have this routing key, or go to an exchange of this name: one that is longer is no short
    string of AMQP.
    """
    try:
        return len(text.encode("utf-8", NAME_ENCODING_ERRORS)) <= KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False


def decode_keys(keys: list[bytes]) -> list[str]:
    """Routing keys as text, all at once where that can be: many in one string take little longer than one."""
    found = b"\0".join(keys).decode("utf-8", NAME_ENCODING_ERRORS).split("\0")
    if len(found) == len(keys):
        return found
    return [key.decode("utf-8", NAME_ENCODING_ERRORS) for key in keys]


@dataclass(slots=True)
class NeutralProperties:
    """Properties in no protocol's form. `None` means absent; `headers` are the application's own."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    persistent: bool = False
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: str | None = None
    expiration_ms: int | None = None
    message_id: str | None = None
    timestamp_s: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


Decoder = Callable[[bytes], NeutralProperties]

_decoders: dict[str, Decoder] = {}


def register_decoder(protocol: str, decode: Decoder) -> None:
    """Make `decode` the way to read raw properties tagged `protocol` (a short ASCII tag such as "amqp")."""
    _decoders[protocol] = decode


RecordEncoder = Callable[[bytes], tuple[int, bytes]]
"""Raw properties to the headers of a record (`Properties.record_headers`): how many, and their bytes without that."""

_record_encoders: dict[str, RecordEncoder] = {}


def register_record_encoder(protocol: str, encode: RecordEncoder) -> None:
    """A faster way than the neutral form, for a protocol whose messages come in great numbers."""
    _record_encoders[protocol] = encode


def record_encoder(protocol: str) -> RecordEncoder:
    """How raw properties of a protocol become the headers of a record."""
    found = _record_encoders.get(protocol)
    if found is not None:
        return found

    def encode(raw: bytes) -> tuple[int, bytes]:
        headers = Properties(protocol, raw, persistent=True).record_headers
        return len(headers), encode_entries(headers)

    return encode


def is_registered(protocol: str) -> bool:
    """Whether raw properties with this tag can be read."""
    return protocol in _decoders


class Properties:
    """Immutable, shared properties of messages; see the module's rules 1 and 2.

    `wire` is scratch space for adapters: encoded forms keyed by protocol and size, so that delivery encodes once.
    """

    __slots__ = ("_neutral", "_record_headers", "facts", "persistent", "protocol", "raw", "wire")

    def __init__(self, protocol: str, raw: bytes, *, persistent: bool, facts: int | None = None) -> None:
        """`facts` are those of `facts.py`; without them only `persistent` counts."""
        self.protocol = protocol
        self.raw = raw
        self.persistent = persistent
        self.facts = pack(persistent) if facts is None else facts
        self.wire: dict[Any, Any] = {}
        self._neutral: NeutralProperties | None = None
        self._record_headers: list[tuple[str, bytes | None]] | None = None

    @property
    def common_tag(self) -> bytes:
        """All of `log_tag` but `raw`: what properties of messages in one slab have in common.

        Facts are not part of it: they stand with the place of the message in the log. The zero byte was a priority.
        """
        return b"%b\0%c\0" % (self.protocol.encode(), self.persistent)

    @property
    def log_tag(self) -> bytes:
        """The properties as a home partition keeps them."""
        return self.common_tag + self.raw

    @classmethod
    def from_log_tag(cls, tag: bytes) -> Properties:
        """The inverse of `log_tag`. Raises CorruptBatch."""
        protocol, zero, rest = tag.partition(b"\0")
        if not zero or len(rest) < 2 or not protocol.isascii():
            raise CorruptBatch("a record of a home partition has damaged properties")
        return cls(protocol.decode(), rest[2:], persistent=bool(rest[0]))

    @property
    def neutral(self) -> NeutralProperties:
        """The neutral form, decoded on first use."""
        if self._neutral is None:
            neutral = self._neutral = _decoders[self.protocol](self.raw)
            if neutral.expiration_ms is None and self.facts >= TIMED_FROM:
                neutral.expiration_ms = ttl_ms_of(self.facts)
        return self._neutral

    @property
    def record_headers(self) -> list[tuple[str, bytes | None]]:
        """Headers of a topic's record: the application's own, then typed properties under a reserved prefix."""
        if self._record_headers is None:
            self._record_headers = _to_record_headers(self.neutral)
        return self._record_headers


TYPED_NAMES = (
    "content_type", "content_encoding", "priority", "correlation_id", "reply_to", "expiration_ms", "message_id",
    "timestamp_s", "type", "user_id", "app_id",
)  # fmt: skip
"""Attributes of `NeutralProperties` that records have as headers under the reserved prefix."""
USER_ID_HEADER = RESERVED_HEADER_PREFIX + "user-id"
TYPED_BY_HEADER = {
    header: name
    for header, name in ((RESERVED_HEADER_PREFIX + name.replace("_", "-"), name) for name in TYPED_NAMES)
    if header != USER_ID_HEADER
}
"""What such headers are when they are properties again, whoever wrote them. A user id stays a header: the property is
taken as a name that the broker has checked, and it checks AMQP's alone.
"""


def _to_record_headers(neutral: NeutralProperties) -> list[tuple[str, bytes | None]]:
    headers = application_headers(neutral.headers)
    for name in TYPED_NAMES:
        value = getattr(neutral, name)
        if value is not None:
            headers.append((RESERVED_HEADER_PREFIX + name.replace("_", "-"), _header_value(value)))
    return headers


def application_headers(headers: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Headers of an application as those of a record."""
    return [(name, _header_value(value)) for name, value in headers.items()]


def _header_value(value: Any) -> bytes | None:
    """Bytes as they are, text as UTF-8, everything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", NAME_ENCODING_ERRORS)
    return json.dumps(value, default=str).encode()


class Numbered(NamedTuple):
    """Who publishes (the id of a durable queue), a number (uint16) for each message, the epoch of the publisher's
    connection: under these a message is published once, however often it is said, until the number is released
    (`queues/publish_numbers.py`).
    """

    publisher: int
    numbers: array[int]
    epoch: int = 0


class Slab:
    """A run of messages of one exchange; see the module's rule 3.

    Message `i` is `bodies[i]`, with the routing key `keys[i]` and the raw properties `raws[i]`. What all messages
    share is kept once instead: without `keys` the key of all is `routing_key`, without `raws` the properties of all are
    `properties`. With `raws`, `properties` says what the messages still have in common (protocol, persistent)
    and its own `raw` means nothing. Without `facts` those of all are `properties.facts`.

    `size` is the sum of the body lengths in bytes. `wire` is scratch space for adapters, as in `Properties`,
    shared by all who deliver this slab: encode a fan-out once per wire form. `columns` is the same for home partitions:
    the facts as they keep them. `once` is for publishes that may be said again.
    """

    __slots__ = (
        "_highest_facts", "bodies", "columns", "exchange", "facts", "keys", "once", "properties", "raws",
        "routing_key", "size",
        "wire",
    )  # fmt: skip

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        properties: Properties,
        bodies: list[bytes],
        size: int | None = None,
        *,
        keys: list[str] | None = None,
        raws: list[bytes] | None = None,
        facts: list[int] | None = None,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.bodies = bodies
        self.keys = keys
        self.raws = raws
        self.facts = facts
        if size is None:
            size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.size = size
        self.wire: dict[Any, Any] | None = None
        self.columns: Any = None
        self.once: Numbered | None = None
        self._highest_facts = -1

    def __len__(self) -> int:
        return len(self.bodies)

    def with_facts(self, facts: list[int]) -> Slab:
        """The same messages with other facts, one for each."""
        common, raws = self.properties, self.raws
        if raws is None and facts.count(facts[0]) == len(facts):
            common = Properties(common.protocol, common.raw, persistent=common.persistent, facts=facts[0])
            return Slab(self.exchange, self.routing_key, common, self.bodies, self.size, keys=self.keys)
        if raws is None:
            raws = [common.raw] * len(facts)
        return Slab(
            self.exchange, self.routing_key, common, self.bodies, self.size, keys=self.keys, raws=raws, facts=facts
        )

    def memo(self) -> dict[Any, Any]:
        """`wire`, made when it is first needed."""
        if self.wire is None:
            self.wire = {}
        return self.wire

    def key_of(self, index: int) -> str:
        """The routing key of one message."""
        return self.routing_key if self.keys is None else self.keys[index]

    def properties_of(self, index: int) -> Properties:
        """The properties of one message."""
        common = self.properties
        if self.raws is None:
            return common
        facts = common.facts if self.facts is None else self.facts[index]
        return Properties(common.protocol, self.raws[index], persistent=common.persistent, facts=facts)

    @property
    def highest_facts(self) -> int:
        """Below `TIMED_FROM` no message has a time to live or a delay, below `DELAYED_FROM` none has a delay."""
        if self.facts is None:
            return self.properties.facts
        if self._highest_facts < 0:
            self._highest_facts = max(self.facts)
        return self._highest_facts

    @property
    def plain(self) -> bool:
        """No message of it has a time to live or a delay: all that may set it apart is its priority."""
        return self.highest_facts < TIMED_FROM

    @property
    def delayed(self) -> bool:
        """A message of it is to wait."""
        return self.highest_facts >= DELAYED_FROM

    def size_of(self, start: int, stop: int) -> int:
        """The sum of the body lengths of the messages [start, stop), in bytes."""
        return self.size if stop - start == len(self.bodies) else sum(map(len, self.bodies[start:stop]))

    def part(self, start: int, stop: int) -> Slab:
        """The messages [start, stop) as a slab of their own."""
        if start == 0 and stop == len(self.bodies):
            return self
        keys = None if self.keys is None else self.keys[start:stop]
        raws = None if self.raws is None else self.raws[start:stop]
        facts = None if self.facts is None else self.facts[start:stop]
        key = self.routing_key
        if keys is not None:
            key = keys[0]
            if keys.count(key) == len(keys):
                keys = None
        found = Slab(self.exchange, key, self.properties, self.bodies[start:stop], keys=keys, raws=raws, facts=facts)
        if self.once is not None:
            found.once = Numbered(self.once[0], self.once[1][start:stop], self.once[2])
        return found


class StreamSlab(Slab):
    """Messages of consecutive offsets from `first_offset` on; `raws` is always there."""

    __slots__ = ("end_offset", "first_offset")

    def __init__(
        self, first_offset: int, exchange: str, properties: Properties, bodies: list[bytes], keys: list[str], raws: Any
    ) -> None:
        same = keys.count(keys[0]) == len(keys)
        super().__init__(exchange, keys[0], properties, bodies, keys=None if same else keys, raws=raws)
        self.first_offset = first_offset
        self.end_offset = first_offset + len(bodies)
