"""Changing properties in the form they came in: a few headers are set or removed, all else stays byte for byte.

1. A protocol that has headers of its own registers an editor for its raw properties. Values are of neutral types; how
   wide an integer is written, or that one is a time, is what the protocol knows of the header's name.
2. Messages of a protocol without an editor change into `NEUTRAL`, the engine's own form: `NeutralProperties` as
   MessagePack.
3. What is set for many messages is encoded once (`encode`), and joined to each (`edit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

import msgpack

from core_log.errors import CorruptBatch
from routing.message import NAME_ENCODING_ERRORS, NeutralProperties, Properties, register_decoder

NEUTRAL = "neutral"
"""The protocol of properties in the engine's own form."""


class PropertyEditor(Protocol):
    """Reads and changes raw properties of one protocol, which were checked when they came in."""

    def headers(self, raw: bytes, names: Sequence[str]) -> dict[str, Any]:
        """Those of the headers `names` that are there."""

    def expiration(self, raw: bytes) -> str | None:
        """The time to live as the publisher wrote it, in ms."""

    def message_id(self, raw: bytes) -> bytes | None:
        """What the publisher calls the message."""

    def encode(self, headers: Mapping[str, Any]) -> bytes:
        """Headers in a form that `edit` takes."""

    def join(self, added: bytes, more: bytes) -> bytes:
        """What `encode` made of two sets of headers as one."""

    def edit(self, raw: bytes, added: bytes, removed: Sequence[str] = (), *, keep_expiration: bool = True) -> bytes:
        """Properties without the headers `removed`, then with those that `encode` made."""


_editors: dict[str, PropertyEditor] = {}


def register_editor(protocol: str, editor: PropertyEditor) -> None:
    """Make `editor` the way to change raw properties tagged `protocol`."""
    _editors[protocol] = editor


def editor_of(protocol: str) -> PropertyEditor | None:
    """Who changes properties of a protocol; None: they have to become neutral first."""
    return _editors.get(protocol)


_FIELDS = tuple(NeutralProperties.__slots__)
_DECIMAL = 1


def _pack(value: Any) -> bytes:
    return msgpack.packb(value, default=_foreign, unicode_errors=NAME_ENCODING_ERRORS)  # type: ignore[no-any-return]


def _foreign(value: Any) -> Any:
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    return int(value) if isinstance(value, int) else str(value)


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_extension, unicode_errors=NAME_ENCODING_ERRORS, strict_map_key=False)


def _extension(code: int, data: bytes) -> Any:
    return Decimal(data.decode()) if code == _DECIMAL else data


def to_neutral_raw(neutral: NeutralProperties) -> bytes:
    """Properties in the engine's own form; what is absent takes no room."""
    values = {name: getattr(neutral, name) for name in _FIELDS}
    return _pack({name: value for name, value in values.items() if value is not None and value is not False})


def _from_neutral_raw(raw: bytes) -> NeutralProperties:
    try:
        return NeutralProperties(**_unpack(raw)) if raw else NeutralProperties()
    except (TypeError, ValueError) as error:
        raise CorruptBatch(f"properties in the engine's form are damaged: {error}") from error


class _NeutralEditor:
    """The editor of the engine's own form."""

    def headers(self, raw: bytes, names: Sequence[str]) -> dict[str, Any]:
        found = _from_neutral_raw(raw).headers
        return {name: found[name] for name in names if name in found}

    def expiration(self, raw: bytes) -> str | None:
        expiration_ms = _from_neutral_raw(raw).expiration_ms
        return None if expiration_ms is None else str(expiration_ms)

    def message_id(self, raw: bytes) -> bytes | None:
        message_id = _from_neutral_raw(raw).message_id
        return None if message_id is None else message_id.encode("utf-8", NAME_ENCODING_ERRORS)

    def encode(self, headers: Mapping[str, Any]) -> bytes:
        return _pack(headers)

    def join(self, added: bytes, more: bytes) -> bytes:
        return _pack(_unpack(added) | _unpack(more))

    def edit(self, raw: bytes, added: bytes, removed: Sequence[str] = (), *, keep_expiration: bool = True) -> bytes:
        neutral = _from_neutral_raw(raw)
        for name in removed:
            neutral.headers.pop(name, None)
        neutral.headers.update(_unpack(added))
        if not keep_expiration:
            neutral.expiration_ms = None
        return to_neutral_raw(neutral)


NEUTRAL_EDITOR: PropertyEditor = _NeutralEditor()
register_decoder(NEUTRAL, _from_neutral_raw)
register_editor(NEUTRAL, NEUTRAL_EDITOR)


def editable(properties: Properties, raws: Sequence[bytes] | None, count: int) -> tuple[str, list[bytes] | None]:
    """The protocol in which properties of a slab can be changed, and the raw properties of its messages in it.

    None for these: all messages have those of `properties`, which can be changed as they are.
    """
    if properties.protocol in _editors:
        return properties.protocol, None if raws is None else list(raws)
    if raws is None:
        return NEUTRAL, [to_neutral_raw(properties.neutral)] * count
    protocol, persistent = properties.protocol, properties.persistent
    each = (Properties(protocol, raw, persistent=persistent).neutral for raw in raws)
    return NEUTRAL, [to_neutral_raw(neutral) for neutral in each]
