"""A topic's configuration: Kafka's names, checked, as the settings of its logs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core_log.partition_log import LogConfig
from routing.config import BrokerConfig
from routing.errors import InvalidArgument

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
_FSYNC = ("commit", "interval", "never")


def log_config(config: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """The settings for a topic's partition logs. Raises InvalidArgument for an unknown name or a bad value."""
    settings: dict[str, object] = {"segment_bytes": broker.topic_segment_bytes}
    for name, text in config.items():
        if name == "fsync":
            if text not in _FSYNC:
                raise InvalidArgument(f"topic config fsync={text!r} is none of {', '.join(_FSYNC)}")
            settings["fsync"] = text
        elif name in _INTEGERS:
            field, least, most = _INTEGERS[name]
            try:
                value = int(text)
            except ValueError:
                raise InvalidArgument(f"topic config {name}={text!r} is not a whole number") from None
            if value < least:
                raise InvalidArgument(f"topic config {name}={value} is less than {least}")
            if value > most:
                raise InvalidArgument(f"topic config {name}={value} is more than {most}")
            settings[field] = value
        else:
            known = ", ".join(["fsync", *_INTEGERS])
            raise InvalidArgument(f"unknown topic config {name!r}; known are {known}")
    return msgspec.convert(settings, LogConfig)
