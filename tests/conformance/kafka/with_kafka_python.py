"""kafka-python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata

from tests.conformance.kafka.checks import PATIENCE_S, Record, until


class Member:
    """See `checks.Member`."""

    def __init__(self, server: dict[str, Any], group: str, topic: str) -> None:
        self.seen: list[bytes] = []
        self.has: set[int] = set()
        self._arguments = server, group, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        server, group, topic = self._arguments
        consumer = KafkaConsumer(
            topic, group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=500, **server
        )
        while not self._stop.is_set():
            # kafka-python 3.0 forgets an assignment that comes while a poll ends: few of them end.
            for records in consumer.poll(500).values():
                self.seen += [record.value for record in records]
            self.has = {one.partition for one in consumer.assignment()}
        consumer.close()
        self.has = set()

    def stop(self) -> None:
        """See `checks.Member`."""
        self._stop.set()
        self._thread.join(PATIENCE_S)


class KafkaPython:
    """See `checks.Client`; `login` are options of all its connections."""

    name = "kafka-python"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    null_headers = False

    def __init__(self, server: str, login: Mapping[str, str] = MappingProxyType({})) -> None:
        self._server: dict[str, Any] = {"bootstrap_servers": server, **login}
        self._admin = KafkaAdminClient(**self._server)

    def _consumer(self, **options: Any) -> Any:
        options |= self._server | {"enable_auto_commit": False}
        return KafkaConsumer(isolation_level="read_committed", **options)

    def produce(self, topic: str, records: Sequence[Record], codec: str = "none", partition: int = 0) -> list[int]:
        """See `checks.Client`."""
        producer = KafkaProducer(
            acks="all",
            linger_ms=20,
            compression_type=None if codec == "none" else codec,
            **self._server,
        )
        sent = [
            producer.send(topic, value, key, list(headers), partition, timestamp)
            for key, value, headers, timestamp in records
        ]
        found = [one.get(PATIENCE_S).offset for one in sent]
        producer.close()
        return found

    def read(self, topic: str, offset: int, count: int) -> list[Record]:
        """See `checks.Client`."""
        consumer, place, found = self._consumer(), TopicPartition(topic, 0), list[Any]()
        consumer.assign([place])
        consumer.seek(place, offset)
        until(
            lambda: found.extend(consumer.poll(1000, count - len(found)).get(place, [])) or len(found) == count,
            lambda: f"{len(found)} of {count}",
        )
        consumer.close()
        return [Record(one.key, one.value, list(one.headers), one.timestamp) for one in found]

    def end(self, topic: str) -> int:
        """See `checks.Client`."""
        consumer, place = self._consumer(), TopicPartition(topic, 0)
        found = consumer.end_offsets([place])[place]
        consumer.close()
        return int(found)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """See `checks.Client`."""
        consumer, place = self._consumer(), TopicPartition(topic, 0)
        found = consumer.offsets_for_times({place: timestamp_ms})[place]
        consumer.close()
        return None if found is None else int(found.offset)

    def member(self, group: str, topic: str) -> Member:
        """See `checks.Client`."""
        return Member(self._server, group, topic)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """See `checks.Client`."""
        consumer, place = self._consumer(group_id=group), TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
        consumer.close()

    def committed(self, group: str, topic: str) -> int | None:
        """See `checks.Client`."""
        consumer = self._consumer(group_id=group)
        found: int | None = consumer.committed(TopicPartition(topic, 0))
        consumer.close()
        return found

    def transact(
        self, name: str, topic: str, values: Sequence[bytes], group: str, source: str, offset: int, *, commit: bool
    ) -> None:
        """See `checks.Client`."""
        producer = KafkaProducer(transactional_id=name, **self._server)
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        producer.send_offsets_to_transaction({TopicPartition(source, 0): OffsetAndMetadata(offset, "", -1)}, group)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.close()

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        """See `checks.Client`."""
        self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])

    def partitions(self, topic: str) -> int:
        """See `checks.Client`."""
        return len(self._admin.describe_topics([topic])[0]["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        """See `checks.Client`."""
        self._admin.create_partitions({topic: NewPartitions(partitions)})

    def configure(self, topic: str, name: str, value: str) -> None:
        """See `checks.Client`."""
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])

    def config(self, topic: str) -> dict[str, str]:
        """See `checks.Client`."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (kind,) = self._admin.describe_configs([resource], config_filter="all").values()
        return {name: entry["value"] for name, entry in kind[topic].items()}

    def topics(self) -> set[str]:
        """See `checks.Client`."""
        return set(self._admin.list_topics())

    def delete_records(self, topic: str, offset: int) -> None:
        """See `checks.Client`."""
        self._admin.delete_records({TopicPartition(topic, 0): offset})

    def delete(self, topic: str) -> None:
        """See `checks.Client`."""
        self._admin.delete_topics([topic])

    def groups(self) -> set[str]:
        """See `checks.Client`."""
        return {one["group_id"] for one in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        """See `checks.Client`."""
        found: str = self._admin.describe_groups([group])[group]["group_state"]
        return found

    def delete_group(self, group: str) -> None:
        """See `checks.Client`."""
        self._admin.delete_groups([group])
