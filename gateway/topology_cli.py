"""`millrace vhosts`, `queues`, `exchanges`, `bindings`, `delayed`, `retained`, `connections`, `consumers`: what is on a
broker.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from core_log.wall_clock import wall_clock_ms
from gateway.client_cli import (
    COUNT,
    LIMIT,
    OFFSET,
    OFFSET_MAX,
    Ago,
    Command,
    Moment,
    listing,
    say,
    show,
    show_fields,
    vhost_option,
    with_client,
    with_json,
)
from protocols.convert import routing_key_to_topic, topic_to_routing_key

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


def _whole(text: str) -> int:
    """What a broker can be told. Raises ValueError."""
    number = int(text)
    if not -OFFSET_MAX <= number <= OFFSET_MAX:
        raise ValueError(f"{text} has over 64 bits")
    return number


class JsonObject(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A JSON object, such as '{"x-message-ttl": 1000}'."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        try:
            found = json.loads(value, parse_int=_whole, parse_constant=_whole)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return found


arguments_option = click.option("--arguments", type=JsonObject(), default="{}", help="Arguments, as a JSON object.")
durable_option = click.option("--durable/--transient", default=True, show_default=True)


def _group(name: str, help: str, operation: str, *, by_vhost: bool = True) -> click.Group:
    """A group of commands with `list`."""
    group = click.Group(name, help=help)
    group.command("list", help=f"Print all {name}.")(listing(operation, by_vhost=by_vhost))
    return group


vhosts = _group("vhosts", "Look after virtual hosts.", "vhosts.list", by_vhost=False)
queues = _group("queues", "Look after queues and streams.", "queues.list")
exchanges = _group("exchanges", "Look after exchanges.", "exchanges.list")
bindings = _group("bindings", "Look after bindings.", "bindings.list")
connections = _group("connections", "Look after client connections.", "connections.list")
consumers = _group("consumers", "Look at consumers.", "consumers.list")


# --- virtual hosts -----------------------------------------------------------------------


@vhosts.command("add")
@click.argument("name")
@click.option("--description")
@with_client
def add_vhost(client: BlockingClient, name: str, description: str | None) -> None:
    """Make virtual host NAME; you may do everything in it."""
    client.administer("vhosts.add", name=name, description=description)


@vhosts.command("limits")
@click.argument("name")
@click.option("--max-connections", type=LIMIT, help="-1 is none.")
@click.option("--max-queues", type=LIMIT, help="-1 is none.")
@with_client
def limit_vhost(client: BlockingClient, name: str, max_connections: int | None, max_queues: int | None) -> None:
    """Limit virtual host NAME."""
    given = {"max-connections": max_connections, "max-queues": max_queues}
    limits = {limit: value for limit, value in given.items() if value is not None}
    client.administer("vhosts.limits", name=name, limits=limits)


@vhosts.command("trace")
@click.argument("name")
@click.argument("switch", type=click.Choice(["on", "off"]))
@with_client
def trace_vhost(client: BlockingClient, name: str, switch: str) -> None:
    """Send copies of all messages of virtual host NAME to its exchange amq.rabbitmq.trace, or stop that."""
    client.administer("vhosts.trace", name=name, on=switch == "on")


@vhosts.command("delete")
@click.argument("name")
@with_client
def delete_vhost(client: BlockingClient, name: str) -> None:
    """Delete virtual host NAME with all that is in it."""
    client.administer("vhosts.delete", name=name)


# --- queues ------------------------------------------------------------------------------


@queues.command("add")
@click.argument("name")
@vhost_option
@durable_option
@click.option("--auto-delete", is_flag=True)
@arguments_option
@with_client
def add_queue(client: BlockingClient, **given: Any) -> None:
    """Declare queue NAME."""
    client.administer("queues.add", **given)


queues.add_command(add_queue, "create")  # as topics are made


@queues.command("describe")
@click.argument("name")
@vhost_option
@with_json
@with_client
def describe_queue(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Print the figures of queue NAME, and for how many seconds its oldest message has waited."""
    show_fields(client.administer("queues.describe", **given), as_json)


@queues.command("alter")
@click.argument("name")
@click.argument("arguments", type=JsonObject())
@vhost_option
@with_client
def alter_queue(client: BlockingClient, **given: Any) -> None:
    """Change the arguments of queue NAME to those in the JSON object ARGUMENTS; one that is null goes. Messages and
    consumers stay, and who declares it as it was before still means this queue.
    """
    client.administer("queues.alter", **given)


@queues.command("pause")
@click.argument("name")
@vhost_option
@with_client
def pause_queue(client: BlockingClient, **given: Any) -> None:
    """Give the consumers of queue NAME nothing until it is resumed. Messages come, expire and can be looked at."""
    client.administer("queues.alter", arguments={"x-paused": True}, **given)


@queues.command("resume")
@click.argument("name")
@vhost_option
@with_client
def resume_queue(client: BlockingClient, **given: Any) -> None:
    """Give the consumers of queue NAME, which is paused, messages again."""
    client.administer("queues.alter", arguments={"x-paused": None}, **given)


@queues.command("delete")
@click.argument("name")
@vhost_option
@click.option("--if-unused", is_flag=True, help="Only without consumers.")
@click.option("--if-empty", is_flag=True, help="Only without messages.")
@with_json
@with_client
def delete_queue(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Delete queue NAME."""
    deleted = client.administer("queues.delete", **given)
    say({"deleted": deleted}, f"{deleted:,} messages deleted", as_json)


@queues.command("purge")
@click.argument("name")
@vhost_option
@with_json
@with_client
def purge_queue(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Drop all messages of queue NAME that wait."""
    dropped = client.administer("queues.purge", **given)
    say({"dropped": dropped}, f"{dropped:,} messages dropped", as_json)


@queues.command("peek")
@click.argument("name")
@vhost_option
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True)
@click.option("--bytes-max", type=COUNT, default=4096, show_default=True, help="Of each body.")
@click.option("--delayed", is_flag=True, help="Those that wait for their time, with the id to cancel them by.")
@with_json
@with_client
def peek_queue(client: BlockingClient, as_json: bool, delayed: bool, **given: Any) -> None:
    """Print the messages that come next out of queue NAME. They stay there."""
    found = client.administer("queues.peek", **given, **({"delayed": True} if delayed else {}))
    columns = list(found[0]) if found else ["exchange", "key", "body"]
    show(columns, [list(one.values()) for one in found], as_json)


@queues.command("move")
@click.argument("source")
@click.argument("destination")
@vhost_option
@click.option("--limit", type=COUNT, help="At most so many messages.")
@with_json
@with_client
def move_messages(
    client: BlockingClient, source: str, destination: str, vhost: str, limit: int | None, as_json: bool
) -> None:
    """Move the messages that wait in queue SOURCE to queue DESTINATION."""
    total = 0
    while limit is None or total < limit:
        most = {} if limit is None else {"limit": limit - total}
        done = client.administer("queues.move", source=source, destination=destination, vhost=vhost, **most)
        total += done["moved"]
        if not done["moved"] or not done["left"]:
            break
    say({"moved": total}, f"{total:,} messages moved", as_json)


@queues.command("rewind")
@click.argument("name")
@click.option("--to", "moment", type=Moment(), metavar="TIME", help="Since then: ISO 8601, or ms since 1970.")
@click.option("--ago", "ago_s", type=Ago(), metavar="SECONDS", help="Since so many seconds ago.")
@click.option("--dry-run", is_flag=True, help="Only say how many messages would come again.")
@vhost_option
@with_json
@with_client
def rewind_queue(
    client: BlockingClient,
    name: str,
    moment: int | None,
    ago_s: float | None,
    dry_run: bool,
    vhost: str,
    as_json: bool,
) -> None:
    """Have queue NAME, which retains messages, give out again what was published since a time and is done with."""
    if (moment is None) == (ago_s is None):
        raise click.UsageError("since when? Give --to or --ago")
    since_ms = moment if moment is not None else wall_clock_ms() - int((ago_s or 0) * 1000)
    given = {"name": name, "vhost": vhost, "since_ms": since_ms, "dry_run": dry_run}
    total = 0
    while True:
        done = client.administer("queues.rewind", **given)
        total += done["left"] if dry_run else done["replayed"]
        if dry_run or not done["left"] or not done["replayed"]:
            break
        given |= {"after": done["last"], "before": done["before"]}
    text = f"{total:,} messages {'would come' if dry_run else 'come'} again"
    say({"replayed": total, "dry_run": dry_run}, text, as_json)


# --- exchanges and bindings --------------------------------------------------------------


@exchanges.command("add")
@click.argument("name")
@click.option("--type", "kind", default="direct", show_default=True, help="direct, fanout, topic, headers ...")
@vhost_option
@durable_option
@click.option("--auto-delete", is_flag=True)
@click.option("--internal", is_flag=True)
@arguments_option
@with_client
def add_exchange(client: BlockingClient, **given: Any) -> None:
    """Declare exchange NAME."""
    client.administer("exchanges.add", **given)


@exchanges.command("delete")
@click.argument("name")
@vhost_option
@click.option("--if-unused", is_flag=True, help="Only without bindings.")
@with_client
def delete_exchange(client: BlockingClient, **given: Any) -> None:
    """Delete exchange NAME."""
    client.administer("exchanges.delete", **given)


def _binding(command: Command) -> Command:
    """The parameters that say which binding is meant."""
    for add in (
        with_client,
        arguments_option,
        vhost_option,
        click.option("--kind", type=click.Choice(["queue", "exchange", "topic"]), default="queue", show_default=True),
        click.option("--key", "routing_key", default="", help="The binding key or pattern."),
        click.argument("destination"),
        click.argument("source"),
    ):
        command = add(command)
    return command


@bindings.command("add")
@_binding
def add_binding(client: BlockingClient, **given: Any) -> None:
    """Bind DESTINATION to exchange SOURCE."""
    client.administer("bindings.add", **given)


@bindings.command("delete")
@_binding
def delete_binding(client: BlockingClient, **given: Any) -> None:
    """Remove a binding of DESTINATION to exchange SOURCE."""
    client.administer("bindings.delete", **given)


# --- delayed messages --------------------------------------------------------------------

delayed = click.Group("delayed", help="Look after messages that wait for their time.")
delayed.command("count", help="Print how many messages wait for their time in each queue.")(listing("delayed.count"))


@delayed.command("list")
@click.argument("queue")
@vhost_option
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@with_json
@with_client
def list_delayed(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Print the delayed messages of QUEUE that are due first."""
    page = client.administer("delayed.list", **given)
    show(page["columns"], page["rows"], as_json)


@delayed.command("cancel")
@click.argument("queue")
@click.argument("id", type=OFFSET)
@vhost_option
@with_client
def cancel_delayed(client: BlockingClient, **given: Any) -> None:
    """Drop the delayed message ID of QUEUE."""
    client.administer("delayed.cancel", **given)


# --- retained messages -------------------------------------------------------------------

retained = click.Group("retained", help="Look after the last messages of routing keys that are kept for newcomers.")
_pattern = click.argument("pattern", default="#")
_mqtt = click.option("--mqtt", "is_mqtt", is_flag=True, help="In topics of MQTT (a/b), not in routing keys (a.b).")


@retained.command("list")
@_pattern
@_mqtt
@vhost_option
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@with_json
@with_client
def list_retained(client: BlockingClient, as_json: bool, pattern: str, is_mqtt: bool, **given: Any) -> None:
    """Print the retained messages whose routing keys match PATTERN, with + and # as wildcards, in order."""
    page = client.administer("retained.list", pattern=_key(pattern, is_mqtt), **given)
    columns, rows = page["columns"], page["rows"]
    if is_mqtt:
        columns, rows = ["topic", *columns[1:]], [[routing_key_to_topic(row[0]), *row[1:]] for row in rows]
    show(columns, rows, as_json)


def _key(text: str, is_mqtt: bool) -> str:
    return topic_to_routing_key(text) if is_mqtt else text


@retained.command("get")
@click.argument("key")
@_mqtt
@vhost_option
@click.option("--bytes-max", type=COUNT, default=4096, show_default=True, help="Of the body.")
@with_json
@with_client
def get_retained(client: BlockingClient, as_json: bool, key: str, is_mqtt: bool, **given: Any) -> None:
    """Print the message that is retained of the routing key KEY."""
    found = client.administer("retained.get", key=_key(key, is_mqtt), **given)
    show_fields({"topic": key, **{k: v for k, v in found.items() if k != "key"}} if is_mqtt else found, as_json)


@retained.command("clear")
@_pattern
@_mqtt
@vhost_option
@with_json
@with_client
def clear_retained(client: BlockingClient, as_json: bool, pattern: str, is_mqtt: bool, **given: Any) -> None:
    """Drop the retained messages whose routing keys match PATTERN."""
    cleared = client.administer("retained.clear", pattern=_key(pattern, is_mqtt), **given)
    say({"cleared": cleared}, f"{cleared:,} retained messages cleared", as_json)


# --- connections -------------------------------------------------------------------------


@connections.command("close")
@click.argument("peer", required=False)
@click.option("--of-user", "name", help="All connections of this user.")
@click.option("--client-id", help="Those of this client, by what it calls itself: `name` in the list.")
@click.option("--reason", default="closed by an operator", show_default=True)
@with_json
@with_client
def close_connections(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Close the connection from PEER, as `list` shows it, to whichever broker of a cluster."""
    if all(given[one] is None for one in ("peer", "name", "client_id")):
        raise click.UsageError("which connection? Give PEER, --of-user or --client-id")
    closed = client.administer("connections.close", **given)
    say({"closed": closed}, f"{closed:,} connections closed", as_json)
