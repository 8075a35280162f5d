"""What an operator may ask for by name: one table of operations over the calls of the engine.

1. An operation takes keyword arguments of plain types, checked before it runs, and answers plain data: what a message
   or JSON can hold. Whoever carries it (the native protocol, later HTTP) needs to know nothing else.
2. Operations that only look need the tag `monitoring` or `administrator`, all others `administrator`; but those on
   topics go by what the user may do with the topic.
3. A list is a `table` of at most `ROWS_MAX` rows from `start` on, so that no answer is large and no turn long; who
   wants all asks again until fewer come.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from routing.errors import AccessRefused, InvalidArgument, NotFound
from routing.message import KEY_BYTES_MAX, is_key

if TYPE_CHECKING:
    from routing.broker import Broker

ROWS_MAX = 1000
NESTING_MAX = 32
"""So deep headers and arguments are nested at most, as in AMQP: what is shown of them is nested a little deeper."""
LOOKS = ("administrator", "monitoring")
CHANGES = ("administrator",)

T = TypeVar("T")
Row = tuple[Any, ...]
Implementation = Callable[..., Awaitable[Any]]


@dataclass(slots=True, frozen=True)
class Operation:
    """An entry of the table."""

    run: Implementation
    arguments: type[msgspec.Struct]
    tags: tuple[str, ...] | None
    """Users with one of these may ask for it; None: it looks itself at what the user may do."""
    wants: frozenset[str] = frozenset()
    """What it is told besides, of the door where it is asked for: `asked_from`, `topics_vhost`."""


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, *, tags: tuple[str, ...] | None = CHANGES, into: dict[str, Operation] = OPERATIONS
) -> Callable[[Implementation], Implementation]:
    """Enter a function into a table. Its first two parameters are the broker and the user who asks; what follows are
    the arguments, with their types and defaults. Keywords are no arguments: `asked_from` is the address, "host:port",
    from where it is asked for, or "", and `topics_vhost` the virtual host whose permissions count for topics there.
    """

    def enter(function: Implementation) -> Implementation:
        hints = get_type_hints(function, None, {"Broker": object}, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())[2:]
        arguments = [one for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        fields: list[Any] = [
            (one.name, hints[one.name])
            if one.default is inspect.Parameter.empty
            else (one.name, hints[one.name], one.default)
            for one in arguments
        ]
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        keywords = {one.name for one in parameters} - {one.name for one in arguments}
        into[name] = Operation(function, struct, tags, frozenset(keywords))
        return function

    return enter


async def administer(
    broker: Broker,
    user: str,
    name: str,
    arguments: Mapping[str, Any],
    *,
    asked_from: str = "",
    topics_vhost: str = "/",
) -> Any:
    """Run an operation for a user, who asks from an address ("host:port"), at a door where permissions in
    `topics_vhost` count for topics. Raises AccessRefused, NotFound (no such operation), InvalidArgument, and what the
    operation raises.
    """
    found = OPERATIONS.get(name)
    if found is None:
        raise NotFound(f"there is no operation '{name}'")
    if found.tags is not None:
        require_tag(broker, user, name, found.tags)
    given = checked(name, found, arguments)
    told = {"asked_from": asked_from, "topics_vhost": topics_vhost}
    return await found.run(broker, user, **given, **{one: told[one] for one in found.wants})


def checked(name: str, found: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation, all of them. Raises InvalidArgument."""
    try:
        given = msgspec.convert(arguments, found.arguments)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{name}: {error}") from None
    fields = {field: getattr(given, field) for field in given.__struct_fields__}
    said = [value for value in fields.values() if isinstance(value, dict)]
    try:
        _require_flat(said, NESTING_MAX + 1)
        msgspec.msgpack.encode(said)
    except (OverflowError, RecursionError):  # JSON may have what no answer at the native door could tell
        raise InvalidArgument(f"{name}: a number has over 64 bits, or too much is nested") from None
    return fields


def _require_flat(values: Iterable[Any], levels: int) -> None:
    """Raises RecursionError where more is nested than so many levels deep."""
    if not levels:
        raise RecursionError
    for value in values:
        if isinstance(value, dict | list):
            _require_flat(value.values() if isinstance(value, dict) else value, levels - 1)


def require_tag(broker: Broker, user: str, what: str, tags: tuple[str, ...]) -> None:
    """Raises AccessRefused for users with none of these tags."""
    if not has_tag(broker, user, tags):
        raise AccessRefused(f"access to {what} refused for user '{user}': it needs the tag {' or '.join(tags)}")


def has_tag(broker: Broker, user: str, tags: tuple[str, ...]) -> bool:
    """Whether a user has one of these tags."""
    known = broker.rights.user(user)
    return known is not None and any(tag in known.tags for tag in tags)


def require_short(what: str, name: str) -> None:
    """At most 255 bytes, as AMQP has them: a longer one could not be told to who consumes. Raises InvalidArgument."""
    if not is_key(name):
        raise InvalidArgument(f"{what} has at most {KEY_BYTES_MAX} bytes")


def page(rows: Iterable[T], start: int) -> Iterator[T]:
    """As many of the rows from `start` on as one answer has."""
    begin = min(max(start, 0), sys.maxsize - ROWS_MAX)
    return islice(rows, begin, begin + ROWS_MAX)


def table(columns: tuple[str, ...], rows: Iterable[Row], start: int) -> dict[str, Any]:
    """A page of a list: the names of the columns, and the rows from `start` on."""
    return {"columns": list(columns), "rows": [list(map(plain, row)) for row in page(rows, start)]}


def plain(value: Any) -> Any:
    """A value as a message or JSON can hold it: names are whatever bytes a client chose, arguments of many types."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)  # a moment in AMQP's headers is a number of its own type, which no message holds
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, Decimal):
        return plain(float(value))
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return plain(str(value))
