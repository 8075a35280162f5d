"""A topic's configuration: Kafka's names, checked, as the settings of its logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from core_log.partition_log import LogConfig
from routing.config import BrokerConfig
from routing.errors import InvalidConfig

_LARGE = (1 << 63) - 1
_INTEGERS = {
    "segment.bytes": ("segment_bytes", 1 << 10, 1 << 31),
    "segment.ms": ("segment_ms", 1, _LARGE),
    "retention.ms": ("retention_ms", -1, _LARGE),
    "retention.bytes": ("retention_bytes", -1, _LARGE),
    "max.message.bytes": ("message_bytes_max", 1, (1 << 31) - 1),
    "index.interval.bytes": ("index_interval_bytes", 0, (1 << 31) - 1),
    "segment.index.bytes": ("index_bytes_max", 64, (1 << 31) - 1),
    "fsync.interval.ms": ("fsync_interval_ms", 1, _LARGE),
}
FACTOR, _MINIMUM = "replication.factor", "min.insync.replicas"
_UNCLEAN = ("unclean.leader.election", "unclean.leader.election.enable")
FACTOR_DEFAULT = 3
_FACTOR_MAX = 1_000
_FSYNC = ("commit", "interval", "never")


def log_config(config: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """The settings for a topic's partition logs. Raises InvalidConfig for an unknown name or a bad value."""
    settings: dict[str, object] = {"segment_bytes": broker.topic_segment_bytes}
    for name, text in config.items():
        if name == "fsync":
            if text not in _FSYNC:
                raise InvalidConfig(f"topic config fsync={text!r} is none of {', '.join(_FSYNC)}")
            settings["fsync"] = text
        elif name in _INTEGERS:
            field, least, most = _INTEGERS[name]
            settings[field] = _integer(name, text, least, most)
        elif name not in (FACTOR, _MINIMUM, *_UNCLEAN):
            known = ", ".join(["fsync", *_INTEGERS, FACTOR, _MINIMUM, _UNCLEAN[0]])
            raise InvalidConfig(f"unknown topic config {name!r}; known are {known}")
    return msgspec.convert(settings, LogConfig)


class Replication(NamedTuple):
    """How many replicas a topic's partitions should have."""

    factor: int
    minimum: int
    """So many have to be in sync for anything to be committed."""
    asked: int
    """The factor that somebody asked for; 0: nobody did, and it may be less as long as there are fewer brokers."""
    unclean: bool = False
    """A replica that may lack what was committed leads where nobody else can."""


def replication(config: Mapping[str, str]) -> Replication:
    """What a topic's configuration says of its replicas. Raises InvalidConfig."""
    said = {name: config[name] for name in _UNCLEAN if name in config}
    for name, text in said.items():
        if text not in ("true", "false"):
            raise InvalidConfig(f"topic config {name}={text!r} is neither 'true' nor 'false'")
    asked = _integer(FACTOR, config[FACTOR], 1, _FACTOR_MAX) if FACTOR in config else 0
    factor = asked or FACTOR_DEFAULT
    minimum = 2 if factor >= FACTOR_DEFAULT else 1
    if _MINIMUM in config:
        minimum = _integer(_MINIMUM, config[_MINIMUM], 1, factor)
    return Replication(factor, minimum, asked, "true" in said.values())


def _integer(name: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InvalidConfig(f"topic config {name}={text!r} is not a whole number") from None
    if value < least:
        raise InvalidConfig(f"topic config {name}={value} is less than {least}")
    if value > most:
        raise InvalidConfig(f"topic config {name}={value} is more than {most}")
    return value
