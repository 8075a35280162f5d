"""Kafka's requests about records, and where they are."""

from __future__ import annotations

from protocols.kafka.schema import api

PRODUCE = api(
    0, "Produce", "3-13", flexible=9,
    request="""
    transactional_id string? 3+ = null
    acks int16
    timeout_ms int32
    topic_data []
      name string 0-12
      topic_id uuid 13+
      partition_data []
        index int32
        records records?
    """,
    reply="""
    responses []
      name string 0-12
      topic_id uuid 13+
      partition_responses []
        index int32
        error_code int16
        base_offset int64
        log_append_time_ms int64 2+ = -1
        log_start_offset int64 5+ = -1
        record_errors [] 8+
          batch_index int32
          batch_index_error_message string? = null
        error_message string? 8+ = null
        current_leader {} 10+ tag 0
          leader_id int32 = -1
          leader_epoch int32 = -1
    throttle_time_ms int32 1+
    node_endpoints [] 10+ tag 0
      node_id int32
      host string
      port int32
      rack string? = null
    """,
)  # fmt: skip

FETCH = api(
    1, "Fetch", "4-18", flexible=12,
    request="""
    cluster_id string? 12+ tag 0 = null
    replica_id int32 0-14 = -1
    replica_state {} 15+ tag 1
      replica_id int32 = -1
      replica_epoch int64 = -1
    max_wait_ms int32
    min_bytes int32
    max_bytes int32 3+ = 0x7fffffff
    isolation_level int8 4+
    session_id int32 7+
    session_epoch int32 7+ = -1
    topics []
      topic string 0-12
      topic_id uuid 13+
      partitions []
        partition int32
        current_leader_epoch int32 9+ = -1
        fetch_offset int64
        last_fetched_epoch int32 12+ = -1
        log_start_offset int64 5+ = -1
        partition_max_bytes int32
        replica_directory_id uuid 17+ tag 0
        high_watermark int64 18+ tag 1 = 9223372036854775807
    forgotten_topics_data [] 7+
      topic string 7-12
      topic_id uuid 13+
      partitions []int32
    rack_id string 11+
    """,
    reply="""
    throttle_time_ms int32 1+
    error_code int16 7+
    session_id int32 7+
    responses []
      topic string 0-12
      topic_id uuid 13+
      partitions []
        partition_index int32
        error_code int16
        high_watermark int64
        last_stable_offset int64 4+ = -1
        log_start_offset int64 5+ = -1
        diverging_epoch {} 12+ tag 0
          epoch int32 = -1
          end_offset int64 = -1
        current_leader {} 12+ tag 1
          leader_id int32 = -1
          leader_epoch int32 = -1
        snapshot_id {} 12+ tag 2
          end_offset int64 = -1
          epoch int32 = -1
        aborted_transactions []? 4+
          producer_id int64
          first_offset int64
        preferred_read_replica int32 11+ = -1
        records records?
    node_endpoints [] 16+ tag 0
      node_id int32
      host string
      port int32
      rack string? = null
    """,
)  # fmt: skip

LIST_OFFSETS = api(
    2, "ListOffsets", "0-11", flexible=6,
    request="""
    replica_id int32
    isolation_level int8 2+
    topics []
      name string
      partitions []
        partition_index int32
        current_leader_epoch int32 4+ = -1
        timestamp int64
        max_num_offsets int32 0-0 = 1
    timeout_ms int32 10+
    """,
    reply="""
    throttle_time_ms int32 2+
    topics []
      name string
      partitions []
        partition_index int32
        error_code int16
        old_style_offsets []int64 0-0
        timestamp int64 1+ = -1
        offset int64 1+ = -1
        leader_epoch int32 4+ = -1
    """,
)  # fmt: skip

METADATA = api(
    3, "Metadata", "0-13", flexible=9,
    request="""
    topics []?1+
      topic_id uuid 10+
      name string?10+
    allow_auto_topic_creation bool 4+ = true
    include_cluster_authorized_operations bool 8-10
    include_topic_authorized_operations bool 8+
    """,
    reply="""
    throttle_time_ms int32 3+
    brokers []
      node_id int32
      host string
      port int32
      rack string? 1+ = null
    cluster_id string? 2+ = null
    controller_id int32 1+ = -1
    topics []
      error_code int16
      name string?12+
      topic_id uuid 10+
      is_internal bool 1+
      partitions []
        error_code int16
        partition_index int32
        leader_id int32
        leader_epoch int32 7+ = -1
        replica_nodes []int32
        isr_nodes []int32
        offline_replicas []int32 5+
      topic_authorized_operations int32 8+ = -2147483648
    cluster_authorized_operations int32 8-10 = -2147483648
    error_code int16 13+
    """,
)  # fmt: skip

OFFSET_FOR_LEADER_EPOCH = api(
    23, "OffsetForLeaderEpoch", "0-4", flexible=4,
    request="""
    replica_id int32 3+ = -2
    topics []
      topic string
      partitions []
        partition int32
        current_leader_epoch int32 2+ = -1
        leader_epoch int32
    """,
    reply="""
    throttle_time_ms int32 2+
    topics []
      topic string
      partitions []
        error_code int16
        partition int32
        leader_epoch int32 1+ = -1
        end_offset int64 = -1
    """,
)  # fmt: skip
