"""Kafka's requests about what users log in with, and how much they may do."""

from __future__ import annotations

from protocols.kafka.schema import api

DESCRIBE_USER_SCRAM_CREDENTIALS = api(
    50, "DescribeUserScramCredentials", "0", flexible=0,
    request="""
    users []?
      name string
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    error_message string?
    results []
      user string
      error_code int16
      error_message string?
      credential_infos []
        mechanism int8
        iterations int32
    """,
)  # fmt: skip

ALTER_USER_SCRAM_CREDENTIALS = api(
    51, "AlterUserScramCredentials", "0", flexible=0,
    request="""
    deletions []
      name string
      mechanism int8
    upsertions []
      name string
      mechanism int8
      iterations int32
      salt bytes
      salted_password bytes
    """,
    reply="""
    throttle_time_ms int32
    results []
      user string
      error_code int16
      error_message string?
    """,
)  # fmt: skip

DESCRIBE_CLIENT_QUOTAS = api(
    48, "DescribeClientQuotas", "0-1", flexible=1,
    request="""
    components []
      entity_type string
      match_type int8
      match string?
    strict bool
    """,
    reply="""
    throttle_time_ms int32
    error_code int16
    error_message string?
    entries []?
      entity []
        entity_type string
        entity_name string?
      values []
        key string
        value float64
    """,
)  # fmt: skip
