"""ApiVersions: what is served, in which versions."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import API_VERSIONS
from protocols.kafka.registry import SERVED, serves
from routing.clients import library_of


@serves(API_VERSIONS, 0, 4, before_login=True)
async def api_versions(door: Door, call: Call, request: Entity) -> Entity:
    """All of it, whoever asks. Clients say here what they are made with."""
    if call.version >= 3:
        door.library = library_of(request.client_software_name, request.client_software_version)
        if door.client is not None:
            door.client.library = door.library
    return Entity(error_code=ErrorCode.NONE, api_keys=_served())


def unsupported_version() -> Entity:
    """The answer, in version 0, to who asks in a version that is not known here: it asks again."""
    return Entity(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served())


def _served() -> list[Entity]:
    return [
        Entity(api_key=key, min_version=served.advertised_min, max_version=served.version_max)
        for key, served in sorted(SERVED.items())
    ]
