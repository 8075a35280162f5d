"""Kafka's requests that a connection begins with."""

from __future__ import annotations

from protocols.kafka.schema import api

API_VERSIONS = api(
    18, "ApiVersions", "0-4", flexible=3,
    request="""
    client_software_name string 3+
    client_software_version string 3+
    """,
    reply="""
    error_code int16
    api_keys []
      api_key int16
      min_version int16
      max_version int16
    throttle_time_ms int32 1+
    supported_features [] 3+ tag 0
      name string
      min_version int16
      max_version int16
    finalized_features_epoch int64 3+ tag 1 = -1
    finalized_features [] 3+ tag 2
      name string
      max_version_level int16
      min_version_level int16
    zk_migration_ready bool 3+ tag 3
    """,
)  # fmt: skip

SASL_HANDSHAKE = api(
    17, "SaslHandshake", "0-1", flexible=None,
    request="""
    mechanism string
    """,
    reply="""
    error_code int16
    mechanisms []string
    """,
)  # fmt: skip

SASL_AUTHENTICATE = api(
    36, "SaslAuthenticate", "0-2", flexible=2,
    request="""
    auth_bytes bytes
    """,
    reply="""
    error_code int16
    error_message string?
    auth_bytes bytes
    session_lifetime_ms int64 1+
    """,
)  # fmt: skip
