"""aiokafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.conformance.kafka.checks import PATIENCE_S, Lacking, Record


class Member:
    """See `checks.Member`."""

    def __init__(self, server: dict[str, Any], group: str, topic: str) -> None:
        self.seen: list[bytes] = []
        self.has: set[int] = set()
        self._arguments = server, group, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        server, group, topic = self._arguments
        consumer = AIOKafkaConsumer(
            topic, group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=500, **server
        )
        await consumer.start()
        while not self._stop.is_set():
            for records in (await consumer.getmany(timeout_ms=50)).values():
                self.seen += [record.value for record in records]
            self.has = {one.partition for one in consumer.assignment()}
        await consumer.stop()
        self.has = set()

    def stop(self) -> None:
        """See `checks.Member`."""
        self._stop.set()
        self._thread.join(PATIENCE_S)


class AioKafka:
    """See `checks.Client`: each call is a program with an event loop of its own.

    `login` are options of all its connections.
    """

    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    null_headers = True

    def __init__(self, server: str, login: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._server: dict[str, Any] = {"bootstrap_servers": server, **login}

    def _with_producer(self, work: Any, **options: Any) -> Any:
        async def run() -> Any:
            async with AIOKafkaProducer(**self._server, **options) as producer:
                return await work(producer)

        return asyncio.run(run())

    def _with_consumer(self, work: Any, **options: Any) -> Any:
        async def run() -> Any:
            options.update(self._server, enable_auto_commit=False)
            async with AIOKafkaConsumer(isolation_level="read_committed", **options) as consumer:
                return await work(consumer)

        return asyncio.run(run())

    def _with_admin(self, work: Any) -> Any:
        async def run() -> Any:
            client = AIOKafkaAdminClient(**self._server)
            await client.start()
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(run())

    def produce(self, topic: str, records: Sequence[Record], codec: str = "none", partition: int = 0) -> list[int]:
        """See `checks.Client`."""

        async def work(producer: Any) -> list[int]:
            sent = [
                await producer.send(topic, value, key, partition, timestamp, list(headers))
                for key, value, headers, timestamp in records
            ]
            return [(await one).offset for one in sent]

        options = {"compression_type": None if codec == "none" else codec, "enable_idempotence": True, "linger_ms": 20}
        found: list[int] = self._with_producer(work, **options)
        return found

    def read(self, topic: str, offset: int, count: int) -> list[Record]:
        """See `checks.Client`."""

        async def work(consumer: Any) -> list[Any]:
            place, found = TopicPartition(topic, 0), list[Any]()
            consumer.assign([place])
            consumer.seek(place, offset)
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    got = await consumer.getmany(timeout_ms=1000, max_records=count - len(found))
                    found += got.get(place, [])
            return found

        return [Record(one.key, one.value, list(one.headers), one.timestamp) for one in self._with_consumer(work)]

    def end(self, topic: str) -> int:
        """See `checks.Client`."""
        place = TopicPartition(topic, 0)
        return int(self._with_consumer(lambda consumer: consumer.end_offsets([place]))[place])

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """See `checks.Client`."""
        place = TopicPartition(topic, 0)
        found = self._with_consumer(lambda consumer: consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else int(found.offset)

    def member(self, group: str, topic: str) -> Member:
        """See `checks.Client`."""
        return Member(self._server, group, topic)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """See `checks.Client`."""

        async def work(consumer: Any) -> None:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.commit({place: offset})

        self._with_consumer(work, group_id=group)

    def committed(self, group: str, topic: str) -> int | None:
        """See `checks.Client`."""

        async def work(consumer: Any) -> Any:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            return await consumer.committed(place)

        found: int | None = self._with_consumer(work, group_id=group)
        return found

    def transact(
        self, name: str, topic: str, values: Sequence[bytes], group: str, source: str, offset: int, *, commit: bool
    ) -> None:
        """See `checks.Client`."""

        async def work(producer: Any) -> None:
            await producer.begin_transaction()
            for value in values:
                await producer.send(topic, value)
            await producer.send_offsets_to_transaction({TopicPartition(source, 0): offset}, group)
            await producer.flush()
            await (producer.commit_transaction() if commit else producer.abort_transaction())

        self._with_producer(work, transactional_id=name)

    @staticmethod
    def _expect(found: Any) -> None:
        """What the library gives back without looking into it. Raises AssertionError with an error's code."""
        outcomes = getattr(found, "topic_errors", None) or getattr(found, "topic_error_codes", [])
        assert all(code == 0 for _, code, *_ in outcomes), outcomes

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        """See `checks.Client`."""
        new = NewTopic(topic, partitions, 1, topic_configs=config)
        self._expect(self._with_admin(lambda client: client.create_topics([new])))

    def partitions(self, topic: str) -> int:
        """See `checks.Client`."""
        return len(self._with_admin(lambda client: client.describe_topics([topic]))[0]["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        """See `checks.Client`."""
        self._expect(self._with_admin(lambda client: client.create_partitions({topic: NewPartitions(partitions)})))

    def configure(self, topic: str, name: str, value: str) -> None:
        """See `checks.Client`."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (found,) = self._with_admin(lambda client: client.alter_configs([resource]))
        assert found.resources[0][0] == 0, found

    def config(self, topic: str) -> dict[str, str]:
        """See `checks.Client`."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (found,) = self._with_admin(lambda client: client.describe_configs([resource]))
        return {entry[0]: entry[1] for entry in found.resources[0][4]}

    def topics(self) -> set[str]:
        """See `checks.Client`."""
        return set(self._with_admin(lambda client: client.list_topics()))

    def delete_records(self, topic: str, offset: int) -> None:
        """See `checks.Client`."""
        place = TopicPartition(topic, 0)
        wanted = {place: RecordsToDelete(before_offset=offset)}
        assert self._with_admin(lambda client: client.delete_records(wanted))[place] == offset

    def delete(self, topic: str) -> None:
        """See `checks.Client`."""
        self._expect(self._with_admin(lambda client: client.delete_topics([topic])))

    def groups(self) -> set[str]:
        """See `checks.Client`."""
        return {name for name, *_ in self._with_admin(lambda client: client.list_consumer_groups())}

    def group_state(self, group: str) -> str:
        """See `checks.Client`."""
        (found,) = self._with_admin(lambda client: client.describe_consumer_groups([group]))
        return str(found.groups[0][2])

    def delete_group(self, group: str) -> None:
        """See `checks.Client`."""
        raise Lacking("deleting groups")
