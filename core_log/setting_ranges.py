"""What a number in the configuration may be, by its unit. A setting that needs another range says so itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

COUNT_MAX = (1 << 31) - 1
BYTES_MAX = 1 << 60
TEN_YEARS_MS = 315_360_000_000

Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
CountOrZero = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Bytes = Annotated[int, Meta(ge=1, le=BYTES_MAX)]
BytesOrZero = Annotated[int, Meta(ge=0, le=BYTES_MAX)]
FrameBytes = Annotated[int, Meta(ge=1024, le=COUNT_MAX)]
"""What travels behind a length of 32 bits."""
SegmentBytes = Annotated[int, Meta(ge=1024, le=1 << 31)]
"""Positions in a segment are 32 bits."""
Milliseconds = Annotated[int, Meta(ge=1, le=TEN_YEARS_MS)]
MillisecondsOrZero = Annotated[int, Meta(ge=0, le=TEN_YEARS_MS)]
Seconds = Annotated[float, Meta(gt=0, le=TEN_YEARS_MS / 1000)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=TEN_YEARS_MS / 1000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
