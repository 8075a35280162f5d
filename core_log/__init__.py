"""The log engine: partition logs of Kafka v2 record batches, group commit, cold reads and keyed stores.

It imports nothing else of the project; docs/architecture.md says what it owes the parts above it.
"""
