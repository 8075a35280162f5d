"""kcat: what can be said on its command line."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.conformance.kafka.checks import BEGAN_MS, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Member:
    """A `kcat -G`, with what it prints in files."""

    def __init__(self, server: str, directory: Path, group: str, topic: str) -> None:
        self._said, self._log = (directory / f"{time.monotonic_ns()}.{kind}" for kind in ("out", "log"))
        command = ["kcat", "-b", server, "-u", "-X", "auto.offset.reset=earliest", "-G", group, topic]
        with self._said.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)

    @property
    def seen(self) -> list[str]:
        """The values that came."""
        return self._said.read_text().split()

    @property
    def has(self) -> int:
        """How many partitions it was given last; 0 since they were taken away."""
        lines = [line for line in self._log.read_text().splitlines() if "rebalanced" in line]
        return lines[-1].partition("assigned:")[2].count("[") if lines else 0

    def stop(self) -> None:
        """Commit and leave."""
        self._process.terminate()
        self._process.wait(30)


def check_group(server: str, kcat: Callable[..., str], group: str, topic: str) -> None:
    """A member, another one beside it, and one that goes on after them, in a topic of 100 records."""
    members: list[Member] = []
    sent = 0

    def read() -> None:
        nonlocal sent
        until(lambda: sum(one.has for one in members) == partitions, lambda: [one.has for one in members])
        kcat("-P", "-t", topic, said="".join(f"{n}\n" for n in range(sent, sent + 40)))
        sent += 40
        until(lambda: sum(len(one.seen) for one in members) >= 99 + sent, lambda: [len(one.seen) for one in members])

    with tempfile.TemporaryDirectory() as directory:
        partitions = kcat("-L", "-t", topic).count(" partition ")
        try:
            for _ in range(2):
                members.append(Member(server, Path(directory), group, topic))
                read()
        finally:
            for member in members:
                member.stop()
        members.append(Member(server, Path(directory), group, topic))
        kcat("-P", "-t", topic, said="more\n")
        until(lambda: members[-1].seen)
        members[-1].stop()
        assert members[-1].seen == ["more"], "from where the group had come"


def run(server: str) -> str:
    """What was done. Raises AssertionError."""
    name = f"kcat-{BEGAN_MS}-{time.monotonic_ns()}"

    def kcat(*arguments: str, said: str | None = None) -> str:
        command = ["kcat", "-q", "-b", server, "-m", "20", *arguments]
        done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stderr[-2000:]}"
        return done.stdout

    shown = "%o %k=%s %h %K %S\n"
    for codec in CODECS:
        topic = f"{name}-{codec}"
        options = ("-z", codec, "-K:", "-Z", "-H", "a=1", "-H", "b")
        kcat("-P", "-t", topic, "-p", "0", *options, said="k:v\n:w\nx:\n" + "l:long\n" * 97)
        found = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-Z", "-f", shown).splitlines()
        assert found[:3] == ["0 k=v a=1,b=NULL 1 1", "1 NULL=w a=1,b=NULL -1 1", "2 x=NULL a=1,b=NULL 1 -1"], found[:3]
        assert len(found) == 100, (codec, len(found))
        assert kcat("-C", "-t", topic, "-p", "0", "-o", "98", "-e", "-f", "%o ") == "98 99 "
        assert kcat("-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-f", "%o ") == "97 98 99 "
    assert f'topic "{topic}" with ' in kcat("-L", "-t", topic)
    assert kcat("-Q", "-t", f"{topic}:0:{BEGAN_MS - 1}").split()[-1] == "0"
    assert kcat("-Q", "-t", f"{topic}:0:{BEGAN_MS + 10**9}").split()[-1] in ("-1", "100")
    assert kcat("-C", "-t", topic, "-p", "0", "-o", f"s@{BEGAN_MS - 1}", "-c", "1", "-f", "%o") == "0"
    kcat("-P", "-t", topic, "-p", "0", "-X", f"transactional.id={name}", said="all\nor none\n")
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "100", "-c", "2", "-f", "%s,") == "all,or none,"

    check_group(server, kcat, name, f"{name}-none")
    return f"records, places, groups, a transaction; codecs {' '.join(CODECS)}"
