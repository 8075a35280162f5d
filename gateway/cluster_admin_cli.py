"""Brokers that come and go: `millrace cluster drain | undrain | add | move | rebalance | throttle | moving | remove`.

What is asked for is written where all brokers see it; with `--wait` a command returns when it is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import NUMBER, OFFSET_MAX, Name, list_all, show, with_client, with_json

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient

_POLL_S = 0.5
_SAID_S = 5.0
_NAMED_MAX = 5

_wait = click.option("--wait", is_flag=True, help="Return when it is done.")
_broker = click.argument("broker", type=NUMBER)


@click.command()
@_broker
@_wait
@with_client
def drain(client: BlockingClient, broker: int, wait: bool) -> None:
    """Have BROKER lead nothing, as before it is stopped or removed; it keeps its replicas.

    What no broker can lead that does not drain it leads on; --wait ends with an error when nothing else is left.
    """
    client.administer("cluster.drain", broker_id=broker)
    if wait:
        _until(lambda: led_by(client, broker))


@click.command()
@_broker
@with_client
def undrain(client: BlockingClient, broker: int) -> None:
    """BROKER may lead again; what prefers it goes back to it within seconds."""
    client.administer("cluster.undrain", broker_id=broker)


@click.command()
@_broker
@with_client
def remove(client: BlockingClient, broker: int) -> None:
    """Forget BROKER, which is stopped and has no replicas any more: drain, rebalance and stop it first."""
    client.administer("cluster.remove", broker_id=broker)


@click.command()
@click.argument("topic", type=Name())
@click.argument("partition", type=NUMBER)
@click.argument("brokers")
@_wait
@with_client
def move(client: BlockingClient, topic: str, partition: int, brokers: str, wait: bool) -> None:
    """Have the replicas of PARTITION of TOPIC on BROKERS, such as 2,3,1: the first is the preferred leader.

    Homes of queues are partitions of __queues, group offsets of __offsets, transactions of __transactions,
    retained messages of __retained.
    """
    try:
        replicas = [NUMBER(broker) for broker in brokers.split(",")]
    except click.BadParameter:
        raise click.BadParameter(f"'{brokers}' are no ids of brokers", param_hint="BROKERS") from None
    done = client.administer("cluster.move", topic=topic, partition=partition, replicas=replicas)
    if len(replicas) == done["min_insync_replicas"] > 1:
        message = f"min_insync_replicas is {len(replicas)}: while one of them is away nothing can be written there"
        click.echo(f"millrace: {message}", err=True)
    if wait:
        _until(lambda: still_moving(client, (topic, partition), replicas))


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print what would be changed.")
@_wait
@with_json
@with_client
def rebalance(client: BlockingClient, dry_run: bool, wait: bool, as_json: bool) -> None:
    """Have equally many replicas and leaders on all brokers that run and do not drain.

    What would have fewer replicas than its min_insync_replicas stays where it is, and is an error when the rest is
    done.
    """
    from protocols.native.errors import PreconditionFailed

    found = client.administer("cluster.rebalance", dry_run=dry_run)
    show(found["columns"], [[_ids(value) for value in row] for row in found["rows"]], as_json)
    if wait and not dry_run:
        _until(lambda: still_moving(client))
    if kept := found.get("kept"):
        raise PreconditionFailed(
            f"{len(kept)} partitions stay where they are, as fewer replicas than their min_insync_replicas would be "
            f"left ({_some(kept)}): start another broker, or `undrain` one"
        )


@click.command()
@with_json
@with_client
def moving(client: BlockingClient, as_json: bool) -> None:
    """Print which partitions have replicas that are being copied, and how many bytes they lack.

    That number is known to the leader of each: ask it.
    """
    columns, rows = list_all(client, "cluster.moving")
    show(columns, rows if as_json else [[_ids(value) for value in row] for row in rows], as_json)


@click.command(name="unclean-elections")
@click.argument("topic", type=Name())
@click.argument("allowed", type=click.Choice(["on", "off"]))
@with_client
def unclean_elections(client: BlockingClient, topic: str, allowed: str) -> None:
    """Let replicas of TOPIC lead that may lack confirmed records, where no other is left: what they lack is lost.

    Where nobody leads a partition now, somebody does within moments. TOPIC is __queues for the homes of queues,
    __offsets for group offsets, __transactions for those that are under way, __retained for retained messages and
    wills.
    """
    client.administer("cluster.unclean_elections", topic=topic, on=allowed == "on")


@click.command()
@click.argument("bytes_per_s", type=click.IntRange(1024, OFFSET_MAX), required=False)
@with_client
def throttle(client: BlockingClient, bytes_per_s: int | None) -> None:
    """Send at most BYTES_PER_S from each broker to replicas that are not in sync; without a number, the default."""
    client.administer("cluster.throttle", catch_up_bytes_per_s=bytes_per_s)


@click.command()
def add() -> None:
    """Say how a broker is added."""
    click.echo(
        "Start it with an empty data directory and an id of its own:\n"
        "  millrace serve --data-dir DIRECTORY --cluster NAME --broker-id N --etcd HOST:PORT --peer HOST:PORT\n"
        "It gets the replicas that partitions lack by itself. Give it its share of the others, and watch:\n"
        "  millrace cluster rebalance\n"
        "  millrace cluster moving"
    )


COMMANDS = (add, drain, undrain, remove, move, rebalance, moving, throttle, unclean_elections)


def _ids(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def led_by(client: BlockingClient, broker: int) -> str:
    """What it leads, and what nobody leads that waits for it, for as long as others may lead some of that. Raises
    PreconditionFailed when none may.
    """
    from protocols.native.errors import PreconditionFailed

    columns, rows = list_all(client, "cluster.partitions")
    leader, isr, replicas = (columns.index(name) for name in ("leader", "isr", "replicas"))
    led = [row for row in rows if row[leader] == broker]
    orphans = [row for row in rows if row[leader] is None and broker in row[isr]]
    brokers = client.administer("cluster.brokers")["brokers"] if led or orphans else []
    if orphans and not any(one["id"] == broker and one["alive"] for one in brokers):
        raise PreconditionFailed(
            f"broker {broker} does not run, and {len(orphans)} partitions wait for it, as nobody else who is there has "
            f"all of them ({_some(orphans)})"
        )
    if led and not orphans and all(row[replicas] == [broker] for row in led):
        raise PreconditionFailed(
            f"broker {broker} still leads {len(led)} partitions that have no other replica ({_some(led)}): `move` "
            "them, or `rebalance`"
        )
    draining = {one["id"] for one in brokers if one["draining"] or one["id"] == broker}
    if led and any(one["id"] == broker and one["alive"] and not one["draining"] for one in brokers):
        raise PreconditionFailed(f"broker {broker} does not drain any more: `undrain` was asked for since")
    if led and not orphans and all(draining.issuperset(row[replicas]) for row in led):
        raise PreconditionFailed(
            f"broker {broker} still leads {len(led)} partitions of which all other replicas are at brokers that drain "
            f"as well ({_some(led)}): `undrain` one"
        )
    still = [f"leads {len(led)} partitions ({_some(led)})"] if led else []
    if orphans:
        still.append(f"is to lead {len(orphans)} that have no leader and are not in sync elsewhere ({_some(orphans)})")
    return f"broker {broker} still {', and '.join(still)}" if still else ""


def still_moving(
    client: BlockingClient, only: tuple[str, int] | None = None, replicas: Sequence[int] | None = None
) -> str:
    """How much, of one partition, which is to have these `replicas`, or of all, and what it waits for. Raises
    PreconditionFailed when it would wait in vain.
    """
    columns, rows = list_all(client, "cluster.moving")
    moved = [row for row in rows if row[columns.index("target")] is not None]
    moved = [row for row in moved if only in (None, (row[0], row[1]))]
    _require_own(client, only, replicas, moved[0][columns.index("target")] if moved else None)
    _require_enough(columns, moved)
    left = [row[columns.index("bytes_left")] for row in moved]
    known = sum(size for size in left if size is not None)
    more = " and what other leaders know" if None in left else ""
    leaderless = [row for row in moved if row[columns.index("leader")] is None]
    stuck = f"; without a leader, and not copied until there is one: {_some(leaderless)}" if leaderless else ""
    targets = {broker for row in moved for broker in set(row[columns.index("target")]) - set(row[columns.index("isr")])}
    brokers = client.administer("cluster.brokers")["brokers"] if targets else []
    if down := sorted(targets.difference(one["id"] for one in brokers if one["alive"])):
        stuck += f"; not copied until they run: what is to be on the brokers {', '.join(map(str, down))}"
    return f"{len(moved)} partitions are being moved, {known:,} bytes left{more}{stuck}" if moved else ""


def _require_own(
    client: BlockingClient, only: tuple[str, int] | None, replicas: Sequence[int] | None, target: list[int] | None
) -> None:
    """Somebody else may have asked for other replicas of this partition since."""
    from protocols.native.errors import PreconditionFailed

    if only is None or replicas is None:
        return
    if target is None:
        columns, rows = list_all(client, "cluster.partitions")
        target = next((row[columns.index("replicas")] for row in rows if (row[0], row[1]) == only), [])
    if target != list(replicas):
        brokers = f"brokers {_ids(target)}" if target else "none"
        raise PreconditionFailed(
            f"the replicas of {only[0]}-{only[1]} are to be on {brokers}: that was asked for since"
        )


def _require_enough(columns: Sequence[str], moved: list[list[Any]]) -> None:
    """What shall have fewer replicas than have to be in sync keeps those that it has."""
    from protocols.native.errors import PreconditionFailed

    if "min_insync_replicas" not in columns:
        return  # a broker of a version before does not say it
    target, minimum = columns.index("target"), columns.index("min_insync_replicas")
    short = [row for row in moved if len(row[target]) < row[minimum]]
    if short and len(short) == len(moved):
        raise PreconditionFailed(
            f"{len(short)} partitions shall have fewer replicas than their min_insync_replicas, and keep those that "
            f"they have until then ({_some(short)}): lower it, or `move` them to more brokers"
        )


def _some(rows: list[list[Any]]) -> str:
    """Partitions, as `status` names them."""
    return ", ".join(f"{row[0]}-{row[1]}" for row in rows[:_NAMED_MAX]) + (" ..." if len(rows) > _NAMED_MAX else "")


def _until(done: Callable[[], str]) -> None:
    """Wait until there is nothing more to say, and say it now and then."""
    said_s = time.monotonic()
    while text := done():
        if time.monotonic() - said_s >= _SAID_S:
            said_s = time.monotonic()
            click.echo(text, file=sys.stderr)
        time.sleep(_POLL_S)
