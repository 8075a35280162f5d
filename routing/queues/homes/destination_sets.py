"""Which queues of a home partition a message goes to: sets of queues with a number each.

The log defines a set once, before its first use, and names it by id from then on. A `Definition` is what the log says;
a `DestinationSet` is a definition in use by a route, and it lives as long as the route does.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from routing.message import Slab
from routing.queues.fact_columns import Columns, to_columns
from routing.queues.homes.directory import facts_of
from routing.queues.homes.home_records import RecordWriter

if TYPE_CHECKING:
    from routing.queues.queue import Queue

NO_DUPLICATES = -1
"""In place of a time in which no queue takes a message twice: what comes is no duplicate, whatever they know."""


class Definition:
    """What a destination set's id stands for; `offset` is where the log says so, -1 while it does not.

    No message at or behind `used_before` names it.
    """

    __slots__ = ("id", "offset", "queue_ids", "used_before")

    def __init__(self, set_id: int, queue_ids: tuple[int, ...], offset: int, used_before: int) -> None:
        self.id = set_id
        self.queue_ids = queue_ids
        self.offset = offset
        self.used_before = used_before


class DestinationSet:
    """The queues of one home partition that a route leads to; `plain` as long as none of them asks for anything."""

    __slots__ = (
        "__weakref__", "_whose", "definition", "keeps_time", "once_in_ms", "plain", "queues", "records", "simple",
    )  # fmt: skip

    def __init__(self, definition: Definition, queues: tuple[Queue, ...]) -> None:
        self.definition = definition
        self.queues = queues
        self.plain = True
        self.simple = True
        """The same, where `plain` is not said because more has to be done."""
        self.keeps_time = False
        """A queue gives its messages a time to live, so it has to be known when they came."""
        self.once_in_ms = 0
        """In this time no queue takes a message twice, says the route, or `NO_DUPLICATES`; for who leads the home
        elsewhere.
        """
        self.records = RecordWriter(definition.id)
        self._whose: DestinationSet | None = None

    def within(self, once_in_ms: int) -> DestinationSet:
        """The same set, for a route that says so: others lead to it, too."""
        found = self
        if once_in_ms != self.once_in_ms:
            found = copy(self)
            found.once_in_ms, found._whose = once_in_ms, self
        return found

    def columns_of(self, slab: Slab) -> Columns | None:
        """The facts of a slab for these queues that have to be remembered; None when there are none."""
        columns = facts_of(slab)
        if columns is None and self.keeps_time:
            columns = to_columns((slab.properties.facts,))
        return columns


class DestinationSets:
    """The sets of one home partition: `definitions` is what its log defines, by set id."""

    def __init__(self) -> None:
        self.next_id = 1
        self.definitions: dict[int, Definition] = {}
        self.in_use: WeakValueDictionary[tuple[int, ...], DestinationSet] = WeakValueDictionary()
        self._defined: dict[tuple[int, ...], Definition] = {}

    def get(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """The set of exactly these queues, made on first use."""
        key = tuple(sorted(queue.id for queue in queues))
        found = self.in_use.get(key)
        if found is None:
            definition = self._defined.get(key)
            if definition is None:
                definition = Definition(self.next_id, key, -1, 0)
                self.next_id += 1
            ordered = tuple(sorted(queues, key=lambda queue: queue.id))
            found = self.in_use[key] = DestinationSet(definition, ordered)
        found.plain = all(queue.settings.is_plain for queue in queues)
        found.keeps_time = any(queue.settings.message_ttl_ms is not None for queue in queues)
        return found

    def adopt(self, definition: Definition) -> None:
        """Note what the log defines."""
        self.definitions[definition.id] = definition
        self._defined[definition.queue_ids] = definition

    def define_anew(self) -> None:
        """Whoever uses a set from now on defines it first: the log of another replica may begin behind where it is
        defined.
        """
        for definition in self.definitions.values():
            definition.offset = -1

    def forget(self, definition: Definition) -> None:
        """The log need not define it any more; should it be used again, it is defined anew."""
        key = definition.queue_ids
        del self.definitions[definition.id]
        if self._defined.get(key) is definition:
            del self._defined[key]
        definition.offset = -1


SCRATCH_SET = DestinationSet(Definition(0, (), 0, 0), ())
"""What spilled messages of a transient partition name: nobody reads it."""
