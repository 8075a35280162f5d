"""`gateway serve` on a disk that refuses between SIGUSR1 and SIGUSR2; run as a module by the tests.

FAULTY_BROKER_FAULT says how: `full` (no byte more fits) or `sync` (fdatasync fails, as after a lost device).
"""

from __future__ import annotations

import errno
import os
import signal

from core_log.files import FaultyFiles, OsFiles
from gateway import server
from gateway.cli import main


def faulty_files(root: str) -> FaultyFiles:
    """The files of the operating system, which signals break and mend."""
    files, fault = FaultyFiles(OsFiles(root)), os.environ["FAULTY_BROKER_FAULT"]

    def break_files(*_: object) -> None:
        if fault == "full":
            files.room_bytes = 0
        else:
            files.failing["sync"] = errno.EIO

    def mend_files(*_: object) -> None:
        files.room_bytes = None
        files.failing.clear()

    signal.signal(signal.SIGUSR1, break_files)
    signal.signal(signal.SIGUSR2, mend_files)
    return files


if __name__ == "__main__":
    vars(server)["OsFiles"] = faulty_files
    main()
