"""What commands share that talk to a running broker through its native door: connecting, and printing tables."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO

import click

from gateway.errors import first_error

if TYPE_CHECKING:
    from ssl import SSLContext

    from protocols.native.clients.blocking import BlockingClient

DEFAULT_SERVER = "127.0.0.1:9094"
TIMEOUT_S = 30
COUNT = click.IntRange(1, (1 << 31) - 1)
LIMIT = click.IntRange(-1, (1 << 31) - 1)
"""-1 is none."""
NUMBER = click.IntRange(0, (1 << 31) - 1)
"""Of a partition or a broker."""
OFFSET_MAX = (1 << 63) - 1
OFFSET = click.IntRange(0, OFFSET_MAX)
DISTANCE = click.IntRange(-OFFSET_MAX, OFFSET_MAX)


class Ago(click.FloatRange):
    """Seconds, up to ten years of them."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, 315_360_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `FloatRange`, which takes what is no number for one in its range."""
        seconds = super().convert(value, param, ctx)
        return seconds if seconds == seconds else self.fail("nan is no number of seconds", param, ctx)


class Moment(click.ParamType[int]):
    """A time in ms since 1970, given as that or in ISO 8601: in this machine's time zone, unless it says another."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises BadParameter."""
        try:
            found = int(value) if value.isdecimal() else round(datetime.fromisoformat(value).timestamp() * 1000)
        except (ValueError, OverflowError):
            found = -1
        if not 0 <= found <= OFFSET_MAX:
            self.fail(f"{value!r} is neither ms since 1970 nor like 2026-01-31T12:00", param, ctx)
        return found


class Name(click.ParamType[str]):
    """Of a topic or a group."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises BadParameter."""
        if not value:
            self.fail("no name is empty", param, ctx)
        return str(value)


PAGE_ROWS = 1000
"""A list comes in pages of so many rows."""

Command = Callable[..., None]


class Terms(NamedTuple):
    """How to reach the broker, as a user has said it."""

    server: str
    credentials: tuple[str, str] | None
    tls: SSLContext | None


def connection_options(file: click.ParamType[str]) -> Callable[[Command], Command]:
    """Adds the options to connect and log in; `file` is what certificates are named by."""
    options = (
        click.option(
            "--server", metavar="HOST:PORT", default=DEFAULT_SERVER, show_default=True, help="The native door."
        ),
        click.option("--user", help="Log in with this name."),
        click.option("--password", help="The user's password; without it you are asked."),
        click.option("--tls", is_flag=True, help="Speak TLS."),
        click.option("--tls-ca", metavar="FILE", type=file, help="Verify the broker with these certificates (PEM)."),
        click.option("--tls-cert", metavar="FILE", type=file, help="Show this certificate (PEM)."),
        click.option("--tls-key", metavar="FILE", type=file, help="Its private key (PEM)."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def input_bytes() -> BinaryIO:
    """Standard input. Raises ClickException where whoever started this has closed it."""
    return _opened(sys.stdin, "input").buffer


def output_bytes() -> BinaryIO:
    """Standard output. Raises as `input_bytes`."""
    return _opened(sys.stdout, "output").buffer


def _opened(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:
        raise click.ClickException(f"standard {name} is closed")
    return stream


def asked_password(given: str | None) -> str:
    """What was given as password; else the user is asked, or without a terminal, the first line of standard input.
    Raises ClickException where there is none.
    """
    if given is not None:
        return given
    if has_terminal():
        return str(click.prompt("Password", hide_input=True, err=True))
    line = input_bytes().readline().decode(errors="surrogateescape")
    if not line:
        raise click.ClickException("a password is wanted: --password, or a line of standard input")
    return line.rstrip("\r\n")


def has_terminal() -> bool:
    """Whether somebody can be asked for a password who is not seen to write it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True


def with_terms(command: Command) -> Command:
    """Add the options to connect and log in, pass them as `Terms`, and make what the broker answers, or the output
    refuses, a line and exit code 1.
    """

    @connection_options(click.Path(exists=True, dir_okay=False))
    @functools.wraps(command)
    def wrapped(
        server: str,
        user: str | None,
        password: str | None,
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        **arguments: Any,
    ) -> None:
        from protocols.native.clients.client_tls import tls_context
        from protocols.native.connection import addresses_of
        from protocols.native.errors import MillraceError

        credentials = None if user is None else (user, asked_password(password))
        try:
            context = tls_context(tls_ca, tls_cert, tls_key) if tls or tls_ca or tls_cert else None
        except OSError as error:
            raise click.BadParameter(str(error), param_hint="--tls-ca, --tls-cert, --tls-key") from None
        try:
            addresses_of(server)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--server") from None
        try:
            command(Terms(server, credentials, context), **arguments)
        except BaseException as caught:
            first = first_error(caught)
            if isinstance(first, UnicodeEncodeError):
                raise click.UsageError(f"{first.object!r} is not UTF-8") from None
            if not isinstance(first, (MillraceError, OSError)) or isinstance(first, BrokenPipeError):
                raise first from None  # one that asks to end, also where it came while another one was heeded
            click.echo(f"millrace: {first}", err=True)
            sys.exit(1)

    return wrapped


def client_of(terms: Terms) -> BlockingClient:
    """One that speaks to the broker on these terms."""
    from protocols.native.clients.blocking import BlockingClient

    server, credentials, tls = terms
    return BlockingClient(server, timeout_s=TIMEOUT_S, client_name="millrace", credentials=credentials, tls=tls)


def with_client(command: Command) -> Command:
    """`with_terms`, with a client that speaks to the broker on them."""

    @functools.wraps(command)
    def wrapped(terms: Terms, **arguments: Any) -> None:
        with client_of(terms) as client:
            command(client, **arguments)

    return with_terms(wrapped)


def with_json(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def list_all(client: BlockingClient, operation: str, **arguments: Any) -> tuple[list[str], list[list[Any]]]:
    """The columns and all rows of a list."""
    rows: list[list[Any]] = []
    while True:
        page = client.administer(operation, start=len(rows), **arguments)
        rows += page["rows"]
        if len(page["rows"]) < PAGE_ROWS:
            return page["columns"], rows


def _title(column: str, columns: Sequence[str]) -> str:
    """What a column is called in a table: `connected_at_ms` is "connected", unless another is."""
    short = column.removesuffix("_at_ms")
    return (short if short == column or short not in columns else column.removesuffix("_ms")).replace("_", " ")


def show(columns: Sequence[str], rows: Collection[Sequence[Any]], as_json: bool) -> None:
    """Print a list as a table, or as a JSON array of objects."""
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], ensure_ascii=False, indent=2))
        return
    times = [column.endswith("_at_ms") for column in columns]
    titles = [_title(column, columns) for column in columns]
    shown = [titles, *([_cell(value, time) for value, time in zip(row, times, strict=True)] for row in rows)]
    numbers = [not time for time in times]
    for row in rows:
        numbers = [number and _is_number(value) for number, value in zip(numbers, row, strict=True)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for cells in shown:
        padded = [
            cell.rjust(width) if number and len(shown) > 1 else cell.ljust(width)
            for cell, width, number in zip(cells, widths, numbers, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def show_fields(fields: dict[str, Any], as_json: bool) -> None:
    """Print one thing's values by name."""
    if as_json:
        click.echo(json.dumps(fields, ensure_ascii=False, indent=2))
        return
    titles = [_title(name, list(fields)) for name in fields]
    width = max(map(len, titles), default=0)
    for title, (name, value) in zip(titles, fields.items(), strict=True):
        click.echo(f"{title.ljust(width)}  {_cell(value, name.endswith('_at_ms'))}".rstrip())


def say(fields: dict[str, Any], text: str, as_json: bool) -> None:
    """Print what was done: as a sentence, or as a JSON object."""
    click.echo(json.dumps(fields, ensure_ascii=False) if as_json else text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # behind the last year that has a name
        return f"{ms} ms"


def _cell(value: Any, is_time: bool = False) -> str:
    if value is None:
        return ""
    if is_time and value:
        return _time(value)
    if is_time:
        return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else ""
    # What a client chose as a name must not move the cursor of whoever looks at it.
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value))


def listing(operation: str, *, by_vhost: bool = True) -> Command:
    """The command `list` of a group, for a list the broker has."""

    @with_json
    @with_client
    def listed(client: BlockingClient, as_json: bool, vhost: str | None = None) -> None:
        arguments = {"vhost": vhost} if by_vhost else {}
        columns, rows = list_all(client, operation, **arguments)
        show(columns, rows, as_json)

    command: Command = listed
    return click.option("--vhost", help="Only of this virtual host.")(command) if by_vhost else command


vhost_option = click.option("--vhost", default="/", show_default=True, help="The virtual host.")
