"""What readers of a log notice of the state of its files (`ReadableLog.unreadable`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core_log.errors import CorruptBatch
from core_log.segment import BatchPlace

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog


logger = logging.getLogger(__name__)

_SAID_AGAIN_S = 30.0


@contextmanager
def noticing(log: ReadableLog) -> Iterator[None]:
    """Note what is found damaged, or gone, unless the log was cut or closed meanwhile. That the disk refuses is said
    now and then: readers try again and again, each of them.
    """
    cuts = log.cuts
    try:
        yield
    except (CorruptBatch, FileNotFoundError):
        if not (log.closed or log.truncating) and log.cuts == cuts:
            log.unreadable = True
        raise
    except OSError as error:
        if time.monotonic() >= log.refusal_said_s + _SAID_AGAIN_S:
            log.refusal_said_s = time.monotonic()
            logger.warning("cannot read %s now: %s", log.directory, error)
        raise


def noticed(log: ReadableLog, places: Iterable[BatchPlace]) -> Iterator[BatchPlace]:
    """A scan of the log. What whoever asks makes of the batches is not the files' fault."""
    with noticing(log):
        yield from places
