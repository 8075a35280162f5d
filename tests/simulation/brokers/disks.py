"""A machine's disk as its processes see it: one file or directory of it may be in trouble while all others are well."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_log.memory_files import FaultyFiles

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process

_LOGS = ("topics/t-", "queues/0", "queues/1", "offsets/0", "transactions/shared-", "retained/0", "catalog/0")
_OTHERS = ("high-watermarks", "lost-replicas", "cluster.json", "scratch", "topics", "queues", "trash")
_FILES = (".log", ".log", "index", "recovery-point", "leader-epochs", "log-start", "checkpoint", ".new")
_READING = (("open",), ("open",), ("read",), ("open", "read"), ("list",), ("size",))
_WRITING = (("write",), ("sync",), ("truncate",), ("rename",), ("sync_directory",), ("make_directory",), ("remove",))
_OF_DIRECTORIES = frozenset(("list", "sync_directory", "make_directory"))
_FULL = frozenset(("write", "rename", "make_directory", "truncate"))


@dataclass(frozen=True, eq=False)
class Trouble:
    """What is done to a place fails."""

    place: str
    """What the path begins with."""
    file: str
    """What it ends with."""
    operations: tuple[str, ...]
    share: float
    """Of so many of the operations."""
    code: int
    starting: bool
    """Only until a process is ready."""

    @classmethod
    def drawn(cls, dice: random.Random, *, starting: bool) -> Trouble:
        """One that the dice choose."""
        operations = dice.choice(_READING * 2 + _WRITING if starting else _READING + _WRITING * 2)
        codes = [errno.EIO]
        if "open" in operations:
            codes.append(errno.EMFILE)
        if _FULL.intersection(operations):
            codes.append(errno.ENOSPC)
        place, file = dice.choice(_LOGS if dice.random() < 0.85 else _OTHERS), ""
        if place in _LOGS and dice.random() < 0.4 and not _OF_DIRECTORIES.intersection(operations):
            file = dice.choice(_FILES)
        return cls(place, file, operations, dice.choice([1.0, 1.0, 0.3]), dice.choice(codes), starting)

    def __str__(self) -> str:
        when = " of a start" if self.starting else ""
        return f"{self.share:.0%} of {'+'.join(self.operations)}{when} at {self.place}*{self.file}: {self.code}"


@dataclass(frozen=True, eq=False)
class Plan:
    """What befalls the next start of a machine."""

    number: int
    """At so manieth a thing that it asks of its disk."""
    what: str
    """That is refused `once`, or for a while (`again`), or the process is killed (`kill`), or has no `power`."""
    lasts_s: float

    @classmethod
    def drawn(cls, dice: random.Random, asked: int) -> Plan:
        """One that the dice choose, if a start asks for so much."""
        what = dice.choice(["once", "once", "again", "again", "kill", "power"])
        return cls(dice.randrange(max(asked, 1)), what, dice.choice([0.3, 1, 5]))


class SimFiles(FaultyFiles):
    """`FaultyFiles` with `troubles`, which a machine may have while processes come and go, and what is planned."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.machine.disk)
        self.troubles: Sequence[Trouble] = process.machine.troubles
        self.asked = 0
        """How often the disk was asked for something by a start."""
        self.looked_at = False
        """By the simulation, to which nothing happens."""
        self._process = process

    def before(self, operation: str, path: str) -> None:
        super().before(operation, path)
        self._meet(operation, path)

    def _meet(self, operation: str, path: str) -> None:
        if self.looked_at:
            return
        if not self._process.ready and not self._process.ended:
            self._meet_plan(operation, path)
        for trouble in self.troubles:
            if (
                operation in trouble.operations
                and path.startswith(trouble.place)
                and path.endswith(trouble.file)
                and not (trouble.starting and self._process.ready)
                and (trouble.share == 1 or self._process.world.agenda.dice.random() < trouble.share)
            ):
                raise OSError(trouble.code, os.strerror(trouble.code), path)

    def _meet_plan(self, operation: str, path: str) -> None:
        machine, world = self._process.machine, self._process.world
        plan = machine.plan
        self.asked += 1
        if plan is None or self.asked <= plan.number or not world.faults:
            return
        machine.plan = None
        code = errno.ENOSPC if operation in _FULL and world.agenda.dice.random() < 0.5 else errno.EIO
        self._process.note(f"{plan.what} at {operation} of {path}, which a start asks for as the {plan.number}.")
        if plan.what == "again":
            assert world.harsh is not None
            world.harsh.give(machine, Trouble(path, "", (operation,), 1.0, code, starting=False), plan.lasts_s)
        elif plan.what != "once":
            world.end(machine, plan.what == "power", plan.lasts_s)
        raise OSError(code, os.strerror(code), path)

    def size(self, path: str) -> int:
        self._meet("size", path)
        return super().size(path)

    def list(self, directory: str) -> Sequence[str]:
        self._meet("list", directory)
        return super().list(directory)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self._meet("make_directory", path)
        super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._meet("remove", path)
        super().remove_directory(path)
