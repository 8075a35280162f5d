"""The operations themselves: what there is to be asked for, and with which arguments."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from routing.administration.operations import OPERATIONS, Operation, operation, plain, table

if TYPE_CHECKING:
    from routing.broker import Broker

_NAMES: dict[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", bytes: "base64", type(None): "null", Any: "any",
    list: "array", tuple: "array", dict: "object",
}  # fmt: skip
"""In the words of JSON."""


@operation("operations.list", tags=None)
async def list_operations(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """All operations by name, with their arguments, the tags of which who asks needs one (None: it goes by what the
    user may do), and what they are for.
    """
    return listed(OPERATIONS, start)


def listed(operations: Mapping[str, Operation], start: int) -> dict[str, Any]:
    """A page of a table of operations."""
    rows = (
        (name, [_argument(field) for field in msgspec.structs.fields(one.arguments)], one.tags, _summary(one))
        for name, one in sorted(operations.items())
    )
    return table(("name", "arguments", "tags", "description"), rows, start)


def _argument(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    found: dict[str, Any] = {"name": field.name, "type": _type_name(field.type), "required": field.required}
    if field.default is not msgspec.NODEFAULT:
        found["default"] = plain(field.default)
    elif field.default_factory is not msgspec.NODEFAULT:
        found["default"] = plain(field.default_factory())
    return found


def _type_name(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        return _type_name(get_args(hint)[0])
    if origin is Literal:
        return " or ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type_name, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "object"
    return _NAMES.get(origin or hint, "any")


def _summary(one: Operation) -> str:
    """The first paragraph of what the function says of itself."""
    return " ".join((one.run.__doc__ or "").partition("\n\n")[0].split())
