"""AlterConfigs: topics are configured as the request says, and by default in all that it does not name."""

from __future__ import annotations

from protocols.kafka.adapter_configs import alter
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import ALTER_CONFIGS
from protocols.kafka.registry import serves
from routing.declaring.topic_control import ConfigChange
from routing.topics.topic_config import FACTOR


@serves(ALTER_CONFIGS, 0, 2)
async def alter_configs(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other."""
    return await alter(door, request.resources, request.validate_only, _change_of, replaces=True)


def _change_of(asked: Entity) -> ConfigChange:
    said = {one.name: one.value for one in asked.configs}
    if len(said) != len(asked.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is named twice")
    for name, value in said.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")

    def change(config: dict[str, str]) -> dict[str, str]:
        return ({FACTOR: config[FACTOR]} if FACTOR in config else {}) | said

    return change
