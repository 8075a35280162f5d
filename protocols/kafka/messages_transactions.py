"""Kafka's requests of idempotent and transactional producers."""

from __future__ import annotations

from protocols.kafka.schema import api

INIT_PRODUCER_ID = api(
    22, "InitProducerId", "0-6", flexible=2,
    request="""
    transactional_id string?
    transaction_timeout_ms int32
    producer_id int64 3+ = -1
    producer_epoch int16 3+ = -1
    enable2_pc bool 6+
    keep_prepared_txn bool 6+
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 = -1
    producer_epoch int16
    ongoing_txn_producer_id int64 6+ = -1
    ongoing_txn_producer_epoch int16 6+ = -1
    """,
)  # fmt: skip

ADD_PARTITIONS_TO_TXN = api(
    24, "AddPartitionsToTxn", "0-5", flexible=3,
    request="""
    transactions [] 4+
      transactional_id string
      producer_id int64
      producer_epoch int16
      verify_only bool
      topics []
        name string
        partitions []int32
    v3_and_below_transactional_id string 0-3
    v3_and_below_producer_id int64 0-3
    v3_and_below_producer_epoch int16 0-3
    v3_and_below_topics [] 0-3
      name string
      partitions []int32
    """,
    reply="""
    throttle_time_ms int32
    error_code int16 4+
    results_by_transaction [] 4+
      transactional_id string
      topic_results []
        name string
        results_by_partition []
          partition_index int32
          partition_error_code int16
    results_by_topic_v3_and_below [] 0-3
      name string
      results_by_partition []
        partition_index int32
        partition_error_code int16
    """,
)  # fmt: skip

ADD_OFFSETS_TO_TXN = api(
    25, "AddOffsetsToTxn", "0-4", flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    group_id string
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    """,
)  # fmt: skip

END_TXN = api(
    26, "EndTxn", "0-5", flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    committed bool
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 5+ = -1
    producer_epoch int16 5+ = -1
    """,
)  # fmt: skip

WRITE_TXN_MARKERS = api(
    27, "WriteTxnMarkers", "0-1", flexible=1,
    request="""
    markers []
      producer_id int64
      producer_epoch int16
      transaction_result bool
      topics []
        name string
        partition_indexes []int32
      coordinator_epoch int32
    """,
    reply="""
    markers []
      producer_id int64
      topics []
        name string
        partitions []
          partition_index int32
          error_code int16
    """,
)  # fmt: skip

TXN_OFFSET_COMMIT = api(
    28, "TxnOffsetCommit", "0-5", flexible=3,
    request="""
    transactional_id string
    group_id string
    producer_id int64
    producer_epoch int16
    generation_id int32 3+ = -1
    member_id string 3+
    group_instance_id string? 3+ = null
    topics []
      name string
      partitions []
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 2+ = -1
        committed_metadata string?
    """,
    reply="""
    throttle_time_ms int32
    topics []
      name string
      partitions []
        partition_index int32
        error_code int16
    """,
)  # fmt: skip

DESCRIBE_PRODUCERS = api(
    61, "DescribeProducers", "0", flexible=0,
    request="""
    topics []
      name string
      partition_indexes []int32
    """,
    reply="""
    throttle_time_ms int32
    topics []
      name string
      partitions []
        partition_index int32
        error_code int16
        error_message string? = null
        active_producers []
          producer_id int64
          producer_epoch int32
          last_sequence int32 = -1
          last_timestamp int64 = -1
          coordinator_epoch int32
          current_txn_start_offset int64 = -1
    """,
)  # fmt: skip

DESCRIBE_TRANSACTIONS = api(
    65, "DescribeTransactions", "0", flexible=0,
    request="""
    transactional_ids []string
    """,
    reply="""
    throttle_time_ms int32
    transaction_states []
      error_code int16
      transactional_id string
      transaction_state string
      transaction_timeout_ms int32
      transaction_start_time_ms int64
      producer_id int64
      producer_epoch int16
      topics []
        topic string
        partitions []int32
    """,
)  # fmt: skip

LIST_TRANSACTIONS = api(
    66, "ListTransactions", "0-2", flexible=0,
    request="""
    state_filters []string
    producer_id_filters []int64
    duration_filter int64 1+ = -1
    transactional_id_pattern string? 2+ = null
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    unknown_state_filters []string
    transaction_states []
      transactional_id string
      producer_id int64
      transaction_state string
    """,
)  # fmt: skip
