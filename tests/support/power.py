"""A file system whose power can be cut: what was written and not synced is gone, and a journal is left to replay.

ext4 on a loop device. The shutdown that file systems have for this (`EXT4_IOC_SHUTDOWN`, without a flush of its log)
ends all that goes to the device at one moment; what the device was given by then it has.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import DOORS, BrokerProcess

_EXT4_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = 2


class NoSuchDisk(Exception):
    """This machine, or this user, cannot mount one."""


class PoweredDisk:
    """One that is mounted at `root`; see `powered_disk`."""

    def __init__(self, root: Path, image: Path) -> None:
        self.root = root
        self.mount = ["mount", "-o", "loop", str(image), str(root)]
        """The command."""

    def stop(self) -> None:
        """From now on nothing reaches the device, and everything that is asked of the file system fails."""
        directory = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, _EXT4_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(directory)

    def cut(self, end: Callable[[], None]) -> None:
        """Cut the power, of a broker too that `end` kills; then the disk is there again."""
        self.stop()
        end()
        for command in (["umount", str(self.root)], self.mount):
            subprocess.run(command, check=True)


class PoweredBroker(BrokerProcess):
    """A broker on such a disk: its power is cut where others are killed."""

    def __init__(self, disk: PoweredDisk, arguments: Sequence[str] = ()) -> None:
        super().__init__(disk.root, DOORS, arguments)
        self._disk = disk
        self._lock = threading.Lock()

    def kill9(self) -> None:
        """Cut the power, and have the disk back."""
        with self._lock:  # a start that fails ends its broker as well
            if self.running:
                self._disk.cut(super().kill9)
            else:
                super().kill9()


@contextmanager
def powered_disk(root: Path, image: Path, *, size_bytes: int = 1 << 30) -> Iterator[PoweredDisk]:
    """A new one, mounted at a directory that is made. Raises NoSuchDisk."""
    root.mkdir()
    image.touch()
    os.truncate(image, size_bytes)
    _run("mkfs.ext4", "-q", str(image))
    disk = PoweredDisk(root, image)
    _run(*disk.mount)
    try:
        yield disk
    finally:
        _run("umount", "--lazy", str(root))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoSuchDisk(f"{command[0]} is not installed") from error
    if done.returncode:
        raise NoSuchDisk(f"{' '.join(command)}: {done.stderr.strip()}")
