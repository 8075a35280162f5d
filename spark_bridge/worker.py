"""What concerns a whole Python process of Spark's that runs tasks, or plans micro-batches."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Leave all that is there now out of later looks for garbage; once in a process.

    Spark has Python look through everything after each task, and the next task waits: 35 ms when only what is imported
    lies there.
    """
    gc.collect()
    gc.freeze()
