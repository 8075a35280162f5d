"""Publishes that do not fit into a queue which refuses what is too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.errors import LimitExceeded
from routing.message import Slab
from routing.publishing.confirms import watch
from routing.publishing.deduplication import put

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.queues.queue import Queue
    from routing.session import Session
    from routing.topology.route import Route

    Target = tuple[PartitionLog, int]


def deliver_refused(route: Route, slab: Slab, full: Queue) -> list[Target]:
    """Put messages that a queue refuses into the others, as far as these have room, and have them die where full queues
    ask for that. As `Route.deliver`.
    """
    if full.settings.overflow == "reject-publish-dlx":
        full.host.refused(full, slab)
    left = route.avoiding(frozenset((full,)))
    targets: list[Target] = []
    for piece in left.pieces(slab):
        count = len(piece.bodies)
        taken = min(left.room(piece.bodies), count)
        fullest = left.fullest(piece.bodies) if taken < count else None
        if taken:
            put_there = put(left, piece.part(0, taken), full.host.now_ms)
            if left.asks:
                watch(put_there, taken)
            targets += put_there
        if fullest is not None:
            targets += deliver_refused(left, piece.part(taken, count), fullest)
    return targets


def publish_pieces(session: Session, route: Route, slab: Slab) -> list[Target]:
    """Publish to guarded queues without a confirm. As `Route.deliver`."""
    targets: list[Target] = []
    for piece in route.pieces(slab):
        targets += publish_what_fits(session, route, piece, min(route.room(piece.bodies), len(piece.bodies)), False)
    return targets


def publish_what_fits(session: Session, route: Route, slab: Slab, room: int, confirm: bool) -> list[Target]:
    """A queue takes only the first `room` messages: the others are refused, and go where they are taken. As
    `Route.deliver`.
    """
    count = len(slab.bodies)
    fullest = route.fullest(slab.bodies) if room < count else None
    confirms = session.confirms
    targets: list[Target] = []
    if room:
        fitting = slab.part(0, room)
        targets = put(route, fitting, session.broker.clock.now_ms)
        if confirm:
            confirms.require(fitting, targets, asks=route.asks, behind=count - room)
        elif route.asks:
            watch(targets, room)
    if fullest is not None:
        targets = targets + deliver_refused(route, slab.part(room, count), fullest)
    if confirm:
        confirms.refuse(count - room, LimitExceeded("a queue is full"))
    return targets
