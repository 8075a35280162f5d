"""Messages as an operator is shown them: plain data, with as much of each body as was asked for."""

from __future__ import annotations

import base64
import codecs
from typing import Any

from routing.administration.operations import plain
from routing.message import TYPED_NAMES, Properties

BODY_BYTES = 4096
BODY_BYTES_MAX = 1 << 16
"""Of each body, by default and at most."""


def shown_bytes(value: bytes, bytes_max: int) -> dict[str, Any]:
    """A value as `{"text": ...}` if it is UTF-8, else as `{"base64": ...}`; of a long one the beginning, and how many
    `bytes` all of it has.
    """
    beginning = value[:bytes_max]
    found: dict[str, Any]
    try:
        found = {"text": codecs.getincrementaldecoder("utf-8")().decode(beginning, len(beginning) == len(value))}
    except UnicodeDecodeError:
        found = {"base64": base64.b64encode(beginning).decode()}
    if len(beginning) < len(value):
        found["bytes"] = len(value)
    return found


def shown_message(properties: Properties, body: bytes, bytes_max: int) -> dict[str, Any]:
    """Properties by their names, headers, and the body, of which at most `bytes_max` bytes are shown."""
    neutral = properties.neutral
    named = {name: getattr(neutral, name) for name in TYPED_NAMES}
    typed = {
        name: shown_bytes(value, BODY_BYTES) if isinstance(value, bytes) else plain(value)
        for name, value in named.items()
        if value is not None
    }
    return {
        "protocol": properties.protocol,
        "persistent": properties.persistent,
        "properties": typed,
        "headers": plain(neutral.headers),
        "body": shown_bytes(body, min(max(bytes_max, 0), BODY_BYTES_MAX)),
    }
