"""Publishes that do not fit into a queue which refuses what is too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.errors import LimitExceeded
from routing.message import Slab
from routing.publishing.deduplication import put

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.session import Session
    from routing.topology.route import Route

    Target = tuple[PartitionLog, int]


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
    confirms = session.confirms
    targets: list[Target] = []
    if room:
        fitting = slab.part(0, room)
        targets = put(route, fitting, session.broker.clock.now_ms)
        if confirm:
            confirms.require(fitting, targets, asks=route.asks, behind=count - room)
    if room < count:
        targets = targets + route.overflowing().deliver(slab.part(room, count))
    if confirm:
        confirms.refuse(count - room, LimitExceeded("a queue is full"))
    return targets
