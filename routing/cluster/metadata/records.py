"""The keys of a cluster's metadata apart from its topology, and their values.

meta               what the cluster is; written once
directories/<id>   which data directory a broker id belongs to, and how old that is; no lease
brokers/<id>       a broker that runs, under its lease; its create revision is the *broker epoch*
drains/<id>        an operator wants this broker to lead nothing; no lease, no value
settings           what operators set for all brokers while they run
throttles/<id>     what operators set for one broker; no lease
controller         the broker that elects leaders, under that one's lease; create revision: *controller epoch*
p/<log>            a replicated log: `core_log/replication/state.py`
t/...              the topology: `routing/topology/catalog.py`
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from routing.cluster.metadata.age import Age

META = b"meta"
CONTROLLER = b"controller"
BROKERS = b"brokers/"
DIRECTORIES = b"directories/"
DRAINS = b"drains/"
SETTINGS = b"settings"
THROTTLES = b"throttles/"
FORMAT = 1

READY = "ready"
TRANSACTION_LOGS = 3
RETAINED_LOGS = 1
_IMPORTING = "importing "


class ClusterMeta(msgspec.Struct, frozen=True):
    """What the cluster is. `homes`, `offsets`, `transactions` and `retained` are numbers of internal
    partitions.
    """

    cluster_id: str
    homes: int
    offsets: int
    state: str = READY
    """`READY`, or what it is being made from."""
    format: int = FORMAT
    transactions: int = TRANSACTION_LOGS
    retained: int = RETAINED_LOGS


def cluster_id_of(meta: bytes) -> str:
    """Of a value of `META`; empty where that is not understood."""
    try:
        return decode(meta, ClusterMeta).cluster_id
    except msgspec.MsgspecError:
        return ""


def importing(directory_id: str) -> str:
    """The state of a cluster that is being made from a data directory."""
    return _IMPORTING + directory_id


class DirectoryRecord(msgspec.Struct, frozen=True):
    """The data directory that a broker id belongs to."""

    directory_id: str
    age: Age = Age()


class BrokerRecord(msgspec.Struct, frozen=True):
    """What a broker that runs says of itself."""

    directory_id: str
    boot: str
    """Another one after each start of the machine: what was not synced may be gone."""
    version: str
    addresses: dict[str, str]
    """Where it is reached, "host:port" by door; "peer" for other brokers."""
    rack: str = ""
    lost: tuple[str, ...] = ()
    """Logs of which it may lack what it had reported."""
    unopened: tuple[str, ...] = ()
    """Logs of which it has a replica that it could not open, which it tries again."""
    unreadable: tuple[str, ...] = ()
    """Logs of which it has found its files damaged."""
    unreachable: tuple[int, ...] = ()
    """Brokers to which it has had no link for a second."""
    refusing: bool = False
    """Its disk takes nothing."""
    stalled: bool = False
    """Its disk does not answer."""
    low_on_disk: bool = False
    """Publishers have to wait for room on its disk, so others shall lead, as far as they can."""
    draining: bool = False
    """It is about to go and shall lead nothing."""


class ControllerRecord(msgspec.Struct, frozen=True):
    """Who it is."""

    broker: int


class ClusterSettings(msgspec.Struct, frozen=True):
    """What operators set for all brokers while they run; None: as each broker is configured."""

    catch_up_bytes_per_s: int | None = None


class BrokerThrottle(msgspec.Struct, frozen=True, omit_defaults=True):
    """What operators set for one broker while it runs, in bytes per second; None: nothing."""

    sent: int | None = None
    """To replicas that are not in sync; counts before that of all brokers."""
    received: int | None = None
    moved: int | None = None
    """Between directories. As `received` it is kept for those who have set it: who sends is held back here."""


_Record = TypeVar(
    "_Record", ClusterMeta, DirectoryRecord, BrokerRecord, ControllerRecord, ClusterSettings, BrokerThrottle
)


def broker_key(broker_id: int) -> bytes:
    """The key of a broker that runs."""
    return BROKERS + b"%d" % broker_id


def drain_key(broker_id: int) -> bytes:
    """The key that is there as long as a broker shall lead nothing."""
    return DRAINS + b"%d" % broker_id


def throttle_key(broker_id: int) -> bytes:
    """The key of what is set for one broker."""
    return THROTTLES + b"%d" % broker_id


def directory_key(broker_id: int) -> bytes:
    """The key of a broker id's data directory."""
    return DIRECTORIES + b"%d" % broker_id


def encode(record: Any) -> bytes:
    """A record as a value: a map, so that later versions may add to it."""
    return msgspec.msgpack.encode(record)


def decode(value: bytes | None, kind: type[_Record]) -> _Record:
    """Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(value or b"", type=kind)
