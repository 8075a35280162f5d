"""Small files that are replaced as a whole: after a crash either the old content is found or the new, never a mixture.

    0   crc      u32   CRC-32C of the rest
    4   length   u32
    8   content

Written to a second name, synced, renamed over the first, and the directory synced. Where one bit of a short one has
flipped each can be tried: the CRC is right with that one.
"""

from __future__ import annotations

import logging
from struct import Struct

from crc32c import crc32c

from core_log.files import Files, read_file

_HEAD = Struct(">II")
_LENGTH = Struct(">I")
TEMPORARY_SUFFIX = ".new"
_MENDED_BYTES_MAX = 256

logger = logging.getLogger(__name__)


def save(files: Files, path: str, content: bytes, *, sync_name: bool = True) -> None:
    """Replace the checkpoint at `path`, durably. Raises OSError.

    With sync_name=False a crash soon after may bring back the old content.
    """
    sized = _LENGTH.pack(len(content)) + content
    temporary = path + TEMPORARY_SUFFIX
    file = files.open(temporary)
    try:
        file.truncate(0)
        file.pwritev([crc32c(sized).to_bytes(4, "big"), sized], 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    if sync_name:
        files.sync_directory(path.rpartition("/")[0])


def load(files: Files, path: str) -> bytes | None:
    """The content last saved, also where one bit of it has flipped; None when there is none or it is damaged. Both is
    logged. Raises OSError.
    """
    try:
        return read(files, path)
    except ValueError:
        pass
    data = bytearray(read_file(files, path))
    for bit in range(len(data) * 8 if len(data) <= _MENDED_BYTES_MAX else 0):
        data[bit >> 3] ^= 1 << (bit & 7)
        if _is_whole(data):
            logger.warning("checkpoint %s is damaged: one bit of it had flipped, and is put back", path)
            return bytes(data[_HEAD.size :])
        data[bit >> 3] ^= 1 << (bit & 7)
    logger.warning("checkpoint %s is damaged and ignored", path)
    return None


def read(files: Files, path: str) -> bytes | None:
    """The content last saved; None when there is none. Raises ValueError when it is damaged, OSError."""
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    if not _is_whole(data):
        raise ValueError(f"{path} is damaged")
    return data[_HEAD.size :]


def _is_whole(data: bytes | bytearray) -> bool:
    if len(data) < _HEAD.size:
        return False
    crc, length = _HEAD.unpack_from(data)
    return bool(length == len(data) - _HEAD.size and crc == crc32c(memoryview(data)[4:]))
