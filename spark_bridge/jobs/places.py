"""Files where Spark's data lie: a directory of this machine, HDFS, S3, whatever the session's Hadoop knows."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from spark_bridge.jobs.session import JobError


class Entry(NamedTuple):
    """A file or a directory."""

    path: str
    name: str
    is_directory: bool
    size_bytes: int


class Places:
    """Operations on paths, by the driver."""

    def __init__(self, spark: Any, root: str) -> None:
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self._jvm = spark._jvm
        self._files = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())
        self.root = str(self._files.makeQualified(self._path(root)).toString())

    def listed(self, directory: str) -> list[Entry]:
        """What is in a directory, by name; nothing when it is not there."""
        path = self._path(directory)
        if not self._files.exists(path):
            return []
        found = [
            Entry(one.getPath().toString(), one.getPath().getName(), one.isDirectory(), one.getLen())
            for one in self._files.listStatus(path)
        ]
        return sorted(found, key=lambda one: one.name)

    def data_files(self, directory: str) -> Iterator[Entry]:
        """The data below a directory, in the order of their paths: what begins with `_` or `.` is none."""
        for one in self.listed(directory):
            if one.name.startswith(("_", ".")):
                continue
            if one.is_directory:
                yield from self.data_files(one.path)
            else:
                yield one

    def delete(self, path: str) -> None:
        """With all that is in it; nothing when it is not there."""
        self._files.delete(self._path(path), True)

    def make_directory(self, path: str) -> None:
        """And those above it."""
        self._files.mkdirs(self._path(path))

    def move(self, path: str, to: str) -> None:
        """Raises `JobError` when the file system refuses."""
        if not self._files.rename(self._path(path), self._path(to)):
            raise JobError(f"{path} could not be moved to {to}")

    def read_json(self, path: str) -> Any:
        """What `write_json` wrote; None when it is not there."""
        if not self._files.exists(self._path(path)):
            return None
        stream = self._files.open(self._path(path))
        try:
            reader = self._jvm.java.io.BufferedReader(self._jvm.java.io.InputStreamReader(stream, "UTF-8"))
            return json.loads(reader.readLine())
        finally:
            stream.close()

    def write_json(self, path: str, value: Any) -> None:
        """Make a file that is there as a whole or not at all. Raises `JobError` when it is there already."""
        fresh = f"{path}.{uuid4()}"
        stream = self._files.create(self._path(fresh))
        try:
            stream.write(bytearray(json.dumps(value).encode() + b"\n"))
        finally:
            stream.close()
        self.move(fresh, path)


@contextmanager
def only_one(what: str, place: str) -> Iterator[None]:
    """Nobody else of this user and machine does this to the place meanwhile. Raises `JobError`."""
    digest = sha256(f"{what} {place}".encode()).hexdigest()[:24]
    path = os.path.join(tempfile.gettempdir(), f"millrace-{os.getuid()}-{digest}.lock")
    with open(path, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise JobError(f"another {what} of {place} is under way (process {lock.read().strip()})") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
