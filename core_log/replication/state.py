"""What the metadata says of a replicated log: one key, changed by compare-and-swap and in no other way.

1. Leader, epoch, ISR and ELR are one value: no change of one is made without having seen the others.
2. Every member of the ISR and ELR stands there with the broker epoch under which it was last known to have all that is
   committed. A broker that comes back under another one and says that it has `lost` the log is no member any more,
   whoever notices first; without the epoch a member that joined again could not be told from one that never left.
3. Whoever leaves while the ISR is below `min_insync` goes to the ELR (KIP-966): nothing can be committed then, so it
   still has all that was. As soon as the ISR is large enough again the ELR is empty.
4. A leader epoch belongs to one process: it rises whenever a leader begins, also if the same broker leads again.
5. `transfer` is a member of the ISR that the leader is asked to hand over to. Whoever leads next, it is done with.
6. Replicas move by way of `target`: as long as it is set the log has its old replicas and the new ones. When the old
   ones go the leader epoch rises: what one of them said before it dropped the log counts nowhere any more.
7. Where an *unclean* election is allowed, one may lead that was in neither ISR nor ELR. It is the whole ISR then, what
   it lacks is lost, and `unclean_epoch` says so to all that have it: they may cut below their high watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from core_log.metadata.store import Guard

Members = tuple[tuple[int, int], ...]
"""(broker, broker epoch) of each."""


class LogState(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "replicas": "r",
        "leader": "l",
        "leader_broker_epoch": "b",
        "leader_epoch": "e",
        "min_insync": "m",
        "resigned": "x",
        "factor": "f",
        "minimum": "w",
        "firm": "wf",
        "transfer": "t",
        "target": "to",
        "origin": "or",
        "origin_factor": "of",
        "unclean": "u",
        "unclean_epoch": "ue",
    },
):
    """See the module."""

    replicas: tuple[int, ...]
    isr: Members
    elr: Members = ()
    leader: int | None = None
    leader_broker_epoch: int = 0
    leader_epoch: int = 0
    min_insync: int = 1
    resigned: bool = False
    """The leader before this one gave it up and served nobody any more when it did."""
    factor: int = 0
    """How many replicas there should be; 0: as there are."""
    minimum: int = 0
    """What `min_insync` should be, once there are so many; 0: as it is."""
    firm: bool = False
    """Somebody asked for that minimum: it counts also where there are fewer replicas than `factor`."""
    transfer: int | None = None
    target: tuple[int, ...] | None = None
    """The replicas that it shall have, the preferred leader first."""
    origin: tuple[int, ...] | None = None
    """Those that it had when it got a `target`: what it goes back to if nobody wants that any more."""
    origin_factor: int = 0
    """The `factor` of then, where it got another one with that."""
    unclean: bool = False
    """A replica that may lack what was committed leads where nobody else can."""
    unclean_epoch: int = 0
    """The latest leader epoch that began in this way; 0: none did."""

    @property
    def isr_brokers(self) -> list[int]:
        """The members' ids."""
        return [broker for broker, _ in self.isr]

    def with_isr(self, isr: Members, elr: Members) -> LogState:
        """Another ISR; `elr` is who else has all that is committed as long as nothing is: see rule 3."""
        members = {broker for broker, _ in isr}
        kept = {} if len(isr) >= self.min_insync else dict(elr)
        elr = tuple(sorted(member for member in kept.items() if member[0] not in members))
        transfer = self.transfer if self.transfer in members else None
        return msgspec.structs.replace(self, isr=isr, elr=elr, transfer=transfer)

    def led_by(self, broker: int, broker_epoch: int, *, resigned: bool = False) -> LogState:
        """Another leader, or the same one in another process."""
        return msgspec.structs.replace(
            self,
            leader=broker,
            leader_broker_epoch=broker_epoch,
            leader_epoch=self.leader_epoch + 1,
            resigned=resigned,
            transfer=None,
        )

    def led_uncleanly_by(self, broker: int, broker_epoch: int) -> LogState:
        """Somebody leads that may lack what was committed: rule 7."""
        state = msgspec.structs.replace(self, isr=((broker, broker_epoch),), elr=()).led_by(broker, broker_epoch)
        return msgspec.structs.replace(state, unclean_epoch=state.leader_epoch)

    def led_by_nobody(self) -> LogState:
        """No leader until somebody who may lead comes back."""
        return msgspec.structs.replace(self, leader=None, leader_broker_epoch=0, transfer=None)


def encode(state: LogState) -> bytes:
    """The value of the log's key."""
    return msgspec.msgpack.encode(state)


def decode(value: bytes) -> LogState:
    """Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(value, type=LogState)


BEYOND_EPOCHS = 1000
"""How much further the leader epoch is that follows one which the metadata have lost: see `replica.py`."""


def is_later(known: LogState, known_revision: int, state: LogState, revision: int) -> bool:
    """Whether what is known was put after a state that the metadata were put back to, or that was put since others were
    lost.
    """
    if revision < known_revision:
        return True
    if known.leader_epoch == state.leader_epoch and None not in (known.leader, state.leader):
        return (known.leader, known.leader_broker_epoch) != (state.leader, state.leader_broker_epoch)
    return known.leader_epoch > state.leader_epoch


class BrokerState(NamedTuple):
    """What a registered broker says of itself, as far as elections go."""

    epoch: int
    """The revision at which its key was made."""
    lost: Collection[str] = ()
    """Logs of which it may lack what it had reported: see `Replica.lost`."""
    refusing: bool = False
    draining: bool = False
    """It shall lead nothing, as far as others can: to go, or for lack of room on its disk."""
    unopened: Collection[str] = ()
    """Logs of which it has a replica that it could not open."""
    unreadable: Collection[str] = ()
    """Logs of which its files are damaged: others shall lead them, as far as they can."""
    unreachable: Collection[int] = ()
    """Brokers to which it has no link."""


Brokers = Mapping[int, BrokerState]
"""The brokers whose lease lives."""


def is_trusted(log: str, member: tuple[int, int], brokers: Brokers) -> bool:
    """Whether a member still has what it had; also of one that is away, for all that is known."""
    broker = brokers.get(member[0])
    return broker is None or broker.epoch == member[1] or log not in broker.lost


def is_here(log: str, member: tuple[int, int], brokers: Brokers) -> bool:
    """Whether a member is there and has its log: who stands there under the epoch that it has now has opened it."""
    broker = brokers.get(member[0])
    return broker is not None and (broker.epoch == member[1] or log not in broker.unopened)


class Change(NamedTuple):
    """A wish: `state` for the log's key, if the guards hold."""

    state: LogState
    guards: tuple[Guard, ...]


LOGS = b"p/"
"""What the keys of logs' states begin with."""


def log_key(prefix: bytes, log: str) -> bytes:
    """The key of a log's state."""
    return prefix + LOGS + log.encode()


def broker_key(prefix: bytes, broker: int) -> bytes:
    """The key of a broker that is registered."""
    return prefix + b"brokers/%d" % broker
