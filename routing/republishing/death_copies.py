"""Copies of messages that died: their headers, keys and facts, column by column.

1. Copies are made where the messages lie, slab by slab. What all messages of a slab share is worked out once, and so is
   the history that messages with the same key and expiration get.
2. A copy goes to the dead letter routing key, or else to the keys the message had: its own and those in CC.
3. It has the priority of the message, lives as long as its new queue says, and is not delayed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from routing.facts import TIMED_FROM
from routing.message import Properties, Slab
from routing.property_editors import PropertyEditor, editable, editor_of
from routing.queues.death_history import (
    DEATHS,
    WRITTEN_AGAIN,
    WRITTEN_FIRST,
    Death,
    barred_queues,
    carbon_copies,
    record,
)

_LOOKED_AT = (DEATHS, "CC")
_HISTORIES_MAX = 4096
_UNTIMED = TIMED_FROM - 1


class Target(NamedTuple):
    """Where the dead letters of a queue go; without a key they keep theirs. With `must_exist` they wait for a place."""

    exchange: str
    routing_key: str | None
    must_exist: bool = False


def barred_by(slab: Slab) -> frozenset[str]:
    """The queues that copies which travel in one slab, and died without being rejected, must not get to."""
    editor = editor_of(slab.properties.protocol)
    deaths = [] if editor is None else editor.headers(slab.properties_of(0).raw, (DEATHS,)).get(DEATHS)
    return barred_queues(deaths, "") if isinstance(deaths, list) else frozenset()


class Like(NamedTuple):
    """What copies have in common that travel in one slab: `barred` are queues they must not get to, `further` more
    routing keys.
    """

    protocol: str
    persistent: bool
    barred: frozenset[str]
    further: tuple[str, ...]


class Copies:
    """A run of copies that are alike, to be published to one exchange."""

    __slots__ = ("bodies", "facts", "keys", "like", "raws")

    def __init__(self, like: Like) -> None:
        self.like = like
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.raws: list[bytes] = []
        self.facts: list[int] = []

    def slab(self, exchange: str) -> Slab:
        """Them as one slab."""
        keys, raws, facts = self.keys, self.raws, self.facts
        count = len(keys)
        same_raws = raws.count(raws[0]) == count
        same_facts = facts.count(facts[0]) == count
        common = Properties(
            self.like.protocol, raws[0] if same_raws else b"", persistent=self.like.persistent, facts=facts[0]
        )
        return Slab(
            exchange,
            keys[0],
            common,
            self.bodies,
            keys=None if keys.count(keys[0]) == count else keys,
            raws=None if same_raws and same_facts else raws,
            facts=None if same_facts else facts,
        )


class CopyMaker:
    """Makes the copies of messages that died in one queue for one reason, within one bite."""

    def __init__(self, queue: str, reason: str, target: Target, time_s: int) -> None:
        self.runs: list[Copies] = []
        self._queue = queue
        self._reason = reason
        self._target = target
        self._time_s = time_s
        self._histories: dict[tuple[str, str, str, str | None], tuple[bytes, Like]] = {}
        self._constants: dict[tuple[str, str, int], bytes] = {}
        moved = () if target.routing_key is None else ("CC",)
        self._removed_first = (*WRITTEN_FIRST, *moved)
        self._removed_again = (*WRITTEN_AGAIN, *moved)

    def add(self, slab: Slab, indices: Sequence[int], asked: Sequence[int] | None = None) -> None:
        """Messages of one slab; `asked` are the facts of each, otherwise those that the slab has for all."""
        protocol, raws = editable(slab.properties, slab.raws, len(slab.bodies))
        editor = editor_of(protocol)
        assert editor is not None
        persistent = slab.properties.persistent
        facts = [slab.properties.facts] * len(indices) if asked is None else asked
        bodies, to_key = slab.bodies, self._target.routing_key
        made: dict[str, tuple[bytes, Like]] = {}
        run = self.runs[-1] if self.runs else None
        for index, fact in zip(indices, facts, strict=True):
            key = slab.key_of(index)
            if raws is not None:
                copy, like = self._copy(editor, protocol, persistent, slab.exchange, key, raws[index])
            else:
                found = made.get(key)
                if found is None:
                    raw = slab.properties.raw
                    found = made[key] = self._copy(editor, protocol, persistent, slab.exchange, key, raw)
                copy, like = found
            if run is None or (run.like is not like and run.like != like):
                run = Copies(like)
                self.runs.append(run)
            run.bodies.append(bodies[index])
            run.keys.append(key if to_key is None else to_key)
            run.raws.append(copy)
            run.facts.append(fact & _UNTIMED)

    def _copy(
        self, editor: PropertyEditor, protocol: str, persistent: bool, exchange: str, key: str, raw: bytes
    ) -> tuple[bytes, Like]:
        """The properties of a copy, and what it is like."""
        known = editor.headers(raw, _LOOKED_AT)
        expiration = editor.expiration(raw)
        if known:
            added, like = self._history(editor, protocol, persistent, exchange, key, expiration, known)
        else:
            place = (protocol if persistent else protocol + "\0", exchange, key, expiration)
            history = self._histories.get(place)
            if history is None:
                if len(self._histories) >= _HISTORIES_MAX:
                    self._histories.clear()
                history = self._history(editor, protocol, persistent, exchange, key, expiration, known)
                self._histories[place] = history
            added, like = history
        removed = self._removed_again if DEATHS in known else self._removed_first
        return editor.edit(raw, added, removed, keep_expiration=False), like

    def _history(
        self,
        editor: PropertyEditor,
        protocol: str,
        persistent: bool,
        exchange: str,
        key: str,
        expiration: str | None,
        known: dict[str, Any],
    ) -> tuple[bytes, Like]:
        further = carbon_copies(known)
        death = Death(self._queue, self._reason, exchange, (key, *further), self._time_s, expiration)
        headers = record(known.get(DEATHS), death)
        barred = barred_queues(headers[DEATHS], self._reason)
        like = Like(protocol, persistent, barred, further if self._target.routing_key is None else ())
        names = (protocol, exchange, len(headers))
        constant = self._constants.get(names)
        if constant is None:
            constant = self._constants[names] = editor.encode(
                {name: value for name, value in headers.items() if name != DEATHS}
            )
        return editor.join(constant, editor.encode({DEATHS: headers[DEATHS]})), like
