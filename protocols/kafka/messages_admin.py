"""Kafka's requests of who administers topics and brokers."""

from __future__ import annotations

from protocols.kafka.schema import api

CREATE_TOPICS = api(
    19, "CreateTopics", "0-7", flexible=5,
    request="""
    topics []
      name string
      num_partitions int32
      replication_factor int16
      assignments []
        partition_index int32
        broker_ids []int32
      configs []
        name string
        value string?
    timeout_ms int32 = 60000
    validate_only bool 1+
    """,
    reply="""
    throttle_time_ms int32 2+
    topics []
      name string
      topic_id uuid 7+
      error_code int16
      error_message string? 1+
      topic_config_error_code int16 5+ tag 0
      num_partitions int32 5+ = -1
      replication_factor int16 5+ = -1
      configs []? 5+
        name string
        value string?
        read_only bool
        config_source int8 = -1
        is_sensitive bool
    """,
)  # fmt: skip

DELETE_TOPICS = api(
    20, "DeleteTopics", "0-6", flexible=4,
    request="""
    topics [] 6+
      name string? = null
      topic_id uuid
    topic_names []string 0-5
    timeout_ms int32
    """,
    reply="""
    throttle_time_ms int32 1+
    responses []
      name string?6+
      topic_id uuid 6+
      error_code int16
      error_message string? 5+ = null
    """,
)  # fmt: skip

CREATE_PARTITIONS = api(
    37, "CreatePartitions", "0-3", flexible=2,
    request="""
    topics []
      name string
      count int32
      assignments []?
        broker_ids []int32
    timeout_ms int32
    validate_only bool
    """,
    reply="""
    throttle_time_ms int32
    results []
      name string
      error_code int16
      error_message string? = null
    """,
)  # fmt: skip

DELETE_RECORDS = api(
    21, "DeleteRecords", "0-2", flexible=2,
    request="""
    topics []
      name string
      partitions []
        partition_index int32
        offset int64
    timeout_ms int32
    """,
    reply="""
    throttle_time_ms int32
    topics []
      name string
      partitions []
        partition_index int32
        low_watermark int64
        error_code int16
    """,
)  # fmt: skip

DESCRIBE_CONFIGS = api(
    32, "DescribeConfigs", "0-4", flexible=4,
    request="""
    resources []
      resource_type int8
      resource_name string
      configuration_keys []string?
    include_synonyms bool 1+
    include_documentation bool 3+
    """,
    reply="""
    throttle_time_ms int32
    results []
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
      configs []
        name string
        value string?
        read_only bool
        config_source int8 1+ = -1
        is_default bool 0-0
        is_sensitive bool
        synonyms [] 1+
          name string
          value string?
          source int8
        config_type int8 3+
        documentation string? 3+
    """,
)  # fmt: skip

ALTER_CONFIGS = api(
    33, "AlterConfigs", "0-2", flexible=2,
    request="""
    resources []
      resource_type int8
      resource_name string
      configs []
        name string
        value string?
    validate_only bool
    """,
    reply="""
    throttle_time_ms int32
    responses []
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
    """,
)  # fmt: skip

INCREMENTAL_ALTER_CONFIGS = api(
    44, "IncrementalAlterConfigs", "0-1", flexible=1,
    request="""
    resources []
      resource_type int8
      resource_name string
      configs []
        name string
        config_operation int8
        value string?
    validate_only bool
    """,
    reply="""
    throttle_time_ms int32
    responses []
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
    """,
)  # fmt: skip

DESCRIBE_CLUSTER = api(
    60, "DescribeCluster", "0-2", flexible=0,
    request="""
    include_cluster_authorized_operations bool
    endpoint_type int8 1+ = 1
    include_fenced_brokers bool 2+
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    error_message string? = null
    endpoint_type int8 1+ = 1
    cluster_id string
    controller_id int32 = -1
    brokers []
      broker_id int32
      host string
      port int32
      rack string? = null
      is_fenced bool 2+
    cluster_authorized_operations int32 = -2147483648
    """,
)  # fmt: skip

ALTER_REPLICA_LOG_DIRS = api(
    34, "AlterReplicaLogDirs", "1-2", flexible=2,
    request="""
    dirs []
      path string
      topics []
        name string
        partitions []int32
    """,
    reply="""
    throttle_time_ms int32
    results []
      topic_name string
      partitions []
        partition_index int32
        error_code int16
    """,
)  # fmt: skip

DESCRIBE_LOG_DIRS = api(
    35, "DescribeLogDirs", "0-5", flexible=2,
    request="""
    topics []?
      topic string
      partitions []int32
    """,
    reply="""
    throttle_time_ms int32
    error_code int16 3+
    results []
      error_code int16
      log_dir string
      topics []
        name string
        partitions []
          partition_index int32
          partition_size int64
          offset_lag int64
          is_future_key bool
      total_bytes int64 4+ = -1
      usable_bytes int64 4+ = -1
      is_cordoned bool 5+
    """,
)  # fmt: skip

DESCRIBE_TOPIC_PARTITIONS = api(
    75, "DescribeTopicPartitions", "0", flexible=0,
    request="""
    topics []
      name string
    response_partition_limit int32 = 2000
    cursor {}? = null
      topic_name string
      partition_index int32
    """,
    reply="""
    throttle_time_ms int32
    topics []
      error_code int16
      name string?
      topic_id uuid
      is_internal bool
      partitions []
        error_code int16
        partition_index int32
        leader_id int32
        leader_epoch int32 = -1
        replica_nodes []int32
        isr_nodes []int32
        eligible_leader_replicas []int32?
        last_known_elr []int32?
        offline_replicas []int32
      topic_authorized_operations int32 = -2147483648
    next_cursor {}? = null
      topic_name string
      partition_index int32
    """,
)  # fmt: skip

ELECT_LEADERS = api(
    43, "ElectLeaders", "0-2", flexible=2,
    request="""
    election_type int8 1+
    topic_partitions []?
      topic string
      partitions []int32
    timeout_ms int32 = 60000
    """,
    reply="""
    throttle_time_ms int32
    error_code int16 1+
    replica_election_results []
      topic string
      partition_result []
        partition_id int32
        error_code int16
        error_message string?
    """,
)  # fmt: skip

ALTER_PARTITION_REASSIGNMENTS = api(
    45, "AlterPartitionReassignments", "0-1", flexible=0,
    request="""
    timeout_ms int32 = 60000
    allow_replication_factor_change bool 1+ = true
    topics []
      name string
      partitions []
        partition_index int32
        replicas []int32? = null
    """,
    reply="""
    throttle_time_ms int32
    allow_replication_factor_change bool 1+ = true
    error_code int16
    error_message string?
    responses []
      name string
      partitions []
        partition_index int32
        error_code int16
        error_message string?
    """,
)  # fmt: skip

LIST_PARTITION_REASSIGNMENTS = api(
    46, "ListPartitionReassignments", "0", flexible=0,
    request="""
    timeout_ms int32 = 60000
    topics []? = null
      name string
      partition_indexes []int32
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    error_message string?
    topics []
      name string
      partitions []
        partition_index int32
        replicas []int32
        adding_replicas []int32
        removing_replicas []int32
    """,
)  # fmt: skip

DESCRIBE_ACLS = api(
    29, "DescribeAcls", "0-3", flexible=2,
    request="""
    resource_type_filter int8
    resource_name_filter string?
    pattern_type_filter int8 1+ = 3
    principal_filter string?
    host_filter string?
    operation int8
    permission_type int8
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    error_message string?
    resources []
      resource_type int8
      resource_name string
      pattern_type int8 1+ = 3
      acls []
        principal string
        host string
        operation int8
        permission_type int8
    """,
)  # fmt: skip

CREATE_ACLS = api(
    30, "CreateAcls", "0-3", flexible=2,
    request="""
    creations []
      resource_type int8
      resource_name string
      resource_pattern_type int8 1+ = 3
      principal string
      host string
      operation int8
      permission_type int8
    """,
    reply="""
    throttle_time_ms int32
    results []
      error_code int16
      error_message string?
    """,
)  # fmt: skip

DELETE_ACLS = api(
    31, "DeleteAcls", "0-3", flexible=2,
    request="""
    filters []
      resource_type_filter int8
      resource_name_filter string?
      pattern_type_filter int8 1+ = 3
      principal_filter string?
      host_filter string?
      operation int8
      permission_type int8
    """,
    reply="""
    throttle_time_ms int32
    filter_results []
      error_code int16
      error_message string?
      matching_acls []
        error_code int16
        error_message string?
        resource_type int8
        resource_name string
        pattern_type int8 1+ = 3
        principal string
        host string
        operation int8
        permission_type int8
    """,
)  # fmt: skip

LIST_CONFIG_RESOURCES = api(
    74, "ListConfigResources", "0-1", flexible=0,
    request="""
    resource_types []int8 1+
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    config_resources []
      resource_name string
      resource_type int8 1+ = 16
    """,
)  # fmt: skip
