"""How a message that came by MQTT keeps what MQTT says of it: the raw bytes of its `Properties`.

    flags(1) | mark(8), if MARKED is set | property block of MQTT 5, to the end

The block is as a publish tells it (`events.py`): without topic alias, message expiry and subscription identifiers; none
for 3.1.1. Flags: bits 0 and 1 are the QoS it was published with, MARKED says that the mark of its publisher follows,
RETAIN that it was published to be retained, GIVEN that it is given out because it is retained: whoever is sent it is
sent it with RETAIN 1. What nobody asks for costs nothing: publishes are marked only where a subscription looks at it
(no-local, shares divided by publisher).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

QOS_MASK = 0x03
GIVEN = 0x20
MARKED = 0x40
RETAIN = 0x80
MARK_BYTES = 8


@lru_cache(maxsize=1024)
def mark_of(client_id: str) -> bytes:
    """What tells a publisher from all others: a digest of its client identifier."""
    return blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


def head_of(qos: int, *, retain: bool = False, mark: bytes = b"") -> bytes:
    """All of the raw bytes but the property block."""
    return bytes((qos | (RETAIN if retain else 0) | (MARKED if mark else 0),)) + mark


def with_flags(raw: bytes, flags: int) -> bytes:
    """The same with more flags."""
    return bytes((raw[0] | flags,)) + raw[1:] if raw else bytes((flags,))


def with_mark(raw: bytes, mark: bytes) -> bytes:
    """The same with the mark of its publisher, if it has none."""
    return raw if raw and raw[0] & MARKED else with_flags(raw, MARKED)[:1] + mark + raw[1:]


def with_qos_max(raw: bytes, qos: int) -> bytes:
    """The same as if it had been published at this QoS at most."""
    return raw if not raw or raw[0] & QOS_MASK <= qos else bytes((raw[0] & ~QOS_MASK | qos,)) + raw[1:]


def block_of(raw: bytes) -> bytes:
    """The property block; b"" where there is none."""
    if not raw or not raw[0] & MARKED:
        return raw[1:]
    return raw[1 + MARK_BYTES :]


def mark_in(raw: bytes) -> bytes:
    """The mark of the publisher; b"" of a message that has none."""
    return raw[1 : 1 + MARK_BYTES] if raw and raw[0] & MARKED else b""
