"""Which requests are served, in which versions, and by what: what is advertised is what is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from protocols.kafka.codec import Entity
from protocols.kafka.schema import Api

Handler = Callable[[Any, Any, Entity], Awaitable[Entity | None]]
"""Takes the adapter, the call and the request. Its reply, or None: `Call.answer` comes later, or not at all."""


@dataclass(frozen=True)
class Served:
    """An API that is served from one version to another."""

    api: Api
    version_min: int
    version_max: int
    advertised_min: int
    """Lower than what is served where clients take offence otherwise."""
    handler: Handler
    before_login: bool


SERVED: dict[int, Served] = {}
"""By API key; filled as the modules of the handlers are imported."""


def serves(
    api: Api, version_min: int, version_max: int, *, advertised_min: int | None = None, before_login: bool = False
) -> Callable[[Handler], Handler]:
    """Register the handler of an API."""
    if not api.version_min <= version_min <= version_max <= api.version_max:
        raise ValueError(f"{api.name} has versions {api.version_min} to {api.version_max}")

    def register(handler: Handler) -> Handler:
        advertised = version_min if advertised_min is None else advertised_min
        SERVED[api.key] = Served(api, version_min, version_max, advertised, handler, before_login)
        return handler

    return register
