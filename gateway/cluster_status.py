"""What `millrace status` and `millrace cluster status` show of brokers and partitions, fetched from one broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import list_all

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient

_NAMED_MAX = 10
SINGLE_COPY = "single copy (acks=all proves no more than one)"

_OF_BROKERS = {
    "draining": "drained, so it leads nothing until it is undrained",
    "refusing": "the disk takes nothing at broker",
    "stalled": "the disk does not answer at broker",
    "low_on_disk": "low on disk at broker",
    "unopened": "logs that the disk does not let be opened at broker",
    "unreadable": "logs whose files are damaged at broker",
}

Partition = Mapping[str, Any]


def cluster_status(client: BlockingClient) -> dict[str, Any]:
    """`broker` (who was asked), `controller`, `has_lease`, `serves`, `etcd_refuses`, `brokers`, `counters`,
    `partitions`: see `routing/administration/status.py`.
    """
    found: dict[str, Any] = client.administer("cluster.brokers")
    columns, rows = list_all(client, "cluster.partitions")
    found["counters"] = client.administer("cluster.counters")
    found["partitions"] = [dict(zip(columns, row, strict=True)) for row in rows]
    return found


def show_troubles(found: Mapping[str, Any]) -> None:
    """Name what is not as it should be."""
    if not found.get("has_lease", True):
        leads = "it goes on serving" if found.get("serves") else "it leads nothing"
        click.echo(
            f"broker {found['broker']} has no lease, as etcd does not renew it: {leads}, "
            "and what is said here is what it knew last"
        )
    if found.get("etcd_refuses"):
        click.echo(f"etcd takes no changes, so nothing is declared and nobody is elected: {found['etcd_refuses']}")
    partitions: list[Partition] = found["partitions"]
    leaderless = [one for one in partitions if one["leader"] is None]
    under_replicated = [one for one in partitions if len(one["isr"]) < len(one["replicas"])]
    gone = [one["id"] for one in found["brokers"] if not one["alive"]]
    if gone:
        click.echo(f"brokers that are gone: {', '.join(map(str, gone))}")
    for field, what in _OF_BROKERS.items():
        those = [_named(one["id"], one[field]) for one in found["brokers"] if one.get(field)]
        if those:
            click.echo(f"{what}: {', '.join(those)}")
    unclean = [one for one in partitions if one.get("unclean_epoch")]
    troubles = (
        ("without a leader", leaderless), ("under-replicated", under_replicated), ("elected uncleanly once", unclean),
    )  # fmt: skip
    for what, which in troubles:
        if which:
            click.echo(f"{what}, {len(which)} of {len(partitions)} partitions: {_names(which)}")
    single = [one for one in partitions if one.get("single_copy")]
    if single and found["controller"] is None and len(found["brokers"]) == 1:
        click.echo(f"{SINGLE_COPY}: of everything, as there is one broker")
    elif single:
        click.echo(f"{SINGLE_COPY}, {len(single)} of {len(partitions)} partitions: {_names(single)}")


def _named(broker: int, logs: bool | Sequence[str]) -> str:
    return str(broker) if isinstance(logs, bool) else f"{broker} ({_some(logs)})"


def _names(partitions: Iterable[Partition]) -> str:
    return _some([f"{one['topic']}-{one['partition']}" for one in partitions])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_MAX]) + (" ..." if len(names) > _NAMED_MAX else "")
