"""`millrace spark`: jobs between topics and Parquet files. They are plain scripts over the public data source."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import COUNT, asked_password, connection_options

if TYPE_CHECKING:
    from spark_bridge.jobs.export import Exported
    from spark_bridge.jobs.replay import Replayed

Command = Callable[..., Any]
Options = dict[str, str]

MASTER = "local[*]"


@click.group()
def spark() -> None:
    """Jobs of Apache Spark: topics to Parquet and back. They need `pip install 'millrace[spark]'`."""


def _pairs(_context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> Options:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def _time(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Milliseconds since 1970."""
    if text is None or text.isdigit():
        return None if text is None else int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a time like 2026-01-31T09:00 nor milliseconds") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


_PAIRS: Any = {"metavar": "NAME=VALUE", "multiple": True, "callback": _pairs}


def _job(command: Command) -> Command:
    """Add what all jobs take; make a `JobError` a line and exit code 1."""

    @connection_options(click.STRING)  # the files are where Spark's workers are
    @click.option("--master", metavar="URL", help=f"Where Spark runs. Default: {MASTER}, or what spark-submit says.")
    @click.option("--conf", "settings", **_PAIRS, help="A setting of Spark; several may be given.")
    @click.option("--quiet", is_flag=True, help="Say nothing of the progress.")
    @click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
    @functools.wraps(command)
    def wrapped(
        server: str,
        user: str | None,
        password: str | None,
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        master: str | None,
        settings: Options,
        **arguments: Any,
    ) -> None:
        access = {"millrace.servers": server}
        if user is not None:
            access |= {"millrace.user": user, "millrace.password": asked_password(password)}
        files = {"millrace.tls.ca": tls_ca, "millrace.tls.cert": tls_cert, "millrace.tls.key": tls_key}
        access |= {name: file for name, file in files.items() if file is not None}
        if tls:
            access["millrace.tls"] = "true"
        try:
            from spark_bridge.java import JavaNotFound
            from spark_bridge.jobs.session import JobError, session
        except ImportError as error:
            _fail(f"{error.name} is not installed: pip install 'millrace[spark]'")
        try:
            started = session(f"millrace {command.__name__}", master=master or _default_master(), settings=settings)
            command(started, access, **arguments)
        except (JobError, JavaNotFound) as error:
            _fail(str(error))

    return wrapped


def _default_master() -> str | None:
    """Nothing where spark-submit has started us, and has said it."""
    import os

    return None if "PYSPARK_GATEWAY_PORT" in os.environ else MASTER


def _fail(message: str) -> Any:
    click.echo(f"millrace: {message}", err=True)
    sys.exit(1)


def _source(
    topics: tuple[str, ...], pattern: str | None, queue: str | None, mqtt_filter: str | None, more: Options
) -> Options:
    """Options that say what is read. Raises click.UsageError."""
    ways = {"subscribe": ",".join(topics), "subscribePattern": pattern, "queue": queue, "mqtt.filter": mqtt_filter}
    chosen = {name: value for name, value in ways.items() if value}
    if len(chosen) != 1:
        raise click.UsageError("say what is read: one of --topic, --pattern, --queue and --mqtt-filter")
    return chosen | more


def _what(command: Command) -> Command:
    """Add the options of `_source`."""
    for option in (
        click.option("--option", "more", **_PAIRS, help="An option of the data source; several may be given."),
        click.option("--mqtt-filter", metavar="FILTER", help="Read what MQTT clients publish under these topics."),
        click.option("--queue", metavar="QUEUE", help="Read a queue."),
        click.option("--pattern", metavar="REGEX", help="Read the topics whose whole name it matches."),
        click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Read it; several may be given."),
    ):
        command = option(command)
    return command


@spark.command("export")
@click.argument("directory")
@_what
@click.option("--checkpoint", metavar="DIR", help="How far the export is. Default: _checkpoint in the directory.")
@click.option("--headers", is_flag=True, help="With the records' headers.")
@click.option("--text", "as_text", is_flag=True, help="Key and value as text, not as bytes.")
@click.option("--batch", type=COUNT, help="How many records are read at a time.")
@click.option("--compression", type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]), default="zstd")
@_job
def export(
    session: Any,
    access: Options,
    directory: str,
    topics: tuple[str, ...],
    pattern: str | None,
    queue: str | None,
    mqtt_filter: str | None,
    more: Options,
    checkpoint: str | None,
    headers: bool,
    as_text: bool,
    batch: int | None,
    compression: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Bring a directory of Parquet files up to date, by date and hour.

    What an earlier export into the directory has read is not read again: run it as often as you like. A run that was
    killed leaves nothing twice and nothing out.
    """
    from spark_bridge.jobs.export import export as run

    source = access | _source(topics, pattern, queue, mqtt_filter, more)
    if headers:
        source["includeHeaders"] = "true"
    if batch is not None:
        source["maxOffsetsPerTrigger"] = str(batch)

    def show(done: Exported) -> None:
        if not quiet:
            rest = f", {done.waiting:,} left" if done.waiting else ""
            click.echo(f"{done.records:,} records{rest}, {_rate(done.records, done.seconds)}", err=True)

    done = run(
        session, source, directory, checkpoint=checkpoint, as_text=as_text, compression=compression, progress=show
    )
    if as_json:
        fields = {**vars(done), "hours": sorted(done.hours)}
        click.echo(json.dumps(fields))
    else:
        files = f"{done.files:,} files ({done.size_bytes:,} bytes) of {len(done.hours):,} hours"
        click.echo(f"{done.records:,} records in {files}, {done.seconds:.1f} s")


@spark.command("replay")
@click.argument("target", metavar="TOPIC")
@click.option("--from", "directory", metavar="DIR", help="Read the Parquet files in this directory.")
@_what
@click.option("--since", "since_ms", metavar="TIME", callback=_time, help="Records of this time (UTC) and later.")
@click.option("--until", "until_ms", metavar="TIME", callback=_time, help="Records before this time.")
@click.option("--checkpoint", metavar="DIR", help="Note here what is done, to go on after a kill.")
@click.option("--headers/--no-headers", default=True, help="With the records' headers, as far as there are any.")
@click.option("--keep-partitions", is_flag=True, help="To the partitions the records came from, not by their keys.")
@click.option("--compression", type=click.Choice(["gzip", "snappy", "lz4", "zstd", "none"]), default="none")
@_job
def replay(
    session: Any,
    access: Options,
    target: str,
    directory: str | None,
    topics: tuple[str, ...],
    pattern: str | None,
    queue: str | None,
    mqtt_filter: str | None,
    more: Options,
    since_ms: int | None,
    until_ms: int | None,
    checkpoint: str | None,
    headers: bool,
    keep_partitions: bool,
    compression: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write Parquet files, or what topics hold, to a topic once more."""
    from spark_bridge.jobs.replay import replay_files, replay_topics

    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise click.UsageError("--since is not before --until: there is no time between them")
    sink = access | {"topic": target, "compression": compression}

    def show(done: Replayed) -> None:
        if not quiet:
            rate = _rate(done.records, done.seconds)
            click.echo(f"step {done.steps_done:,} of {done.steps:,}: {done.records:,} records, {rate}", err=True)

    terms: dict[str, Any] = {
        "since_ms": since_ms, "until_ms": until_ms, "checkpoint": checkpoint, "keep_partitions": keep_partitions,
        "progress": show,
    }  # fmt: skip
    if directory is not None:
        if topics or pattern or queue or mqtt_filter:
            raise click.UsageError("--from and --topic, --pattern, --queue or --mqtt-filter: one of them")
        done = replay_files(session, directory, sink, with_headers=headers, **terms)
    else:
        source = access | _source(topics, pattern, queue, mqtt_filter, more)
        done = replay_topics(session, source | {"includeHeaders": str(headers).lower()}, sink, **terms)
    if as_json:
        click.echo(json.dumps(vars(done)))
    else:
        before = f" ({done.steps_before:,} of {done.steps:,} steps had been done)" if done.steps_before else ""
        click.echo(f"{done.records:,} records, {done.seconds:.1f} s{before}")


def _rate(records: int, seconds: float) -> str:
    return f"{records / seconds:,.0f} records/s" if seconds else ""
