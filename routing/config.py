"""Limits and defaults of the engine, with their units."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from core_log.setting_ranges import (
    BYTES_MAX,
    Bytes,
    BytesOrZero,
    Count,
    CountOrZero,
    FrameBytes,
    Milliseconds,
    MillisecondsOrZero,
    SegmentBytes,
)


class BrokerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine can be told; the gateway reads it from file, environment and flags."""

    accept_damage: bool = False
    """Go on without what is damaged in the catalog or another store, or missing, instead of refusing to start."""
    stripes: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Home partitions of durable queues. More spread the work of a cluster; each one written to costs an fsync."""
    fsync: Literal["commit", "interval", "never"] = "commit"
    """For durable queues: "commit" syncs before a confirm, "interval" every `fsync_interval_ms`, "never" leaves it
    to the system.
    """
    fsync_interval_ms: Milliseconds = 1000
    queue_segment_bytes: SegmentBytes = 64 << 20
    """The size of a file of a home partition's log; what is settled goes by whole files."""
    topic_segment_bytes: SegmentBytes = 1 << 30
    """The same of topics for which nobody says otherwise (`segment.bytes`)."""
    stripe_cache_bytes: BytesOrZero = 16 << 20
    """Message memory of each stripe, not counting what is not yet written."""
    transient_memory_bytes: BytesOrZero = 16 << 20
    """Message memory of non-durable queues; beyond it the oldest are spilled to scratch files."""
    scratch_bytes_max: BytesOrZero = 4 << 30
    """Disk for spilled messages of non-durable queues; beyond it the longest queues lose their oldest messages."""
    settle_delay_ms: MillisecondsOrZero = 10
    """Settlements wait so long for others, or for a message, to be written with; a crash makes them redeliveries."""
    group_initial_delay_ms: MillisecondsOrZero = 3000
    """How long a consumer group that was empty waits for more members than the first."""
    group_session_timeout_ms_min: Milliseconds = 6000
    group_session_timeout_ms_max: Milliseconds = 1_800_000
    """What members of groups that they divide themselves may ask for: at least, and at most."""
    groups_max: Count = 100_000
    """Consumer groups with members, or that had some, which this broker looks after."""
    group_members_max: Count = 10_000
    consumer_session_timeout_ms: Milliseconds = 45_000
    """Of members of groups that the broker divides: who is not heard of for so long is out."""
    consumer_heartbeat_interval_ms: Milliseconds = 5_000
    """How often these are heard of at most; in groups of less than 1,250 members 4 ms for each, but 800."""
    consumer_unsettled_heartbeat_interval_ms: Milliseconds = 300
    """The same while partitions move, or did a moment ago: so soon the next one reads what another gave up."""
    group_offsets_retention_ms: Milliseconds = 604_800_000
    """How long offsets are kept after a group's last member has gone, or of who is in no group after the commit."""
    transaction_timeout_ms_max: Milliseconds = 900_000
    """A producer's transaction over topics may be under way for so long at most; it asks for its own time."""
    transactional_id_expiration_ms: Milliseconds = 7 * 86_400_000
    """Transactional ids that nobody has used for so long are forgotten."""
    transactional_ids_max: Count = 100_000
    """In each log of transactions."""
    transaction_partitions_max: Count = 10_000
    """Partitions and groups in one transaction."""
    scram_iterations: Annotated[int, Meta(ge=4096, le=1_000_000)] = 15_000
    """How often a password is hashed for SCRAM when it is set; each login of such a client takes as long there."""
    cold_read_bytes: FrameBytes = 512 << 10
    """How much of a backlog is read from disk at once."""
    catch_up_ms_max: MillisecondsOrZero = 50
    """Who publishes to a queue whose consumers wait for the disk waits for one read, and no longer than this."""
    checkpoint_interval_bytes: Bytes = 64 << 20
    """How much log is replayed at most after a crash, for each stripe."""
    message_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 128 << 20
    """The largest message body of any protocol that has no lower limit of its own."""
    transaction_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 256 << 20
    """What one transaction may hold: messages with their properties, and settlements."""
    unflushed_bytes_max: Bytes = 16 << 20
    """Who publishes much is not read from while more than this waits for the disk, others while twice as much does."""
    tails_bytes_max: Bytes = 256 << 20
    """What all topics and replicas together keep in memory of their ends; what a reader finds there costs no disk."""
    flush_retry_interval_ms: Milliseconds = 500
    """A disk that has refused is asked again after this time."""
    housekeeping_interval_ms: Milliseconds = 1000
    """How often disk, memory and the logs of queues are looked after."""
    dead_letters_in_flight_max: Count = 10_000
    """Copies of dead letters that wait for the disk at a time; the originals of all others stay where they are."""
    dead_letters_in_flight_bytes_max: Bytes = 16 << 20
    dead_letter_retry_ms: Milliseconds = 1000
    """After this time dead letters are published again that could not be."""
    deduplication_ids_max: Count = 4_000_000
    """Ids that a queue or partition remembers at most, some 16 bytes each; with more the oldest go early."""
    grouped_messages_max: Count = 50_000
    """Messages of a queue with `x-group-by` that are looked past because their key is held, some 50 bytes each."""
    disk_free_bytes_min: BytesOrZero | None = None
    """Publishers wait while less is free on the disk; by default 50 MB, or a tenth of a disk that is smaller."""
    disk_free_percent_min: Annotated[int, Meta(ge=0, le=99)] = 0
    """The same as a part of the disk; the larger of both counts."""
    disk_reserve_bytes: BytesOrZero | None = None
    """A file kept to be given back when the disk is full; by default 4 MiB, or a sixteenth of a small disk."""
    reclaim_interval_ms: Milliseconds = 10_000
    """How often a home partition in which nothing is live gives back its last segment (at once if the disk is low),
    lags of groups are looked at, and what topics got as not persistent, and nobody reads, is synced: figures have it.
    """
    memory_bytes_max: BytesOrZero | None = None
    """Publishers wait while the process has more; 0 is no limit."""
    memory_percent_max: Annotated[int, Meta(ge=0, le=100)] = 40
    """The default of `memory_bytes_max`, as a part of the memory of the machine or container; no less than
    128 MiB, or three quarters of it."""
    pinned_warning_bytes: Bytes = 1 << 30
    """A warning is logged when a stripe keeps more settled bytes than this, and each time that doubles."""
    routes_cached_max: Count = 65536
    """Routing keys of a virtual host of which it is remembered where they lead."""
    vhosts_max: Count = 1_000
    bans_max: CountOrZero = 10_000
    """Clients, users and addresses that are kept out."""
    policies_max: Count = 1_000
    """Policies of a virtual host, and operator policies as well."""
    queues_max: Count = 100_000
    exchanges_max: Count = 10_000
    bindings_max: Count = 1_000_000
    topics_max: Count = 10_000
    partitions_max: Count = 1_000
    """Partitions of one topic."""
    auto_create_topics: bool = True
    """Whether topics are made by their first use."""
    auto_create_partitions: Count = 1
    """Partitions of topics for which nobody says how many."""
    stream_cache_bytes: BytesOrZero = 32 << 20
    """Memory for decoded messages of all streams together, shared by consumers that read near the same place."""
    stream_read_bytes: FrameBytes = 256 << 10
    """How much of a stream is read and decoded at once, less when there are many consumers."""
    stream_tracking_delay_ms: MillisecondsOrZero = 100
    """The positions of consumers that asked for it are written down so long after an acknowledgement."""
    stream_tracked_consumers_max: CountOrZero = 10_000
    """Consumer tags of one stream whose positions are kept."""
    retained_messages_max: CountOrZero = 1_000_000
    """Routing keys of which the last message is kept; what would be more is refused."""
    retained_bytes_max: BytesOrZero = 256 << 20
    """What these messages may take with their keys and properties. They are in memory."""
    will_grace_ms: MillisecondsOrZero = 30_000
    """After a start wills of clients that were there before wait so long for these to come back."""
    retention_check_interval_ms: Milliseconds = 300_000
    """How often it is looked what of topics, offsets and filters' streams is too old or too much."""
    filter_stream_expires_ms: MillisecondsOrZero = 604_800_000
    """The stream as which an MQTT filter is read keeps messages for so long, and goes when nobody has read it for so
    long; 0: both stay.
    """
    reader_lease_ms_max: MillisecondsOrZero = 86_400_000
    """For how long a reader may have records kept that retention would delete, without saying so again."""
    compaction_check_interval_ms: Milliseconds = 15_000
    """How often it is looked which topics are to be compacted (`cleanup.policy`)."""
    key_index_interval_ms: Milliseconds = 1_000
    """How often it is looked what there is to be indexed (`millrace.key.index.enable`)."""
    key_index_cpu_percent: Annotated[int, Meta(ge=1, le=100)] = 30
    """How much of one processor that takes."""
    compaction_memory_bytes_max: Annotated[int, Meta(ge=1 << 16, le=BYTES_MAX)] = 128 << 20
    """Memory for the keys of a log that is compacted, some 450,000 for each 128 MiB; more take several passes."""
    compaction_cpu_percent: Annotated[int, Meta(ge=1, le=100)] = 30
    """How much of one processor compaction takes."""
