"""A broker whose wall clock is put back, or forward: `python -m benchmarks.put_back serve ...` with MS_BACK set.

For what was filled some time ago with messages that are due at a time of day.
"""

from __future__ import annotations

import os
from functools import partial

import gateway.server
from core_log.wall_clock import wall_clock_ms
from gateway.cli import main
from routing.broker import open_broker

if __name__ == "__main__":
    back_ms = int(os.environ["MS_BACK"])
    opened = partial(open_broker, wall_clock_ms=lambda: wall_clock_ms() - back_ms)
    setattr(gateway.server, "open_broker", opened)  # noqa: B010 - it is not its to give
    main()
