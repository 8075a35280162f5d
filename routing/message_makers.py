"""Messages that the broker makes in the form of a protocol, of what somebody says of them in neutral terms.

A protocol registers how; one whose topics have a last message that is kept (`kept/retained.py`) says as what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from routing.errors import NotImplementedYet
from routing.message import NeutralProperties, Properties


class Made(NamedTuple):
    """Where a message is to be published, and with which properties."""

    exchange: str
    routing_key: str
    properties: Properties
    kept: Properties | None
    """Those that it is retained with; None: it is not."""


Maker = Callable[[str, NeutralProperties, bool], Made]
"""Makes a message for a topic, to be retained or not. Raises InvalidArgument."""

_makers: dict[str, Maker] = {}


def register_maker(protocol: str, make: Maker) -> None:
    """Make `make` the way to have messages of a protocol."""
    _makers[protocol] = make


def maker_of(protocol: str) -> Maker:
    """Raises NotImplementedYet: there is no door for the protocol."""
    found = _makers.get(protocol)
    if found is None:
        raise NotImplementedYet(f"this broker makes no messages of {protocol}")
    return found
