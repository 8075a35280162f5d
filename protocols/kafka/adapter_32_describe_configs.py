"""DescribeConfigs: the settings of topics, of the broker and of groups, and who has said so."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from protocols.adapter_topics import may_see
from protocols.kafka.adapter_broker_configs import BrokerSetting, broker_settings
from protocols.kafka.adapter_configs import KINDS, SOURCES, ResourceType, not_configured, require_this_broker
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_throttles import throttle_entries
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import DESCRIBE_CONFIGS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topics.described_config import Described

_OF_GROUPS = "group."
_GROUP_SETTINGS = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")


@serves(DESCRIBE_CONFIGS, 0, 4)
async def describe_configs(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other; what is named twice is described once."""
    once = {(one.resource_type, one.resource_name): one for one in request.resources}.values()
    return Entity(results=[_described(door, request, one) async for one in bites(once)])


def _described(door: Door, request: Entity, asked: Entity) -> Entity:
    reply = Entity(
        error_code=ErrorCode.NONE, error_message=None, resource_type=asked.resource_type,
        resource_name=asked.resource_name, configs=[],
    )  # fmt: skip
    try:
        if asked.resource_type == ResourceType.TOPIC:
            found = _of_topic(door, request, asked.resource_name)
        elif asked.resource_type == ResourceType.BROKER:
            found = _as_asked(request, _of_broker(door, asked.resource_name))
        elif asked.resource_type == ResourceType.GROUP:
            found = _as_asked(request, _of_group(door))
        elif asked.resource_type == ResourceType.BROKER_LOGGER:
            found = _of_loggers(door, asked.resource_name)
        else:
            raise not_configured(asked)
    except ENGINE_ERRORS as error:
        reply.error_code, reply.error_message = code_of(error), str(error) or None
        return reply
    keys = asked.configuration_keys
    for one in found:
        if not keys or one.name in keys:
            reply.configs.append(one)
    return reply


def _as_asked(request: Entity, found: Iterable[Entity]) -> Iterable[Entity]:
    for one in found:
        if not request.include_synonyms:
            one.synonyms = []
        if not request.include_documentation:
            one.documentation = None
        yield one


def _of_topic(door: Door, request: Entity, name: str) -> Iterable[Entity]:
    if door.grants is None or not may_see(door.grants, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    asked = bool(request.include_synonyms), bool(request.include_documentation)
    return [_topic_entry(one, *asked) for one in door.broker.topic_control.described(door.topic(name))]


@lru_cache(maxsize=1024)
def _topic_entry(one: Described, with_synonyms: bool, documented: bool) -> Entity:
    """Most topics have most settings in common, and tools ask for all of a thousand topics."""
    synonyms = one.synonyms if with_synonyms else ()
    return Entity(
        name=one.name,
        value=one.value,
        read_only=False,
        is_default=one.source == "default",
        config_source=SOURCES[one.source],
        is_sensitive=False,
        synonyms=[Entity(name=name, value=value, source=SOURCES[source]) for name, value, source in synonyms],
        config_type=KINDS[one.kind],
        documentation=one.documentation if documented else None,
    )


def _of_broker(door: Door, name: str) -> Iterable[Entity]:
    door.require_administrator(looks=True)
    if not name:
        return ()  # what is the default of all brokers: nobody says anything of it
    require_this_broker(door, name)
    cluster = door.broker.cluster
    return [*map(_broker_entry, broker_settings(door)), *(() if cluster is None else throttle_entries(cluster))]


def _broker_entry(one: BrokerSetting) -> Entity:
    found = [] if one.default is None else [(one.name, one.default, SOURCES["default"])]
    if one.value != one.default:
        found.insert(0, (one.name, one.value, SOURCES["broker"]))
    return Entity(
        name=one.name,
        value=one.value,
        read_only=True,
        is_default=one.value == one.default,
        config_source=found[0][2],
        is_sensitive=False,
        synonyms=[Entity(name=name, value=value, source=source) for name, value, source in found],
        config_type=KINDS[one.kind],
        documentation=one.documentation,
    )


def _of_loggers(door: Door, name: str) -> Iterable[Entity]:
    """There are no levels to tell; who describes all that ListConfigResources names is told so."""
    door.require_administrator(looks=True)
    require_this_broker(door, name)
    return ()


def _of_group(door: Door) -> Iterable[Entity]:
    """What the broker's settings have it do: all groups are alike."""
    settings = {one.name: one for one in broker_settings(door)}
    return [_broker_entry(settings[_OF_GROUPS + name]._replace(name=name)) for name in _GROUP_SETTINGS]
