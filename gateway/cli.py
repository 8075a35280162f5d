"""The command `millrace`: run a broker, look after its topics, see it at work.

1. What the operator can put right is said in one line on standard error, without a traceback: exit code 2 when a
   setting or an argument is wrong, 1 when the machine or the broker refuses.
2. Only what a command needs is imported, when it runs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.client_cli import COUNT, NUMBER

Command = Callable[..., None]

EXIT_REFUSED = 1
EXIT_WRONG_SETTING = 2

MODULES = {
    name: module
    for module, names in {
        "bans_cli": "bans",
        "cluster_cli": "cluster",
        "consume_cli": "consume",
        "groups_cli": "groups",
        "messages_cli": "messages",
        "policies_cli": "policies",
        "produce_cli": "produce",
        "rights_cli": "permissions topic-permissions users",
        "sessions_cli": "sessions",
        "spark_cli": "spark",
        "status_cli": "status",
        "topics_cli": "topics",
        "topology_cli": "bindings connections consumers delayed exchanges queues retained vhosts",
        "transactions_cli": "transactions",
        "verify_cli": "verify",
    }.items()
    for name in names.split()
}
"""In which module of this package a command is that is not here, by its name."""


class Commands(click.Group):
    """Those of other modules are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*super().list_commands(ctx), *MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; None if there is none of that name."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            module = import_module(f"gateway.{MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="millrace", prog_name="millrace")
def main() -> None:
    """A message broker that speaks AMQP 0-9-1, MQTT, Kafka's protocol and one of its own over one log."""


def _door_option(door: str, default: str) -> Callable[[Command], Command]:
    return click.option(f"--{door}", metavar="HOST:PORT|off", help=f"Listen for {door} here. Default: {default}.")


@main.command()
@click.option("--data-dir", metavar="DIR", help="Where everything durable lies. Default: ~/.local/share/millrace.")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="Settings, as TOML.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info.")
@click.option(
    "--accept-damage",
    is_flag=True,
    help="Start although the catalog or the group offsets are damaged, or logs are missing: keep what is whole, and a "
    "copy in damaged/.",
)
@_door_option("amqp", "127.0.0.1:5672")
@_door_option("mqtt", "127.0.0.1:1883")
@_door_option("native", "127.0.0.1:9094")
@_door_option("amqps", "off")
@_door_option("mqtts", "off")
@_door_option("natives", "off")
@_door_option("kafka", "off")
@_door_option("kafkas", "off")
@_door_option("websocket", "off")
@_door_option("websockets", "off")
@_door_option("http", "off")
@_door_option("https", "off")
@click.option("--tls-cert", metavar="FILE", help="Certificate (chain) of the doors that speak TLS, as PEM.")
@click.option("--tls-key", metavar="FILE", help="Its private key, as PEM.")
@click.option("--tls-ca", metavar="FILE", help="What the certificates of clients are verified against, as PEM.")
@click.option("--cluster", "name", metavar="NAME", help="Be one of the brokers of this cluster.")
@click.option("--broker-id", metavar="N", type=NUMBER, help="Which one: a number from 0 on.")
@click.option("--etcd", metavar="HOST:PORT[,...]", help="The members of the etcd that the cluster stands on.")
@click.option("--peer", metavar="HOST:PORT", help="Listen for other brokers here. Default: 127.0.0.1:9095.")
@click.option("--advertise", metavar="HOST", help="The host under which others and clients find this broker.")
@click.option("--rack", metavar="RACK", help="Where the broker stands.")
@click.option("--import", "import_data", is_flag=True, help="Make a new cluster of a single broker's data directory.")
@click.option(
    "--accept-old-data",
    is_flag=True,
    help="Start as a member with an older copy of its directory: its replicas count as lost until they caught up.",
)
def serve(
    data_dir: str | None,
    config_file: Path | None,
    log_level: str | None,
    accept_damage: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    name: str | None,
    broker_id: int | None,
    etcd: str | None,
    peer: str | None,
    advertise: str | None,
    rack: str | None,
    import_data: bool,
    accept_old_data: bool,
    **doors: str | None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Prints a line for each door, such as `amqp 127.0.0.1:5672`, and then `ready`.
    """
    from gateway.config import ConfigError, load_config
    from gateway.errors import StartError

    flags: dict[str, Any] = {"listen": {door: address for door, address in doors.items() if address is not None}}
    files = {"cert": tls_cert, "key": tls_key, "ca": tls_ca}
    if any(files.values()):
        flags["tls"] = {name: file for name, file in files.items() if file is not None}
    member = {
        "name": name, "broker_id": broker_id, "etcd": etcd, "peer": peer, "advertise": advertise, "rack": rack,
        "import_data": import_data or None, "accept_old_data": accept_old_data or None,
    }  # fmt: skip
    flags["cluster"] = {key: value for key, value in member.items() if value is not None}
    if data_dir is not None:
        flags["data_dir"] = data_dir
    if log_level is not None:
        flags["log"] = {"level": log_level}
    if accept_damage:
        flags["engine"] = {"accept_damage": True}
    try:
        config = load_config(config_file, flags=flags)
    except ConfigError as error:
        _fail(str(error), EXIT_WRONG_SETTING)

    # What a start loads and builds stays: there is nothing to be collected before `tune_process`.
    gc.disable()
    from gateway.process import run

    try:
        run(config)
    except StartError as error:
        _fail(str(error), EXIT_REFUSED)


@main.command()
@click.option("--rows", type=COUNT, help="Use only so many flights.")
def demo(rows: int | None) -> None:
    """Run a broker and a job on real data through all its protocols, and check that nothing was lost."""
    from gateway.demo import main as run_demo

    sys.exit(run_demo(rows))


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"millrace: {message}", err=True)
    sys.exit(code)
