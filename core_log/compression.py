"""The four compressions of the record format, each with a limit on what it may grow to.

1. Snappy is framed as Kafka's clients do (xerial's stream): 16 bytes of magic and versions, then blocks of (u32 length,
   raw snappy); a raw block without framing is read as well.
2. Decompression never allocates more than the limit: gzip asks zlib for at most that many bytes, snappy names its size
   up front, lz4 and zstd write into an anonymous mapping of the limit's size, of which only touched pages take memory.
3. LZ4 is a frame of blocks that do not lean on each other: Kafka's Java clients read no others. The batch has a CRC, so
   the frame needs none of all of it.
4. Malformed input and input beyond the limit raise CorruptBatch.
"""

from __future__ import annotations

import mmap
import zlib
from enum import IntEnum
from struct import Struct

import cramjam

from core_log.errors import CorruptBatch

DECOMPRESSED_BYTES_MAX = 64 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_SNAPPY_BLOCK_BYTES = 32 << 10
_U32 = Struct(">I")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class Compression(IntEnum):
    """Codes of bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(compression: Compression, data: bytes) -> bytes:
    """`data` compressed as the records of a batch are."""
    if compression is Compression.GZIP:
        compressor = zlib.compressobj(wbits=_GZIP_WINDOW)
        return compressor.compress(data) + compressor.flush()
    if compression is Compression.SNAPPY:
        parts = [_XERIAL_HEADER]
        for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK_BYTES]))
            parts += (_U32.pack(len(block)), block)
        return b"".join(parts)
    if compression is Compression.LZ4:
        frame = cramjam.lz4.Compressor(level=0, block_linked=False, content_checksum=False)
        frame.compress(data)
        return bytes(frame.finish())
    if compression is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return data


def decompress(code: int, data: bytes, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The inverse of `compress`. Raises CorruptBatch, also when the result would exceed `bytes_max`."""
    try:
        if code == Compression.NONE:
            return data
        if code == Compression.GZIP:
            return _gunzip(data, bytes_max)
        if code == Compression.SNAPPY:
            return _unsnappy(data, bytes_max)
        if code == Compression.LZ4:
            return _decompress_into(cramjam.lz4, data, bytes_max)
        if code == Compression.ZSTD:
            return _decompress_into(cramjam.zstd, data, bytes_max)
    except (zlib.error, cramjam.DecompressionError, ValueError) as error:
        raise CorruptBatch(f"compressed records: {error}") from error
    raise CorruptBatch(f"unknown compression {code}")


def _too_large(bytes_max: int) -> CorruptBatch:
    return CorruptBatch(f"records decompress to more than {bytes_max} bytes")


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=_GZIP_WINDOW)
    result = decompressor.decompress(data, bytes_max + 1)
    if len(result) > bytes_max:
        raise _too_large(bytes_max)
    if not decompressor.eof:
        raise CorruptBatch("gzip stream is cut short")
    return result


def _unsnappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, bytes_max)
    position = len(_XERIAL_HEADER)
    parts = []
    while position < len(data):
        if len(data) - position < _U32.size:
            raise CorruptBatch("snappy block length is cut short")
        (size,) = _U32.unpack_from(data, position)
        position += _U32.size
        if size > len(data) - position:
            raise CorruptBatch("snappy block is cut short")
        part = _unsnappy_block(data[position : position + size], bytes_max)
        bytes_max -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _unsnappy_block(block: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_into(codec: object, data: bytes, bytes_max: int) -> bytes:
    with mmap.mmap(-1, bytes_max) as room:
        size: int = codec.decompress_into(data, room)  # type: ignore[attr-defined]
        return room[:size]
