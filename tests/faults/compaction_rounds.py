"""Kill -9 while a log is compacted: `python -m tests.faults.compaction_rounds [--rounds N] [--seed S]`.

A process appends records of a few keys, with values that count up, and compacts all the time; it is killed at random.
Then what is there must be a log that a start trusts, with the last confirmed value of each key or a later one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from core_log.compaction.state import CompactionState, load
from core_log.files import OsFiles
from core_log.partition_log import PartitionLog
from tests.core_log.compaction.helpers import Clock, keyed, open_compacted, pass_over, records, write_all
from tests.core_log.helpers import DIRECTORY

KEYS = 50
_SETTINGS = {"segment_bytes": 20_000, "delete_retention_ms": 0, "recovery_bytes": 30_000}


def values(log: PartitionLog) -> dict[bytes, int]:
    """The last number of each key; a tombstone counts as none."""
    found: dict[bytes, int] = {}
    for record in records(log):
        assert record.key is not None
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = int(record.value)
    return found


def run(directory: str, seed: int) -> None:
    """The process that is killed: says of each batch that is confirmed where it ends, and for each record its key, its
    number, or 0 for a tombstone, and its number.
    """
    dice = random.Random(seed)
    files = OsFiles(directory)
    log = open_compacted(files, Clock(), **_SETTINGS)
    state: CompactionState = load(files, DIRECTORY)
    number = max(values(log).values(), default=0) + log.log_end_offset
    while True:
        for _ in range(dice.randrange(1, 30)):
            rows: list[tuple[bytes | None, bytes | None]] = []
            said = []
            for _ in range(dice.randrange(1, 20)):
                number += 1
                key = b"k%d" % dice.randrange(KEYS)
                gone = dice.random() < 0.2
                rows.append((key, None if gone else b"%030d" % number))
                said.append(f"{key.decode()} {0 if gone else number} {number}")
            log.append(keyed(rows))
            write_all(log)
            print(log.log_end_offset, " ".join(said), flush=True)
        pass_over(log, state)


def rounds(count: int, seed: int) -> None:
    """Raises AssertionError."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        confirmed: dict[bytes, tuple[int, int]] = {}
        passes = 0
        for number in range(count):
            command = [sys.executable, "-m", "tests.faults.compaction_rounds", "--run", directory]
            with subprocess.Popen([*command, "--seed", str(dice.randrange(1 << 30))], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                first = child.stdout.readline()
                time.sleep(dice.random() * 0.4)
                child.kill()
                words = (first + child.stdout.read()).decode().splitlines(keepends=True)
            for line in words:
                if line.endswith("\n"):
                    end, *parts = line.split()
                    for name, what, at in zip(parts[0::3], parts[1::3], parts[2::3]):
                        confirmed[name.encode()] = int(what), int(at)
            log = open_compacted(OsFiles(directory), Clock(), **_SETTINGS)
            assert not log.damaged, f"round {number}: damaged"
            assert log.verify() == [], f"round {number}: {log.verify()}"
            there = values(log)
            more = log.log_end_offset > int(end)  # a batch that nobody was told of
            for key, (value, order) in confirmed.items():
                found = there.get(key, 0)
                later = more and (found > order or not found)
                assert found == value or later, f"round {number}: {key!r} is {found}, not {value}"
                if later:
                    confirmed[key] = found, max(order, found)
            for segment in log.segments:
                segment.close_file()
            passes += sum("-" in path.name for path in (Path(directory) / DIRECTORY).glob("*.log"))
        print(f"{count} rounds, {len(confirmed)} keys, {passes} compacted segments seen")
        assert passes or count < 5


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", default="")
    asked = parser.parse_args()
    if asked.run:
        run(asked.run, asked.seed)
    else:
        rounds(asked.rounds, asked.seed)


if __name__ == "__main__":
    main()
