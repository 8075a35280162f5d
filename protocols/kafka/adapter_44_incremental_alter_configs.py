"""IncrementalAlterConfigs: topics are configured otherwise in what the request names, and stay as they are else."""

from __future__ import annotations

from enum import IntEnum

from protocols.kafka.adapter_configs import alter
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import INCREMENTAL_ALTER_CONFIGS
from protocols.kafka.registry import serves
from routing.topic_control import ConfigChange
from routing.topics.topic_config import KNOWN

_LISTS = {"cleanup.policy": "delete"}
"""Settings that can be added to, and what they are if nobody says otherwise."""


class Operation(IntEnum):
    """What is to become of a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@serves(INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other."""
    return await alter(door, request.resources, request.validate_only, _change_of)


def _change_of(asked: Entity) -> ConfigChange:
    if len({one.name for one in asked.configs}) != len(asked.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    changes = [_checked(one) for one in asked.configs]

    def change(config: dict[str, str]) -> dict[str, str]:
        for name, operation, value in changes:
            if operation == Operation.DELETE:
                config.pop(name, None)
            elif operation == Operation.SET:
                config[name] = value
            else:
                config[name] = _joined(config.get(name, _LISTS[name]), operation, value)
        return config

    return change


def _checked(one: Entity) -> tuple[str, Operation, str]:
    try:
        operation = Operation(one.config_operation)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no operation {one.config_operation}") from None
    if one.name not in KNOWN:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {one.name}")
    if one.value is None and operation != Operation.DELETE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {one.name}")
    if operation in (Operation.APPEND, Operation.SUBTRACT) and one.name not in _LISTS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {one.name}: it is not a list")
    return one.name, operation, one.value or ""


def _joined(have: str, operation: Operation, value: str) -> str:
    names = [one.strip() for one in have.split(",") if one.strip()]
    said = [one.strip() for one in value.split(",") if one.strip()]
    if operation == Operation.APPEND:
        return ",".join([*names, *(one for one in said if one not in names)])
    return ",".join(one for one in names if one not in said)
