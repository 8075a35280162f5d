"""What becomes of blocking clients in a child that a process forks (`os.fork`, `multiprocessing`'s `fork`).

Connections, numbers of batches and the member of a group are the parent's: two who used them would take each other's
replies, and what the second sends under numbers that the first has used is taken for a repetition, and stored nowhere.
So the child begins anew: with connections and numbers of its own, and without what the parent has still to send.
Nothing is asked for that per request; the interpreter tells of a fork. A copy that was pickled, as for another process,
begins anew likewise.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Has what is of one process alone."""

    def forked(self) -> None:
        """This is the child; called before anything else runs in it."""


_all: WeakSet[Forked] = WeakSet()


def tell_when_forked(one: Forked) -> None:
    """Have `one.forked` called in each child, as long as `one` is there."""
    _all.add(one)


def _in_child() -> None:
    for one in list(_all):
        one.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)
