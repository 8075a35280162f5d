"""What time it is."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as this machine's clock tells them: it may jump."""
    return time.time_ns() // 1_000_000
