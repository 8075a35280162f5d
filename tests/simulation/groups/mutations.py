"""Rules of groups that are wrong: the schedules have to find each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from routing.groups.assignors import NOWHERE, Places
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import ConsumerMember, Step
from routing.groups.group import Group
from routing.groups.mixed_group import MixedGroup
from routing.groups.saver import Saver

Mutation = Callable[[], AbstractContextManager[Any]]
_NEXT_STEP = ConsumerMember.next_step


def _not_waited_for(self: ConsumerMember, target: Places, epoch: int, owned: Places | None, owners: Any) -> Any:
    return _NEXT_STEP(self, target, epoch, NOWHERE if self.step is Step.REVOKING else owned, owners)


def _two_owners(self: ConsumerMember, target: Places, epoch: int, owned: Places | None, owners: Any) -> Any:
    return _NEXT_STEP(self, target, epoch, owned, {})


def _nothing(*_: object) -> None:
    """No check."""


def _no(*_: object) -> bool:
    return False


def _at_once(_: Saver, name: str, done: Callable[[None], None]) -> None:
    done(None)


def _as(target: type, name: str, wrong: Any) -> Mutation:
    return lambda: mock.patch.object(target, name, wrong)


MUTATIONS: dict[str, tuple[str, int, Mutation]] = {
    "what is revoked is free at once": ("served", 0, _as(ConsumerMember, "next_step", _not_waited_for)),
    "owners do not matter": ("served", 0, _as(ConsumerMember, "next_step", _two_owners)),
    "any epoch may commit": ("served", 0, _as(ConsumerGroup, "check_commit", _nothing)),
    "any generation may commit": ("range", 2, _as(Group, "check_commit", _nothing)),
    "topics that change are not seen": ("served", 144, _as(ConsumerGroup, "_topics_changed", _no)),
    "what a member of the other protocol gives up is free": (
        "moving",
        49,
        _as(MixedGroup, "_note_what_is_given_up", _nothing),
    ),
    "members hear what is not kept": ("served", 0, _as(Saver, "keep", _at_once)),
}
"""What is wrong, which clients find it, and with which seed that is known to show."""
