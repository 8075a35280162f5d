"""Whether a broker may join a cluster, and what is to be done next for it; nothing here has an effect.

1. A broker id belongs to one data directory, a data directory to one broker of one cluster. Whatever contradicts that
   is refused, with one line that says what to do, before anything was written anywhere.
2. A registration is made under guards of all it relies on: of two that want the same id, one is refused.
3. A data directory is as old as the metadata say, or one raise further (`age.py`). Any other is refused.
4. What a dead predecessor left under its lease is ended by ending the lease, if it was certainly this directory's
   process: same directory, same address. Otherwise it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from core_log.metadata.store import Guard, MetadataEntry, Put
from routing.cluster.metadata.age import Age
from routing.cluster.metadata.identity import Identity
from routing.cluster.metadata.records import (
    FORMAT,
    META,
    READY,
    BrokerRecord,
    ClusterMeta,
    DirectoryRecord,
    broker_key,
    decode,
    directory_key,
    encode,
)


class ClusterRefused(Exception):
    """This broker cannot be a member as it is; the text is one line. Nothing was changed."""


class Wanted(NamedTuple):
    """What a broker wants to be."""

    cluster: str
    broker_id: int
    record: BrokerRecord
    meta: ClusterMeta
    """Of a cluster that is not there yet."""


class View(NamedTuple):
    """What the metadata say that matters here."""

    meta: MetadataEntry | None
    directory: MetadataEntry | None
    broker: MetadataEntry | None


class Write(NamedTuple):
    """Make this change. With `lease` it is the registration itself."""

    guards: list[Guard]
    puts: list[Put]
    lease: bool


class Revoke(NamedTuple):
    """End the lease of the process before, and look again."""

    lease_id: int


class Wait(NamedTuple):
    """Look again when the id is free; if that takes longer than leases last, the reason is the refusal."""

    reason: str
    own: bool = False
    """It is the registration of this directory at this address: nobody else's while this broker is `running`."""


Step = Write | Revoke | Wait


def check_identity(wanted: Wanted, identity: Identity | None, *, has_data: bool) -> None:
    """What can be said of the data directory alone. Raises ClusterRefused."""
    if identity is None:
        if has_data:
            raise ClusterRefused(
                "the data directory holds the data of a single broker: start with an empty one, or with --import "
                "(cluster.import_data) to make a new cluster of it"
            )
        return
    if not identity.cluster_id and not identity.importing:
        return
    if identity.cluster != wanted.cluster:
        raise ClusterRefused(f"the data directory belongs to cluster '{identity.cluster}', not to '{wanted.cluster}'")
    if identity.broker_id != wanted.broker_id:
        raise ClusterRefused(f"the data directory belongs to broker {identity.broker_id}, not to {wanted.broker_id}")
    if identity.importing:
        raise ClusterRefused(
            f"the data directory has not become a member of cluster '{wanted.cluster}' completely: start it with "
            "--import once more"
        )


def next_step(
    wanted: Wanted, identity: Identity, age: Age, view: View, *, any_age: bool = False, running: bool = False
) -> Step:
    """What comes next. `age` is the directory's, with `any_age` whatever it is; for `running` see `check_age`. Raises
    ClusterRefused.
    """
    with _understanding(wanted):
        meta = _checked_meta(wanted, identity, view)
        there = decode(view.broker.value, BrokerRecord) if view.broker is not None else None
    record = directory_record(wanted, identity, view.directory)
    if record is not None and not any_age:
        check_age(wanted, age, record.age, running=running)
    if there is not None:
        return _predecessor(wanted, identity, there)
    mine = directory_key(wanted.broker_id)
    if meta is None or view.directory is None:
        puts: list[Put] = [] if meta is not None else [(META, encode(wanted.meta))]
        puts.append((mine, encode(DirectoryRecord(identity.directory_id, age))))
        return Write([_as_it_is(META, view.meta), Guard(mine, 0)], puts, lease=False)
    key = broker_key(wanted.broker_id)
    guards = [_as_it_is(META, view.meta), _as_it_is(mine, view.directory), Guard(key, 0)]
    return Write(guards, [(key, encode(wanted.record))], lease=True)


def _checked_meta(wanted: Wanted, identity: Identity, view: View) -> ClusterMeta | None:
    name = wanted.cluster
    if view.meta is None:
        if identity.cluster_id:
            raise ClusterRefused(
                f"etcd knows no cluster '{name}', of which this data directory is a member: "
                "either it is another etcd, or it has lost its data"
            )
        return None
    meta = decode(view.meta.value, ClusterMeta)
    if meta.format > FORMAT:
        raise ClusterRefused(f"cluster '{name}' has format {meta.format}, this version knows {FORMAT}: update Millrace")
    if identity.cluster_id not in ("", meta.cluster_id):
        raise ClusterRefused(
            f"etcd has another cluster '{name}' (id {meta.cluster_id}) than that of this data directory "
            f"(id {identity.cluster_id})"
        )
    if meta.state != READY:
        raise ClusterRefused(
            f"cluster '{name}' is not ready yet: it is being made of another data directory ({meta.state})"
        )
    return meta


def directory_record(wanted: Wanted, identity: Identity, entry: MetadataEntry | None) -> DirectoryRecord | None:
    """What the metadata say of this directory, None where it is new. Raises ClusterRefused where it is no member's."""
    if entry is None:
        if identity.cluster_id:
            raise ClusterRefused(
                f"broker {wanted.broker_id} was removed from cluster '{wanted.cluster}': "
                "start it with an empty data directory"
            )
        return None
    with _understanding(wanted):
        record = decode(entry.value, DirectoryRecord)
    if record.directory_id != identity.directory_id:
        raise ClusterRefused(
            f"broker id {wanted.broker_id} of cluster '{wanted.cluster}' belongs to another data directory: "
            "choose another id, or remove that broker first"
        )
    return record


def check_age(wanted: Wanted, age: Age, known: Age, *, running: bool = False) -> None:
    """Whether a directory of this age may be the one that the metadata know. What was put back while this broker is
    `running` is not its directory. Raises ClusterRefused.
    """
    of = f"of broker {wanted.broker_id} of cluster '{wanted.cluster}'"
    way = "start with --accept-old-data (cluster.accept_old_data), by which all replicas in it count as lost until then"
    if age.is_before(known):
        raise ClusterRefused(
            f"the data directory is an older copy of that {of} (age {age}, etcd knows {known}) and may lack what was "
            f"confirmed since: start with the latest one, or, to have it catch up with the other brokers, {way}"
        )
    if age.is_far_beyond(known) and not running:
        raise ClusterRefused(
            f"etcd has an older state than the data directory {of} (age {age}, etcd knows {known}) and may be wrong "
            f"about who is in sync: restore etcd's latest state, or, to have the directory catch up with the other "
            f"brokers, {way}"
        )


@contextmanager
def _understanding(wanted: Wanted) -> Iterator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        raise ClusterRefused(f"what etcd says of cluster '{wanted.cluster}' is not understood: {error}") from None


def _predecessor(wanted: Wanted, identity: Identity, there: BrokerRecord) -> Step:
    address, mine = there.addresses.get("peer", ""), wanted.record.addresses.get("peer", "")
    own = there.directory_id == identity.directory_id and address == mine
    if own and identity.lease_id:
        return Revoke(identity.lease_id)
    return Wait(f"broker id {wanted.broker_id} of cluster '{wanted.cluster}' is taken by the broker at {address}", own)


def _as_it_is(key: bytes, entry: MetadataEntry | None) -> Guard:
    return Guard(key, entry.mod_revision if entry is not None else 0)
