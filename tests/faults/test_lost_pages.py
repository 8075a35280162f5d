"""A device that refuses a sync: the kernel shows what it has lost, and a process that is started then saves it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from core_log.files import OsFiles
from tests.core_log.helpers import make_batch, open_log, read_all

RECORD_BYTES = 100_000
SPARE_BYTES = 3 << 20


class Device:
    """An ext4 file system on a loop device, whose file is in a memory file system that can be too small for it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._memory, self.root = directory / "memory", directory / "disk"
        self._image = self._memory / "image"
        for path in (self._memory, self.root):
            path.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=64m", "millrace", str(self._memory))
        stack.callback(run, "umount", "--lazy", str(self._memory))
        self._image.touch()
        os.truncate(self._image, 48 << 20)
        self._device = run("losetup", "--find", "--show", str(self._image)).strip()
        stack.callback(run, "losetup", "--detach", self._device)
        options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-J", "size=4", "-E", options, self._device)
        self._mount()
        stack.callback(run, "umount", "--lazy", str(self.root))

    def _mount(self) -> None:
        run("mount", "-o", "nodelalloc", self._device, str(self.root))

    def refuse(self) -> None:
        """The device takes little more."""
        used = self._image.stat().st_blocks * 512
        run("mount", "-o", f"remount,size={used + SPARE_BYTES}", str(self._memory))

    def recover(self) -> None:
        """It takes everything."""
        run("mount", "-o", "remount,size=64m", str(self._memory))

    def forget(self) -> None:
        """What only the page cache has is gone."""
        run("umount", str(self.root))
        self._mount()


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if done.returncode:
        pytest.skip(f"no such device can be had here: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """One that takes everything, for now."""
    with ExitStack() as stack:
        yield Device(tmp_path, stack)


def write_until_refused(root: str, told: Connection) -> None:
    """Append and sync; how many records there are when a sync fails, and how many were synced."""
    log = open_log(OsFiles(root))
    while log.error is None:
        log.append(make_batch([b"%d " % log.log_end_offset * (RECORD_BYTES // 8)]))
        log.flush_blocking()
    told.send((log.log_end_offset, log.flushed_offset))
    told.recv()


def test_what_a_device_lost_is_there_again_after_a_start(device: Device) -> None:
    log = open_log(OsFiles(device.root))
    log.append(make_batch([b"first"]))
    log.close()
    device.refuse()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=write_until_refused, args=(str(device.root), there), daemon=True)
    writer.start()
    end, flushed = here.recv()
    writer.kill()
    writer.join()
    assert 1 < flushed < end
    device.recover()
    log = open_log(OsFiles(device.root))
    assert log.flushed_offset == log.log_end_offset == end, "what the sync refused is in the page cache"
    found = read_all(log)
    log.close(keep=False)
    device.forget()
    log = open_log(OsFiles(device.root))
    assert read_all(log) == found
    log.close(keep=False)
