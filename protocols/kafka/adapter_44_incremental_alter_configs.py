"""IncrementalAlterConfigs: topics are configured otherwise in what the request names, and stay as they are else."""

from __future__ import annotations

from protocols.kafka.adapter_configs import APPEND, DELETE, SET, SUBTRACT, alter
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import INCREMENTAL_ALTER_CONFIGS
from protocols.kafka.registry import serves
from routing.declaring.topic_control import ConfigChange
from routing.topics.described_config import LISTS
from routing.topics.topic_config import KNOWN


@serves(INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other."""
    return await alter(door, request.resources, request.validate_only, _change_of)


def _change_of(asked: Entity) -> ConfigChange:
    if len({one.name for one in asked.configs}) != len(asked.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    # What is no setting here is not set either, and tools take back what they have never set.
    changes = [_checked(one) for one in asked.configs if one.name in KNOWN or one.config_operation != DELETE]

    def change(config: dict[str, str]) -> dict[str, str]:
        for name, operation, value in changes:
            if operation == DELETE:
                config.pop(name, None)
            elif operation == SET:
                config[name] = value
            else:
                config[name] = _joined(config.get(name, LISTS[name]), operation, value)
        return config

    return change


def _checked(one: Entity) -> tuple[str, int, str]:
    operation: int = one.config_operation
    if operation not in (SET, DELETE, APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no operation {operation}")
    if one.name not in KNOWN:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {one.name}")
    if one.value is None and operation != DELETE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {one.name}")
    if operation in (APPEND, SUBTRACT) and one.name not in LISTS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{one.name} is not a list that could be added to")
    return one.name, operation, one.value or ""


def _joined(have: str, operation: int, value: str) -> str:
    names = [one.strip() for one in have.split(",") if one.strip()]
    said = [one.strip() for one in value.split(",") if one.strip()]
    if operation == APPEND:
        return ",".join([*names, *(one for one in said if one not in names)])
    return ",".join(one for one in names if one not in said)
