"""A topic's configuration as those see it who ask: every setting with its value, its type, and who has set it.

What a setting is called, and which values it takes, is `topic_config.py`'s to say; here stands how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from core_log.partition_log import LogConfig
from routing.config import BrokerConfig
from routing.topics.topic_config import FIXED, THROTTLED, log_config, normal, replication

Kind = Literal["boolean", "string", "int", "long", "double", "list"]
Source = Literal["topic", "broker", "default"]
_NEVER = str((1 << 63) - 1)


class Synonym(NamedTuple):
    """Where a value comes from, or would without the one before it."""

    name: str
    value: str
    source: Source


class Described(NamedTuple):
    """One setting of a topic. `synonyms` are in the order in which they count, the first is the one in force."""

    name: str
    kind: Kind
    synonyms: tuple[Synonym, ...]
    documentation: str

    @property
    def value(self) -> str:
        """The one in force."""
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        """Who has set it."""
        return self.synonyms[0].source


class _Setting(NamedTuple):
    kind: Kind
    broker_name: str
    """What a broker calls its default."""
    read: Callable[[LogConfig], Any]
    documentation: str


def _field(name: str) -> Callable[[LogConfig], Any]:
    return lambda config: getattr(config, name)


def _retry_delays(config: LogConfig) -> str:
    return ",".join(map(str, config.retry_delays_ms))


def _split_state(config: LogConfig) -> str:
    return f"{config.split_from}:{config.split_since_ms}" if config.split_from else ""


_SETTINGS: dict[str, _Setting] = {
    "cleanup.policy": _Setting(
        "list", "log.cleanup.policy", _field("cleanup_policy"),
        "What goes: what is too old or too much (delete), what a later record of its key replaces (compact), or both.",
    ),
    "compression.type": _Setting(
        "string", "compression.type", _field("compression"),
        "How batches are compressed; producer: as they come.",
    ),
    "delete.retention.ms": _Setting(
        "long", "log.cleaner.delete.retention.ms", _field("delete_retention_ms"),
        "How long tombstones stay once what was before them is compacted.",
    ),
    "fsync": _Setting(
        "string", "fsync", _field("fsync"),
        "When what is confirmed is synced: before that (commit), each fsync.interval.ms (interval), or never.",
    ),
    "fsync.interval.ms": _Setting(
        "long", "fsync.interval.ms", _field("fsync_interval_ms"), "How often is synced where fsync is interval."
    ),
    "index.interval.bytes": _Setting(
        "int", "log.index.interval.bytes", _field("index_interval_bytes"), "Bytes of records between index entries."
    ),
    "max.compaction.lag.ms": _Setting(
        "long", "log.cleaner.max.compaction.lag.ms", _field("compaction_lag_max_ms"),
        "What is older is compacted however little that frees.",
    ),
    "max.message.bytes": _Setting(
        "int", "message.max.bytes", _field("message_bytes_max"), "The largest batch of records, as it is sent."
    ),
    "message.timestamp.after.max.ms": _Setting(
        "long", "log.message.timestamp.after.max.ms", _field("timestamp_after_max_ms"),
        "How far behind the broker's time that of a record may be.",
    ),
    "message.timestamp.before.max.ms": _Setting(
        "long", "log.message.timestamp.before.max.ms", _field("timestamp_before_max_ms"),
        "How far before the broker's time that of a record may be.",
    ),
    "message.timestamp.type": _Setting(
        "string", "log.message.timestamp.type", _field("timestamp_type"),
        "Whose time a record has: that of who made it (CreateTime) or of the broker (LogAppendTime).",
    ),
    "millrace.dead.letter.fetches": _Setting(
        "int", "millrace.dead.letter.fetches", _field("dead_letter_fetches"),
        "How often a group may begin with the same record, before that goes to TOPIC.dlq; 0: for ever.",
    ),
    "millrace.deduplication.window.ms": _Setting(
        "long", "millrace.deduplication.window.ms", _field("deduplication_window_ms"),
        "For how long a record with the message id (or x-deduplication-header) of another is left out; 0: never.",
    ),
    "millrace.delay.enable": _Setting(
        "boolean", "millrace.delay.enable", _field("delays"),
        "Whether records with a header x-delay (ms) or deliver-at (ms since 1970) are appended when they are due.",
    ),
    "millrace.expiry.enable": _Setting(
        "boolean", "millrace.expiry.enable", _field("expires"),
        "Whether records with a header x-ttl (ms) or expires-at (ms since 1970) are seen by nobody after that.",
    ),
    "millrace.key.index.enable": _Setting(
        "boolean", "millrace.key.index.enable", _field("key_index"),
        "Whether the broker keeps an index of keys, so that records are found by theirs at once.",
    ),
    "millrace.max.lag": _Setting(
        "long", "millrace.max.lag", _field("max_lag"),
        "A group that is more records behind in a partition is too far behind; 0: none ever is.",
    ),
    "millrace.max.lag.action": _Setting(
        "string", "millrace.max.lag.action", _field("max_lag_action"),
        "What is done then: it is logged and counted (alert), and moved on as well (skip), with what it leaves out in "
        "TOPIC.dlq (dead-letter).",
    ),
    "millrace.max.lag.groups": _Setting(
        "list", "millrace.max.lag.groups", lambda config: ",".join(config.max_lag_groups),
        "The groups that millrace.max.lag is about; empty: all, for alerts only.",
    ),
    "millrace.priority.ahead": _Setting(
        "int", "millrace.priority.ahead", _field("priority_ahead"),
        "How many records of each partition are in the log before millrace.priority.group has got so far.",
    ),
    "millrace.priority.group": _Setting(
        "string", "millrace.priority.group", _field("priority_group"),
        "The group for which records come into the log by their header x-priority (0 to 9); empty: for none.",
    ),
    "millrace.retry.delays.ms": _Setting(
        "list", "millrace.retry.delays.ms", _retry_delays,
        "After which times a record that a group fails at comes again, before it goes to TOPIC.dlq; empty: never.",
    ),
    "millrace.split.groups": _Setting(
        "list", "millrace.split.groups", lambda config: ",".join(config.split_groups),
        "The groups for which keys keep their order when partitions are added: nobody reads those before; empty: none.",
    ),
    "millrace.split.settle.ms": _Setting(
        "long", "millrace.split.settle.ms", _field("split_settle_ms"),
        "How long producers may divide keys as before: their metadata.max.age.ms and delivery timeout together.",
    ),
    "millrace.split.state": _Setting(
        "string", "millrace.split.state", _split_state,
        "FIRST:SINCE while partitions from FIRST on, added SINCE (ms since 1970), are not read; the broker sets it.",
    ),
    "millrace.split.wait.max.ms": _Setting(
        "long", "millrace.split.wait.max.ms", _field("split_wait_ms_max"),
        "How long after that groups are waited for.",
    ),
    "min.cleanable.dirty.ratio": _Setting(
        "double", "log.cleaner.min.cleanable.ratio", _field("dirty_ratio_min"),
        "The share of a log that was never compacted, from which on it is worth it.",
    ),
    "min.compaction.lag.ms": _Setting(
        "long", "log.cleaner.min.compaction.lag.ms", _field("compaction_lag_min_ms"),
        "How long a record is not compacted.",
    ),
    "retention.bytes": _Setting(
        "long", "log.retention.bytes", _field("retention_bytes"),
        "How much of each partition is kept at least; -1 is all of it.",
    ),
    "retention.ms": _Setting(
        "long", "log.retention.ms", _field("retention_ms"), "How long records are kept; -1 is for ever."
    ),
    "segment.bytes": _Setting(
        "int", "log.segment.bytes", _field("segment_bytes"), "The size of a file of the log: records go by whole files."
    ),
    "segment.index.bytes": _Setting(
        "int", "log.index.size.max.bytes", _field("index_bytes_max"), "The largest index of such a file."
    ),
    "segment.ms": _Setting(
        "long", "log.roll.ms", _field("segment_ms"), "After this time a new file begins even if the last is not full."
    ),
}  # fmt: skip
_REMOTE_TEXT = "All of a log is on the brokers' disks."
_FIXED_TEXTS: dict[str, tuple[Kind, str, str]] = {
    "remote.log.copy.disable": ("boolean", "remote.log.copy.disable", _REMOTE_TEXT),
    "remote.log.delete.on.disable": ("boolean", "remote.log.delete.on.disable", _REMOTE_TEXT),
    "remote.storage.enable": ("boolean", "remote.log.storage.system.enable", _REMOTE_TEXT),
}
LISTS = {name: str(one.read(LogConfig())) for name, one in _SETTINGS.items() if one.kind == "list"}
LISTS |= dict.fromkeys(THROTTLED, "")
"""Settings that can be added to, and what they are if nobody says otherwise."""
_FLUSH_TEXT = "Confirmed records are synced whatever this says, where fsync is commit."
_LEVEL_TEXT = "Noted for tools: what the broker compresses itself has the codec's usual level."
_LOCAL_TEXT = "Noted for tools: all of a log is on the brokers' disks, for as long as retention.ms and .bytes say."
_NOTED: dict[str, tuple[Kind, str, str, str]] = {
    "compression.gzip.level": ("int", "compression.gzip.level", "-1", _LEVEL_TEXT),
    "compression.lz4.level": ("int", "compression.lz4.level", "9", _LEVEL_TEXT),
    "compression.zstd.level": ("int", "compression.zstd.level", "3", _LEVEL_TEXT),
    "file.delete.delay.ms": (
        "long", "log.segment.delete.delay.ms", "60000", "Noted for tools: files that nobody needs go at once.",
    ),
    "flush.messages": ("long", "log.flush.interval.messages", _NEVER, _FLUSH_TEXT),
    "flush.ms": ("long", "log.flush.interval.ms", _NEVER, _FLUSH_TEXT),
    "local.retention.bytes": ("long", "log.local.retention.bytes", "-2", _LOCAL_TEXT),
    "local.retention.ms": ("long", "log.local.retention.ms", "-2", _LOCAL_TEXT),
    "preallocate": (
        "boolean", "log.preallocate", "false", "Noted for tools: files are not made larger than what is in them.",
    ),
    "segment.jitter.ms": (
        "long", "log.roll.jitter.ms", "0", "Noted for tools: a new file begins after segment.ms and no sooner.",
    ),
}  # fmt: skip
"""Those that nothing goes by, and what they are in Kafka if nobody says otherwise."""
_THROTTLED_TEXT = "Noted for tools: a broker's throttle is for all replicas that are not in sync."
_INSYNC_TEXT = "So many replicas have to be in sync for anything to be confirmed."
_UNCLEAN_TEXT = "Whether a replica that may lack what was confirmed leads where no other is left."


def describe(
    config: Mapping[str, str], broker: BrokerConfig, *, minimum: int, unclean: bool | None = None
) -> list[Described]:
    """All settings of a topic that is configured so, by name. `minimum` is how many of its replicas have to be in sync
    if nobody says otherwise; `unclean` is what the metadata of a cluster says, which operators may change.
    """
    said = normal(config)
    replicas = replication(config)
    if unclean is None:
        unclean = replicas.unclean
    if unclean:
        said["unclean.leader.election.enable"] = "true"
    logs = log_config(config, broker), log_config({}, broker), log_config({}, BrokerConfig())
    found = [
        _described(name, one.kind, one.broker_name, one.documentation, said, *map(one.read, logs))
        for name, one in _SETTINGS.items()
    ]
    for name, (kind, broker_name, text) in _FIXED_TEXTS.items():
        found.append(_described(name, kind, broker_name, text, said, *(FIXED[name],) * 3))
    for name, (kind, broker_name, default, text) in _NOTED.items():
        own = said.get(name, default).strip().lower()
        found.append(_described(name, kind, broker_name, text, said, own, default, default))
    for name in THROTTLED:
        found.append(_described(name, "list", name, _THROTTLED_TEXT, said, said.get(name, ""), "", ""))
    for name, kind, text, *values in (
        ("min.insync.replicas", "int", _INSYNC_TEXT, replicas.minimum, minimum, minimum),
        ("unclean.leader.election.enable", "boolean", _UNCLEAN_TEXT, unclean, False, False),
    ):
        found.append(_described(name, kind, name, text, said, *values))
    return sorted(found)


def _described(
    name: str, kind: Kind, broker_name: str, text: str, said: Mapping[str, str], own: Any, broker: Any, default: Any
) -> Described:
    synonyms = [Synonym(broker_name, _text(default), "default")]
    if broker != default:
        synonyms.insert(0, Synonym(broker_name, _text(broker), "broker"))
    if name in said:
        synonyms.insert(0, Synonym(name, _text(own), "topic"))
    return Described(name, kind, tuple(synonyms), text)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
