"""Keeps what changes of groups, a turn's changes at once: whoever has to be told of a change is, when it is safe.

1. Groups say that they have changed (`changed`); with the end of the turn their records go to the log of their offsets,
   one append for all groups of a log.
2. What cannot be written now is written with the next turn in which it can; who waits is told that it is not.
3. A group that somebody else looks after from now on is dropped: nobody is told that what it was is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from core_log.errors import BatchTooLarge, LogUnavailable
from routing.commits import CommitWaiter
from routing.errors import StorageUnavailable
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.errors import CoordinatorUnavailable, GroupError, StateTooLarge
from routing.groups.group import Group
from routing.groups.records import changes, kept
from routing.topics.offset_store import OffsetStore

logger = logging.getLogger(__name__)

Done = Callable[[GroupError | None], None]
_TIDY_MAX_S = 30.0


class _Write:
    """Records that were appended, and who waits for them by group."""

    __slots__ = ("waiting",)

    def __init__(self, waiting: dict[str, list[Done]]) -> None:
        self.waiting = waiting


class Saver:
    """See the module. `store_of` is what keeps a group's records, None while that is not here."""

    def __init__(
        self, store_of: Callable[[str], OffsetStore | None], commits: CommitWaiter, spawn: Callable[..., Any]
    ) -> None:
        self._store_of = store_of
        self._commits = commits
        self._spawn = spawn
        self.unsaved: dict[str, Group | ConsumerGroup] = {}
        self._waiting: dict[str, list[Done]] = {}
        self._under_way: dict[str, _Write] = {}
        """The latest of each group."""

    def changed(self, group: Group | ConsumerGroup) -> None:
        """There is something to be kept."""
        self.unsaved[group.name] = group

    def keep(self, name: str, done: Done) -> None:
        """Call when all that has changed of a group is safe; at once if it is."""
        if name in self.unsaved:
            self._waiting.setdefault(name, []).append(done)
        elif name in self._under_way:
            self._under_way[name].waiting.setdefault(name, []).append(done)
        else:
            done(None)

    def owes(self, name: str) -> bool:
        """Whether somebody waits for what has changed of a group to be safe."""
        write = self._under_way.get(name)
        return bool(self._waiting.get(name) or (write is not None and write.waiting.get(name)))

    def drop(self, name: str, why: GroupError) -> None:
        """Rule 3."""
        self.unsaved.pop(name, None)
        write = self._under_way.pop(name, None)
        told = self._waiting.pop(name, [])
        if write is not None:
            told += write.waiting.pop(name, [])
        for done in told:
            done(why)

    def flush(self) -> None:
        """The end of a turn in which something has changed."""
        by_store: dict[OffsetStore, list[Group | ConsumerGroup]] = {}
        for name, group in self.unsaved.items():
            store = self._store_of(name)
            if store is None or store.log.error is not None:
                self._tell(name, CoordinatorUnavailable(f"what has changed of group '{name}' cannot be kept now"))
            else:
                by_store.setdefault(store, []).append(group)
        for store, groups in by_store.items():
            self._write(store, groups)

    def _write(self, store: OffsetStore, groups: list[Group | ConsumerGroup]) -> None:
        try:
            end = store.put_states([put for group in groups for put in changes(group)])
        except BatchTooLarge as error:
            self._too_large(store, groups, error)
            return
        except LogUnavailable as error:
            for group in groups:
                self._tell(group.name, CoordinatorUnavailable(str(error)))
            return
        write = _Write({})
        for group in groups:
            kept(group)
            del self.unsaved[group.name]
            write.waiting[group.name] = self._waiting.pop(group.name, [])
            before = self._under_way.get(group.name)
            if before is not None:
                write.waiting[group.name] = before.waiting.pop(group.name, []) + write.waiting[group.name]
            self._under_way[group.name] = write
        self._commits.when_committed([(store.log, end)], lambda error: self._written(write, error))
        if store.has_garbage:
            self._spawn(_tidy, store)

    def _too_large(self, store: OffsetStore, groups: list[Group | ConsumerGroup], error: BatchTooLarge) -> None:
        """One of them is: the others are not to suffer."""
        if len(groups) > 1:
            for group in groups:
                self._write(store, [group])
            return
        (group,) = groups
        logger.error("group '%s' cannot be kept: %s", group.name, error)
        kept(group)
        del self.unsaved[group.name]
        self._tell(group.name, StateTooLarge(str(error)))

    def _written(self, write: _Write, error: StorageUnavailable | None) -> None:
        why = None if error is None else CoordinatorUnavailable(str(error))
        waiting, write.waiting = write.waiting, {}
        for name in waiting:
            if self._under_way.get(name) is write:
                del self._under_way[name]
        for told in waiting.values():
            for done in told:
                done(why)

    def _tell(self, name: str, why: GroupError) -> None:
        for done in self._waiting.pop(name, ()):
            done(why)


async def _tidy(store: OffsetStore) -> None:
    try:
        with trio.move_on_after(_TIDY_MAX_S):
            await store.tidy()
    except StorageUnavailable as error:
        logger.warning("the log of group offsets stays as long as it is: %s", error)
