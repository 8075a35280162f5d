"""Reads of what the operating system has in memory, by Python's own call and by that of the C library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core_log import cached_file

READERS = {
    "Python": cached_file._by_python if hasattr(os, "RWF_NOWAIT") else None,
    "library": cached_file._by_library(),
}


@pytest.mark.skipif(sys.platform != "linux", reason="others cannot tell what is in memory")
def test_one_of_them_is_used() -> None:
    assert READERS["library"] is not None
    assert cached_file.read_cached is not None


@pytest.mark.parametrize("read", [pytest.param(one, id=name) for name, one in READERS.items() if one is not None])
def test_what_was_just_written_is_read_and_an_error_is_said(
    tmp_path: Path, read: Callable[[int, bytearray, int], int]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    with path.open("rb") as file:
        file.read()
        descriptor, buffer = file.fileno(), bytearray(300)
        assert read(descriptor, buffer, 100) == 300
        assert buffer == (bytes(range(256)) * 3)[100:400]
        assert read(descriptor, buffer, 256 * 64 - 7) == 7
        assert read(descriptor, buffer, 1 << 40) == 0
    buffer += b"more"  # nobody holds on to it
    with pytest.raises(OSError, match="Bad file descriptor"):
        read(descriptor, buffer, 0)
