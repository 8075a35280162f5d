"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import confluent_kafka
from confluent_kafka import admin

from tests.conformance.kafka.checks import PATIENCE_S, Record, until


class Member:
    """See `checks.Member`."""

    def __init__(self, options: dict[str, Any], topic: str) -> None:
        self.seen: list[bytes] = []
        self.has: set[int] = set()
        self._options, self._topic = options, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(self._options)
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            for one in consumer.consume(100, 0.05):
                assert one.error() is None, one.error()
                self.seen.append(one.value())
            self.has = {one.partition for one in consumer.assignment()}
        consumer.close()
        self.has = set()

    def stop(self) -> None:
        """See `checks.Member`."""
        self._stop.set()
        self._thread.join(PATIENCE_S)


class Confluent:
    """See `checks.Client`; `protocol` is how groups are divided: classic, or consumer (by the broker).

    `login` are options of all its connections.
    """

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    null_headers = True

    def __init__(self, server: str, protocol: str, login: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = f"confluent-{protocol}"
        self._protocol = protocol
        self._server = {"bootstrap.servers": server, **login}
        self._admin = admin.AdminClient(self._server)

    def _consumer(self, **options: Any) -> Any:
        return confluent_kafka.Consumer(
            self._server | {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            | {name.replace("_", "."): value for name, value in options.items()}
        )  # fmt: skip

    @staticmethod
    def _result(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(PATIENCE_S)

    def produce(self, topic: str, records: Sequence[Record], codec: str = "none", partition: int = 0) -> list[int]:
        """See `checks.Client`."""
        options = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 20}
        producer, offsets = confluent_kafka.Producer(self._server | options), list[int]()

        def report(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for key, value, headers, timestamp in records:
            producer.produce(topic, value, key, partition, report, timestamp=timestamp, headers=headers)
        assert producer.flush(PATIENCE_S) == 0
        return offsets

    def read(self, topic: str, offset: int, count: int) -> list[Record]:
        """See `checks.Client`."""
        consumer, found = self._consumer(), list[Any]()
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        until(lambda: found.extend(consumer.consume(count - len(found), 1)) or len(found) == count, lambda: found)
        consumer.close()
        return [Record(one.key(), one.value(), one.headers() or [], one.timestamp()[1]) for one in found]

    def end(self, topic: str) -> int:
        """See `checks.Client`."""
        consumer = self._consumer()
        _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), PATIENCE_S)
        consumer.close()
        return int(end)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """See `checks.Client`."""
        consumer = self._consumer()
        (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, timestamp_ms)], PATIENCE_S)
        consumer.close()
        return None if found.offset == confluent_kafka.OFFSET_END else int(found.offset)

    def member(self, group: str, topic: str) -> Member:
        """See `checks.Client`."""
        options = {"group.id": group, "group.protocol": self._protocol, "auto.offset.reset": "earliest"}
        return Member(self._server | options, topic)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """See `checks.Client`."""
        consumer = self._consumer(group_id=group)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    def committed(self, group: str, topic: str) -> int | None:
        """See `checks.Client`."""
        consumer = self._consumer(group_id=group)
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE_S)
        consumer.close()
        return None if found.offset < 0 else int(found.offset)

    def transact(
        self, name: str, topic: str, values: Sequence[bytes], group: str, source: str, offset: int, *, commit: bool
    ) -> None:
        """See `checks.Client`."""
        producer, consumer = (
            confluent_kafka.Producer(self._server | {"transactional.id": name}),
            self._consumer(group_id=group),
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        place = confluent_kafka.TopicPartition(source, 0, offset)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), PATIENCE_S)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
        consumer.close()

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        """See `checks.Client`."""
        self._result(self._admin.create_topics([admin.NewTopic(topic, partitions, 1, config=config)]))

    def partitions(self, topic: str) -> int:
        """See `checks.Client`."""
        return len(self._result(self._admin.describe_topics(confluent_kafka.TopicCollection([topic]))).partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """See `checks.Client`."""
        self._result(self._admin.create_partitions([admin.NewPartitions(topic, partitions)]))

    def configure(self, topic: str, name: str, value: str) -> None:
        """See `checks.Client`."""
        entry = admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        changed = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._result(self._admin.incremental_alter_configs([changed]))

    def config(self, topic: str) -> dict[str, str]:
        """See `checks.Client`."""
        found = self._result(self._admin.describe_configs([admin.ConfigResource(admin.ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in found.items()}

    def topics(self) -> set[str]:
        """See `checks.Client`."""
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def delete_records(self, topic: str, offset: int) -> None:
        """See `checks.Client`."""
        found = self._result(self._admin.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)]))
        assert found.low_watermark == offset

    def delete(self, topic: str) -> None:
        """See `checks.Client`."""
        self._result(self._admin.delete_topics([topic]))

    def groups(self) -> set[str]:
        """See `checks.Client`."""
        return {one.group_id for one in self._admin.list_consumer_groups().result(PATIENCE_S).valid}

    def group_state(self, group: str) -> str:
        """See `checks.Client`."""
        return str(self._result(self._admin.describe_consumer_groups([group])).state.name)

    def delete_group(self, group: str) -> None:
        """See `checks.Client`."""
        self._result(self._admin.delete_consumer_groups([group]))
