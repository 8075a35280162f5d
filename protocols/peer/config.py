"""Limits and settings of the links between brokers, with their units."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from core_log.setting_ranges import BYTES_MAX, FrameBytes, Milliseconds


class PeerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the links can be told. `frame_bytes_max` and `credit_bytes` may differ between brokers, the secret not."""

    secret: str = ""
    """What all brokers of the cluster know, and nobody else. Without one only peers on this machine are accepted."""
    handshake_bytes_max: FrameBytes = 4096
    """Largest frame before the peer has shown that it knows the secret."""
    handshake_timeout_ms: Milliseconds = 5000
    """How long both have for that."""
    clock_difference_ms_max: Milliseconds = 30_000
    """A broker whose clock is further apart from another's does not start; one that runs says so."""
    frame_bytes_max: Annotated[int, Meta(ge=1 << 20, le=0x7FFF_FFFF)] = 288 << 20
    """Largest frame, without its length. A record batch travels in one: it must hold the largest there can be, a
    transaction's."""
    credit_bytes: Annotated[int, Meta(ge=1024, le=BYTES_MAX)] = 8 << 20
    """Record batches that may be under way to this broker on one link; only a single batch that is larger goes
    beyond it."""
    read_bytes_max: FrameBytes = 1 << 20
    """Most bytes of record batches of one log in a frame, but for a single batch that is larger."""
    heartbeat_ms: Milliseconds = 500
    """How often each side says something at least; on links for clients it is half as often."""
    silence_ms_max: Milliseconds = 1_600
    """A peer that said nothing for so long is taken for gone; on links for clients it is twice that."""
    dial_timeout_ms: Milliseconds = 1000
    """How long a peer has to take a connection."""
    redial_ms_min: Milliseconds = 50
    redial_ms_max: Milliseconds = 1000
    """How long to wait before a peer is dialled again: at first, and at most."""
