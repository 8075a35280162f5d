"""What the leader of a log knows of one follower: how far it has come, what it was sent, and what it has promised; and
of the disk below itself.
"""

from __future__ import annotations

from core_log.replication.isr import ReplicationConfig
from core_log.replication.messages import Position

_UNANSWERED_MAX = 256
"""Messages whose times are kept for a follower that answers none; promises that answer later ones do not count."""

_LOOK_MAX_S = 0.5
"""Who is not asked for longer stood still himself: the rest of that time counts for nobody."""


class OwnDisk:
    """How long the leader's own disk has not kept what it was to keep."""

    __slots__ = ("_at_s", "_caught_up_s", "_looked_s", "_wanted", "_wanted_s")

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._at_s = self._caught_up_s = self._wanted_s = 0.0
        self._wanted = 0

    def look(self, kept: int, wanted: int, now_s: float) -> None:
        """Now and then: so far it has come, and should have."""
        self._at_s += min(now_s - self._looked_s, _LOOK_MAX_S)
        self._looked_s = now_s
        if kept >= self._wanted:
            self._caught_up_s = self._at_s if kept >= wanted else max(self._caught_up_s, self._wanted_s)
            self._wanted, self._wanted_s = wanted, self._at_s

    def is_late(self, config: ReplicationConfig) -> bool:
        """As `Progress.is_late`."""
        return self._at_s - self._caught_up_s > config.replica_lag_time_max_s


class Progress:
    """See the module."""

    __slots__ = (
        "accepted", "asked", "awaited", "awaited_since_s", "began_again", "caught_up_s", "down_since_s", "epoch",
        "granted_until_s", "last_end", "last_end_s", "last_sent_s", "log_start", "next_offset", "refusing", "reported",
        "sent_at", "sent_s", "tag", "told", "waits",
    )  # fmt: skip

    def __init__(self, epoch: int, now_s: float) -> None:
        self.epoch = epoch
        """Of the broker; 0 before it was heard of."""
        self.reported = self.log_start = -1
        self.accepted = False
        """Its last position goes on from this log."""
        self.asked = False
        """There is an order that nothing was sent for yet."""
        self.next_offset = 0
        self.refusing = False
        self.down_since_s: float | None = now_s
        self.caught_up_s = now_s
        self.last_end = 0
        self.last_end_s = now_s
        self.tag = 0
        self.began_again = 0
        """Only messages from this tag on follow its last order."""
        self.last_sent_s = now_s
        self.sent_s: dict[int, float] = {}
        self.granted_until_s = 0.0
        self.awaited = -1
        """What it has to report, as somebody waits for it."""
        self.awaited_since_s = now_s
        """When it was sent the first of that, or reported last."""
        self.sent_at = 0
        """The size of the log when it was sent batches last."""
        self.told = (-1, -1, -1)
        """Watermark, log start and sync order that it was sent last."""
        self.waits = False
        """There was something for it when `due` looked last, which waits: rule 8."""

    def linked(self) -> None:
        """There is a new link: whatever was said on an older one is over."""
        self.down_since_s = None
        self.accepted = self.asked = False
        self.tag = self.began_again = 0
        self.sent_s.clear()
        self.awaited, self.told = -1, (-1, -1, -1)

    def unlinked(self, now_s: float) -> None:
        """The link is gone."""
        if self.down_since_s is None:
            self.down_since_s = now_s
            self.accepted = self.asked = False

    def heard(self, position: Position, end: int, now_s: float) -> None:
        """It reports what it has of a log that ends there. Who has all that there was when it reported last has caught
        up with that.
        """
        self.log_start = position.log_start
        if position.reported > self.reported:
            self.reported, self.awaited_since_s = position.reported, now_s
        if position.reported >= end:
            self.caught_up_s = now_s
        elif position.reported >= self.last_end:
            self.caught_up_s = max(self.caught_up_s, self.last_end_s)
        self.last_end, self.last_end_s = end, now_s

    def promised(self, tag: int, lasts_s: float) -> None:
        """Its answer to a message is a promise that lasts so long from when that was sent."""
        sent_s = self.sent_s.get(tag)
        if sent_s is not None:
            self.granted_until_s = max(self.granted_until_s, sent_s + lasts_s)
        if self.sent_s:
            self.sent_s = {other: at_s for other, at_s in self.sent_s.items() if other >= tag}

    def sent(self, tag: int, now_s: float) -> None:
        """It is sent a message, which it is to answer."""
        self.tag, self.last_sent_s, self.asked = tag, now_s, False
        if len(self.sent_s) < _UNANSWERED_MAX:
            self.sent_s[tag] = now_s

    def is_late(self, now_s: float, config: ReplicationConfig) -> bool:
        """Whether it has not had all that there was for so long that it is not in sync any more."""
        return now_s - self.caught_up_s > config.replica_lag_time_max_s

    def is_lost(self, now_s: float, config: ReplicationConfig) -> bool:
        """Whether it is not to be waited for: it refuses, has no link, or is late."""
        down_s = 0.0 if self.down_since_s is None else now_s - self.down_since_s
        return self.refusing or down_s > config.link_down_max_s or self.is_late(now_s, config)
