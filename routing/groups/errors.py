"""Why a member of a group is refused; each protocol has its own codes for these."""

from __future__ import annotations


class GroupError(Exception):
    """Base of them. Only protocols that know groups are told of them."""


class UnknownMember(GroupError):
    """The group has no such member: join again."""


class IllegalGeneration(GroupError):
    """The group has another generation by now: join again."""


class RebalanceInProgress(GroupError):
    """The group is being divided anew: join again, as the same member."""


class InconsistentProtocol(GroupError):
    """The member cannot divide partitions as the others do."""


class MemberIdRequired(GroupError):
    """Join again, as this member."""

    def __init__(self, member_id: str) -> None:
        super().__init__("join again with the member id that was given out")
        self.member_id = member_id


class FencedInstance(GroupError):
    """Another process is this static member now."""


class InvalidSessionTimeout(GroupError):
    """Longer or shorter than the broker allows."""


class InvalidGroup(GroupError):
    """No name for a group."""


class GroupFull(GroupError):
    """It has as many members as one may have."""


class GroupNotEmpty(GroupError):
    """It has members."""


class UnknownGroup(GroupError):
    """There is no such group."""


class FencedEpoch(GroupError):
    """A member of a group that the broker divides has another epoch than it says: join again, owning nothing."""


class StaleEpoch(GroupError):
    """The member has another epoch by now: hear of it first."""


class UnreleasedInstance(GroupError):
    """Another process is this static member, and has not left."""


class UnsupportedAssignor(GroupError):
    """The broker knows no such way to divide partitions."""


class InvalidPattern(GroupError):
    """No regular expression, or a larger one than the broker evaluates."""


class InvalidBeat(GroupError):
    """What a member says makes no sense; the text tells why."""


class NeedsEpochs(GroupError):
    """A member of a group that the broker divides has to say its epoch; what was asked cannot carry one."""


class StateTooLarge(GroupError):
    """What is to be kept of a group does not fit in a record."""


class NotCoordinator(GroupError):
    """Another broker looks after this group."""


class CoordinatorUnavailable(GroupError):
    """Nobody looks after this group at the moment."""


class CoordinatorLoading(CoordinatorUnavailable):
    """What is kept of the group is being read."""
