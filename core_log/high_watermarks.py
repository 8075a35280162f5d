"""The high watermarks of a data directory's replicated logs, in one small file.

Saved at a start, every few seconds and when all is closed, so that readers need not wait after a start until the leader
has heard from its followers. What is in it may be old; nothing is ever cut by it.
"""

from __future__ import annotations

import logging

import msgspec

from core_log import checkpoint
from core_log.files import Files

FILE_NAME = "high-watermarks"

logger = logging.getLogger(__name__)


def save(files: Files, directory: str, offsets: dict[str, int]) -> None:
    """`offsets` are high watermarks by the log's directory. Raises OSError."""
    path = f"{directory}/{FILE_NAME}" if directory else FILE_NAME
    checkpoint.save(files, path, msgspec.msgpack.encode(offsets))


def load(files: Files, directory: str) -> dict[str, int]:
    """What was saved last; nothing when there is none or it is damaged (which is logged)."""
    return find(files, directory) or {}


def find(files: Files, directory: str) -> dict[str, int] | None:
    """The same; None when there is none, or a damaged one."""
    data = checkpoint.load(files, f"{directory}/{FILE_NAME}" if directory else FILE_NAME)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=dict[str, int])
    except msgspec.MsgspecError as error:
        logger.warning("%s is ignored: %s", FILE_NAME, error)
        return None
