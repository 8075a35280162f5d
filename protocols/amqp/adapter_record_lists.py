"""Property lists of messages that are records of a topic: their headers as a table, without decoding them."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.adapter_record_headers import Rewriter
from protocols.amqp.adapter_properties import raw_of
from protocols.amqp.wire import long_string, short_string
from routing.message import Properties
from routing.topics.stream_records import RECORD_PROTOCOL

_NO_HEADERS = b"\x10\0\2"
"""Nothing but the delivery mode 2."""


def _head(name: str, size: int) -> bytes:
    return short_string(name) + (b"V" if size < 0 else b"S" + size.to_bytes(4, "big"))


def _binary(name: str, value: bytes) -> bytes:
    return short_string(name) + b"x" + long_string(value)


tables_of = Rewriter(_head, _binary).rewrite
"""Tables without their lengths; None for a header block of which `raw_of` has to make the list."""


def lists_of(blocks: Sequence[bytes]) -> list[bytes]:
    """The property list for each header block, as `raw_of` makes it."""
    found = []
    for table, block in zip(tables_of(blocks), blocks):
        if table:
            found.append(b"\x30\0%b%b\2" % (len(table).to_bytes(4, "big"), table))
        elif table is None:
            found.append(raw_of(Properties(RECORD_PROTOCOL, block, persistent=True)))
        else:
            found.append(_NO_HEADERS)
    return found
