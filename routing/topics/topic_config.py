"""A topic's configuration: Kafka's names, checked, as the settings of its logs."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import NamedTuple

import msgspec

from core_log.partition_log import LogConfig
from routing.config import BrokerConfig
from routing.errors import InvalidConfig
from routing.facts import DELAY_MS_MAX

_LARGE = (1 << 63) - 1
KEY_INDEX = "millrace.key.index.enable"
"""Whether records are found by their key without looking through the log (`core_log/key_index.py`)."""
DELAYS, EXPIRY, FETCHES_MAX = "millrace.delay.enable", "millrace.expiry.enable", "millrace.dead.letter.fetches"
"""The engine's own: whether records may be delivered later, or have a time to live, and how often a group may begin
with the same one.
"""
RETRIES = "millrace.retry.delays.ms"
"""After which times it comes again, before it is a dead letter."""
_RETRIES_MAX = 16
_PRIORITY_GROUP = "millrace.priority.group"
MAX_LAG, _LAG_ACTION, _LAG_GROUPS = "millrace.max.lag", "millrace.max.lag.action", "millrace.max.lag.groups"
"""How far groups may be behind, and what is done about it (`routing/groups/lag_rules.py`)."""
DEDUPLICATION_WINDOW = "millrace.deduplication.window.ms"
"""For how long the id of a record is known: another one with it is not taken (`known_ids.py`)."""
SPLIT_GROUPS, SPLIT_STATE = "millrace.split.groups", "millrace.split.state"
"""For which groups keys keep their order when partitions are added; and FROM:SINCE_MS from then on until they have come
so far, which the engine notes (`routing/declaring/ordered_splits.py`).
"""
_GROUP_CHARACTERS_MAX, _GROUPS_MAX = 255, 16
_INTEGERS = {
    "segment.bytes": ("segment_bytes", 1 << 10, 1 << 31),
    "segment.ms": ("segment_ms", 1, _LARGE),
    "retention.ms": ("retention_ms", -1, _LARGE),
    "retention.bytes": ("retention_bytes", -1, _LARGE),
    "max.message.bytes": ("message_bytes_max", 1, (1 << 31) - 1),
    "index.interval.bytes": ("index_interval_bytes", 0, (1 << 31) - 1),
    "segment.index.bytes": ("index_bytes_max", 64, (1 << 31) - 1),
    "fsync.interval.ms": ("fsync_interval_ms", 1, _LARGE),
    "delete.retention.ms": ("delete_retention_ms", 0, _LARGE),
    "min.compaction.lag.ms": ("compaction_lag_min_ms", 0, _LARGE),
    "max.compaction.lag.ms": ("compaction_lag_max_ms", 1, _LARGE),
    "message.timestamp.before.max.ms": ("timestamp_before_max_ms", 0, _LARGE),
    "message.timestamp.after.max.ms": ("timestamp_after_max_ms", 0, _LARGE),
    FETCHES_MAX: ("dead_letter_fetches", 0, 1_000_000),
    MAX_LAG: ("max_lag", 0, _LARGE),
    DEDUPLICATION_WINDOW: ("deduplication_window_ms", 0, _LARGE),
    "millrace.priority.ahead": ("priority_ahead", 1, 100_000),
    "millrace.split.settle.ms": ("split_settle_ms", 0, _LARGE),
    "millrace.split.wait.max.ms": ("split_wait_ms_max", 0, _LARGE),
}
_FLUSHES = ("flush.messages", "flush.ms")
NOTED = {
    **dict.fromkeys(_FLUSHES, (0, _LARGE)),
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-(1 << 17), 22),
    "file.delete.delay.ms": (0, _LARGE),
    "local.retention.bytes": (-2, _LARGE),
    "local.retention.ms": (-2, _LARGE),
    "segment.jitter.ms": (0, _LARGE),
}
"""Kafka's settings of what nobody notices here. They are kept and shown for the tools that set or copy them."""
_PREALLOCATE = "preallocate"
"""Such a one as well."""
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Which replicas Kafka's throttles are for. They are kept for the tools that set them: a broker's is for all that it
copies.
"""
_THROTTLED_NAMES = re.compile(r"\*|none||\d+:\d+(,\d+:\d+)*")
FIXED = dict.fromkeys(("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"), "false")
"""What is always so here."""
_AFTER_MAX_MS = 3_600_000
_RATIO = "min.cleanable.dirty.ratio"
_POLICY = "cleanup.policy"
FACTOR, MINIMUM = "replication.factor", "min.insync.replicas"
_UNCLEAN = ("unclean.leader.election", "unclean.leader.election.enable")
FACTOR_DEFAULT = 3
_FACTOR_MAX = 1_000
_BOOLEANS = {DELAYS: "delays", EXPIRY: "expires", KEY_INDEX: "key_index"}
_CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "fsync": ("fsync", {text: text for text in ("commit", "interval", "never")}),
    "message.timestamp.type": ("timestamp_type", {text: text for text in ("CreateTime", "LogAppendTime")}),
    _LAG_ACTION: ("max_lag_action", {text: text for text in ("alert", "skip", "dead-letter")}),
    "compression.type": (
        "compression",
        {text: text for text in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")},
    ),
    _POLICY: (
        "cleanup_policy",
        {text: text for text in ("delete", "compact", "compact,delete", "delete,compact")},
    ),
}

KNOWN = frozenset([
    *_BOOLEANS, *_CHOICES, *_INTEGERS, RETRIES, _PRIORITY_GROUP, _LAG_GROUPS, SPLIT_GROUPS, SPLIT_STATE, _RATIO, FACTOR,
    MINIMUM, *_UNCLEAN, *FIXED, *NOTED, *THROTTLED, _PREALLOCATE,
])  # fmt: skip
"""All names."""


def require_known(name: str, besides: Container[str] = ()) -> None:
    """Raises InvalidConfig for what is no setting of topics, nor one of those `besides`."""
    if name not in KNOWN and name not in besides:
        raise InvalidConfig(f"unknown topic config {name!r}; known are {', '.join(sorted(KNOWN))}")


def normal(config: Mapping[str, str]) -> dict[str, str]:
    """The same where every setting has Kafka's name."""
    short, name = _UNCLEAN
    return {name if one == short else one: value for one, value in config.items()}


def require_settable(config: Mapping[str, str], had: Mapping[str, str]) -> None:
    """Raises InvalidConfig for a new value that `log_config` takes only because catalogs may have it: brokers took it
    once.
    """
    name = "compression.gzip.level"
    text = config.get(name, "-1")
    if text != had.get(name) and _integer(name, text, *NOTED[name]) == 0:
        raise InvalidConfig(f"topic config {name}={text} is neither in [1, 9] nor -1")


def log_config(config: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """The settings for a topic's partition logs. Raises InvalidConfig for an unknown name or a bad value."""
    settings: dict[str, object] = {
        "segment_bytes": broker.topic_segment_bytes,
        "timestamp_after_max_ms": _AFTER_MAX_MS,
        "deduplication_ids_max": broker.deduplication_ids_max,
    }
    for name, text in config.items():
        if name in _CHOICES:
            field, choices = _CHOICES[name]
            chosen = choices.get(text.replace(" ", ""))
            if chosen is None:
                raise InvalidConfig(f"topic config {name}={text!r} is none of {', '.join(choices)}")
            settings[field] = chosen
        elif name in _BOOLEANS:
            settings[_BOOLEANS[name]] = is_true(name, text)
        elif name == _RATIO:
            settings["dirty_ratio_min"] = _ratio(name, text)
        elif name in _INTEGERS:
            field, least, most = _INTEGERS[name]
            settings[field] = _integer(name, text, least, most)
        elif name == RETRIES:
            settings["retry_delays_ms"] = _delays_ms(text)
        elif name == _PRIORITY_GROUP:
            settings["priority_group"] = _group(name, text)
        elif name == _LAG_GROUPS:
            settings["max_lag_groups"] = _groups(name, text)
        elif name == SPLIT_GROUPS:
            settings["split_groups"] = _groups(name, text)
        elif name == SPLIT_STATE:
            settings["split_from"], settings["split_since_ms"] = _split_state(text)
        elif name in FIXED:
            if is_true(name, text):
                raise InvalidConfig(f"topic config {name}={text!r}: it is always {FIXED[name]!r}")
        elif name in NOTED:
            _integer(name, text, *NOTED[name])
            if name in _FLUSHES and config.get("fsync", "commit") != "commit":
                raise InvalidConfig(f"topic config {name} wants fsync='commit', which syncs before it promises")
        elif name == _PREALLOCATE:
            is_true(name, text)
        elif name in THROTTLED:
            if not _THROTTLED_NAMES.fullmatch(text.replace(" ", "")):
                raise InvalidConfig(f"topic config {name}={text!r} is neither '*' nor PARTITION:BROKER,...")
        elif name not in (FACTOR, MINIMUM, *_UNCLEAN):
            require_known(name)
    try:
        found = msgspec.convert(settings, LogConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"topic config: {error}") from None
    if found.retry_delays_ms and not found.dead_letter_fetches:
        raise InvalidConfig(f"topic config {RETRIES} wants {FETCHES_MAX}: after how many tries a record is put off")
    if found.max_lag_action != "alert" and not found.max_lag_groups:
        chosen = f"{_LAG_ACTION}={found.max_lag_action!r}"
        raise InvalidConfig(f"topic config {chosen} wants {_LAG_GROUPS}: which groups are moved on")
    if found.retry_delays_ms and found.compacts:
        raise InvalidConfig(f"topic config {RETRIES}: what comes again would replace later records of its key")
    _require_kept_ids(found)
    return found


def _require_kept_ids(config: LogConfig) -> None:
    """What is known of ids after a start is what the log has of them. Raises InvalidConfig."""
    window_ms = config.deduplication_window_ms
    if not window_ms:
        return
    if config.deletes and 0 <= config.retention_ms < window_ms:
        raise InvalidConfig(f"topic config {DEDUPLICATION_WINDOW}={window_ms} wants retention.ms of as much at least")
    if config.compacts and config.compaction_lag_min_ms < window_ms:
        raise InvalidConfig(
            f"topic config {DEDUPLICATION_WINDOW}={window_ms} wants min.compaction.lag.ms of as much at least: "
            "an id goes with its record"
        )


class Replication(NamedTuple):
    """How many replicas a topic's partitions should have."""

    factor: int
    minimum: int
    """So many have to be in sync for anything to be committed."""
    asked: int
    """The factor that somebody asked for; 0: nobody did, and it may be less as long as there are fewer brokers."""
    unclean: bool = False
    """A replica that may lack what was committed leads where nobody else can."""
    firm: bool = False
    """Somebody asked for the minimum, or for the factor that it follows from."""


def replication(config: Mapping[str, str]) -> Replication:
    """What a topic's configuration says of its replicas. Raises InvalidConfig."""
    said = [is_true(name, config[name]) for name in _UNCLEAN if name in config]
    asked = _integer(FACTOR, config[FACTOR], 1, _FACTOR_MAX) if FACTOR in config else 0
    factor = asked or FACTOR_DEFAULT
    minimum = 2 if factor >= FACTOR_DEFAULT else 1
    if MINIMUM in config:
        minimum = _integer(MINIMUM, config[MINIMUM], 1, factor)
    return Replication(factor, minimum, asked, any(said), is_firm(config))


def is_firm(config: Mapping[str, str]) -> bool:
    """See `Replication.firm`."""
    return MINIMUM in config or FACTOR in config


def is_true(name: str, text: str) -> bool:
    """A setting that is true or false, in letters of any case, as in Kafka. Raises InvalidConfig for all else."""
    said = text.strip().lower()
    if said not in ("true", "false"):
        raise InvalidConfig(f"topic config {name}={text!r} is neither 'true' nor 'false'")
    return said == "true"


def _delays_ms(text: str) -> list[int]:
    delays = [_integer(RETRIES, one.strip(), 1, DELAY_MS_MAX) for one in text.split(",")] if text.strip() else []
    if len(delays) > _RETRIES_MAX:
        raise InvalidConfig(f"topic config {RETRIES} has more than {_RETRIES_MAX} delays")
    return delays


def _group(name: str, text: str) -> str:
    if len(text) > _GROUP_CHARACTERS_MAX:
        raise InvalidConfig(f"topic config {name} has more than {_GROUP_CHARACTERS_MAX} characters")
    return text


def _groups(name: str, text: str) -> list[str]:
    groups = [_group(name, one.strip()) for one in text.split(",") if one.strip()]
    if len(groups) > _GROUPS_MAX:
        raise InvalidConfig(f"topic config {name} has more than {_GROUPS_MAX} groups")
    return groups


def _split_state(text: str) -> tuple[int, int]:
    first, _, since = text.partition(":")
    return _integer(SPLIT_STATE, first, 1, _LARGE), _integer(SPLIT_STATE, since, 0, _LARGE)


def _ratio(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidConfig(f"topic config {name}={text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise InvalidConfig(f"topic config {name}={text} is not in [0, 1]")
    return value


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
