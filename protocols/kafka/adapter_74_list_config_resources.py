"""ListConfigResources: what there is that may have a configuration of its own."""

from __future__ import annotations

from protocols.kafka.adapter_03_metadata import nodes
from protocols.kafka.adapter_configs import ResourceType
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import LIST_CONFIG_RESOURCES
from protocols.kafka.registry import serves

_TYPES_SINCE = 1


@serves(LIST_CONFIG_RESOURCES, 0, 1)
async def list_config_resources(door: Door, call: Call, request: Entity) -> Entity:
    """Topics and brokers; groups and client metrics have none of their own. The first version asks for the last."""
    try:
        door.require_administrator(looks=True)
        kinds = request.resource_types or list(ResourceType) if call.version >= _TYPES_SINCE else ()
        found = [(kind, name) for kind in dict.fromkeys(kinds) for name in _names(door, kind)]
    except KafkaError as error:
        return Entity(error_code=code_of(error), config_resources=[])
    named = [Entity(resource_name=name, resource_type=kind) for kind, name in found]
    return Entity(error_code=ErrorCode.NONE, config_resources=named)


def _names(door: Door, kind: int) -> list[str]:
    if kind == ResourceType.TOPIC:
        return sorted(door.broker.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node.node_id) for node in nodes(door)]
    if kind in (ResourceType.CLIENT_METRICS, ResourceType.GROUP):
        return []
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"there are no resources of type {kind}")
