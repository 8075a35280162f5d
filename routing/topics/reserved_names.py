"""Names that no topic can have: they stand for logs of the broker's own.

Other names that begin with `__` are names as any: heartbeats of Debezium and metrics of Cruise Control are topics.
"""

from __future__ import annotations

QUEUES, OFFSETS, TRANSACTIONS, RETAINED = "__queues", "__offsets", "__transactions", "__retained"
"""What operators call the homes of queues, group offsets, transactions that were decided, and retained messages."""
_KAFKAS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
"""Kafka's clients take these for what they are in Kafka."""
RESERVED = frozenset((QUEUES, OFFSETS, TRANSACTIONS, RETAINED, *_KAFKAS))
