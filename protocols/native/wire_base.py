"""What all messages of the native protocol are made of: their bases and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

VERSION_MIN, VERSION = 1, 6
GROUPS_SINCE: Final = 3
"""The first version with groups and idempotent producers."""
CONTAINING_SINCE: Final = 4
"""The first version whose fetches look for something."""
READERS_SINCE: Final = 5
"""The first version whose operations know readers of queues, and holders of a lease."""
TOPIC_IDS_SINCE: Final = 6
"""The first version whose metadata and fetches say the ids of topics."""
NO_EPOCH: Final = -1
"""Who asks does not say which leader epoch it knows."""

_NAME_LENGTH_MAX = 255
ENTRIES_MAX = 10_000
CONFIG_MAX = 100
CONTAINING_MAX: Final = 64
"""Byte strings that a fetch may look for, and how long they may be in all."""
CONTAINING_BYTES_MAX: Final = 16 << 10
BLOB_BYTES_MAX = 1 << 20
"""What members of a group say to each other by way of the broker."""

Correlation = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Name = Annotated[str, Meta(min_length=1, max_length=_NAME_LENGTH_MAX)]
NameOrNone = Annotated[str, Meta(max_length=_NAME_LENGTH_MAX)]
Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF)]
Offset = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
Epoch = Annotated[int, Meta(ge=NO_EPOCH, le=0xFFFF_FFFF)]
Blob = Annotated[bytes, Meta(max_length=BLOB_BYTES_MAX)]
Containing = Annotated[
    list[Annotated[list[bytes], Meta(min_length=1, max_length=CONTAINING_MAX)]], Meta(max_length=CONTAINING_MAX)
]
Argument = str | int | float | bool | None


class Request(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all requests; the subclass's tag is the api number."""

    correlation_id: Correlation


class Reply(Struct, array_like=True, gc=False):
    """Base of all replies; the subclass's tag is the api number of the request."""

    correlation_id: int | None
