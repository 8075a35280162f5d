"""What Kafka's requests and replies consist of, written down as text: one field a line.

    topics []?1+                  an array of what is indented below it, nullable from version 1 on
      topic_id uuid 10+           there from version 10 on
      name string?12+ = null      what it is where nobody says, or the version lacks it
      isr_nodes []int32
      current_leader {} 10+ tag 0 a struct, among the tagged fields

Names are those of the protocol's own message definitions in snake case. https://kafka.apache.org/protocol
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LATEST = 1 << 15
_LINE = re.compile(
    r"(?P<indent> *)(?P<name>\w+) (?P<array>\[\])?(?P<type>\{\}|\w+)?"
    r"(?P<nullable>\?(?:(?P<nullable_since>\d+)\+)?)?"
    r"(?: (?P<since>\d+)(?:\+|-(?P<until>\d+)))?(?: tag (?P<tag>\d+))?(?: = (?P<default>\S+))?"
)
_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "uuid": bytes(16), "records": None}


@dataclass(frozen=True)
class Field:
    """A line. `type` is a primitive's name, or "{}" with `fields`."""

    name: str
    type: str
    is_array: bool
    fields: tuple[Field, ...]
    since: int
    until: int
    nullable_since: int
    """The first version in which it may be null; beyond all versions if it never may."""
    tag: int | None
    default: Any

    def is_in(self, version: int) -> bool:
        """Whether a version has it."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Whether it may be null in a version."""
        return version >= self.nullable_since


@dataclass(frozen=True, eq=False)
class Api:
    """A kind of request, and its reply; each is made once, and found by being the same."""

    key: int
    name: str
    version_min: int
    version_max: int
    flexible_since: int
    """From this version on lengths are varints, and structs end with tagged fields."""
    request: tuple[Field, ...]
    reply: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        """See `flexible_since`."""
        return version >= self.flexible_since


def api(key: int, name: str, versions: str, *, flexible: int | None, request: str, reply: str) -> Api:
    """An API as its text says; `versions` is "first-last". Raises ValueError for a line that is none."""
    first, _, last = versions.partition("-")
    since = _LATEST if flexible is None else flexible
    return Api(key, name, int(first), int(last or first), since, parsed(request), parsed(reply))


def parsed(text: str) -> tuple[Field, ...]:
    """The fields that a text lists. Raises ValueError for a line that is none."""
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    return _fields([line for line in lines if line])


def _fields(lines: Sequence[str]) -> tuple[Field, ...]:
    found = []
    at = 0
    while at < len(lines):
        match = _LINE.fullmatch(lines[at])
        if match is None:
            raise ValueError(f"no field: {lines[at]!r}")
        depth = len(match["indent"])
        end = at + 1
        while end < len(lines) and len(lines[end]) - len(lines[end].lstrip()) > depth:
            end += 1
        found.append(_field(match, _fields(lines[at + 1 : end])))
        at = end
    return tuple(found)


def _field(match: re.Match[str], fields: tuple[Field, ...]) -> Field:
    is_array, kind = match["array"] is not None, match["type"] or "{}"
    nullable_since = _LATEST if match["nullable"] is None else int(match["nullable_since"] or 0)
    return Field(
        name=match["name"],
        type=kind,
        is_array=is_array,
        fields=fields,
        since=int(match["since"] or 0),
        until=int(match["until"] or _LATEST),
        nullable_since=nullable_since,
        tag=None if match["tag"] is None else int(match["tag"]),
        default=_default(match["default"], kind, is_array),
    )


def _default(text: str | None, kind: str, is_array: bool) -> Any:
    if is_array:
        return None if text == "null" else ()
    if text == "null":
        return None
    if kind == "{}":
        return None
    if text is None:
        return _ZEROS.get(kind, 0)
    return text == "true" if kind == "bool" else text if kind == "string" else int(text, 0)
