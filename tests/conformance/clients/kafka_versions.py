"""A version of a client of Kafka for Python, through what all versions have.

    python kafka_versions.py CLIENT HOST:PORT

It is run by the Python that this version of CLIENT was made for, with nothing but that installed. Records with keys and
headers go to a topic that is made on first use, with each codec; a consumer group reads and commits them, and goes on
where it was; offsets are found by time; where the version has transactions, one is aborted and one committed. Prints
what it did; any failure ends it with an error.
"""

import asyncio
import os
import sys
import time

COUNT = 20
PATIENCE_S = 30
BEGAN_MS = int(time.time() * 1000)


def name_of(what):
    """A name that nobody had before."""
    return f"versions-{what}-{BEGAN_MS}-{os.getpid()}"


def sample(count=COUNT):
    """(key, value, headers, timestamp in ms) of records."""
    return [
        (b"key %d" % (n % 3), b"value %d " % n * 10, [("h", b"\xff"), ("n", b"%d" % n)], BEGAN_MS - 100000 + n * 1000)
        for n in range(count)
    ]


def same(found, sent, what):
    """Fail where these differ."""
    assert found == sent, f"{what}: {len(found)} of {len(sent)}: {found[:2]!r}"


def kafka_python(server):
    """What it did."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    done = []
    for codec in (None, "gzip", "lz4"):
        topic, sent = name_of(codec or "plain"), sample()
        producer = KafkaProducer(bootstrap_servers=server, acks="all", compression_type=codec, linger_ms=20)
        futures = [producer.send(topic, value, key, headers, 0, at_ms) for key, value, headers, at_ms in sent]
        same([future.get(PATIENCE_S).offset for future in futures], list(range(COUNT)), codec)

        def read(count, topic=topic):
            consumer = KafkaConsumer(
                topic,
                bootstrap_servers=server,
                group_id=topic,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                consumer_timeout_ms=PATIENCE_S * 1000,
            )
            found = []
            for one in consumer:
                found.append((one.key, one.value, list(one.headers), one.timestamp))
                if len(found) == count:
                    break
            consumer.commit()
            consumer.close()
            return found

        same(read(COUNT), sent, codec)
        for key, value, headers, at_ms in sent[:5]:
            producer.send(topic, value, key, headers, 0, at_ms)
        producer.close()
        same(read(5), sent[:5], "after commit")
        done.append(codec or "plain")
    consumer, place = KafkaConsumer(bootstrap_servers=server), TopicPartition(topic, 0)
    same(consumer.end_offsets([place]), {place: COUNT + 5}, "end")
    same(consumer.offsets_for_times({place: sent[7][3]})[place].offset, 7, "by time")
    consumer.close()
    if "transactional_id" in KafkaProducer.DEFAULT_CONFIG:
        kafka_python_transactions(server)
        done.append("transactions")
    return done


def kafka_python_transactions(server):
    """One is aborted, one committed."""
    from kafka import KafkaConsumer, KafkaProducer

    topic = name_of("transactions")
    for body in (b"aborted", b"committed"):
        producer = KafkaProducer(bootstrap_servers=server, transactional_id=topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, body, partition=0).get(PATIENCE_S)
        (producer.commit_transaction if body == b"committed" else producer.abort_transaction)()
        producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=server,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        group_id=topic,
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    same(next(consumer).value, b"committed", "transaction")
    consumer.close()


def confluent(server):
    """What it did."""
    from confluent_kafka import Consumer, Producer, TopicPartition, libversion

    done = ["librdkafka " + libversion()[0]]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic, sent, offsets = name_of(codec), sample(), []
        options = {"bootstrap.servers": server, "compression.codec": codec, "linger.ms": 20, "acks": -1}
        if libversion()[0].startswith("0"):
            options["produce.offset.report"] = True  # of all records, not of the last of a batch
        try:
            producer = Producer(options)
        except Exception as error:
            done.append(f"without {codec}: {error}")
            continue

        def produce(records, topic=topic, producer=producer, offsets=offsets):
            def told(error, message):
                assert error is None, error
                offsets.append(message.offset())

            for key, value, headers, at_ms in records:
                producer.produce(topic, value, key, 0, on_delivery=told, timestamp=at_ms, headers=headers)
            assert producer.flush(PATIENCE_S) == 0

        def read(count, topic=topic, sent=sent):
            consumer = Consumer(
                {
                    "bootstrap.servers": server,
                    "group.id": topic,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                }
            )
            consumer.subscribe([topic])
            found, deadline = [], time.time() + PATIENCE_S
            while len(found) < count:
                assert time.time() < deadline, len(found)
                one = consumer.poll(1.0)
                if one is not None and one.error() is None:
                    found.append((one.key(), one.value(), one.headers(), one.timestamp()[1]))
            same(consumer.offsets_for_times([TopicPartition(topic, 0, sent[7][3])], 10)[0].offset, 7, "by time")
            same(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[0], 0, "start")
            consumer.commit(asynchronous=False)
            consumer.close()
            return found

        produce(sent)
        same(offsets, list(range(COUNT)), codec)
        same(read(COUNT), sent, codec)
        produce(sent[:5])
        same(read(5), sent[:5], "after commit")
        done.append(codec)
    if hasattr(Producer, "init_transactions"):
        confluent_transactions(server)
        done.append("transactions")
    return done


def confluent_transactions(server):
    """One is aborted, one committed."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = name_of("transactions")
    for body in (b"aborted", b"committed"):
        producer = Producer({"bootstrap.servers": server, "transactional.id": topic})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(topic, body, partition=0)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if body == b"committed" else producer.abort_transaction)(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": server, "group.id": topic, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    one = None
    while one is None or one.error() is not None:
        one = consumer.poll(PATIENCE_S)
    same(one.value(), b"committed", "transaction")
    consumer.close()


async def aiokafka(server):
    """What it did."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, __version__

    options = {"bootstrap_servers": server}
    if tuple(map(int, __version__.split(".")[:2])) < (0, 8):
        options["loop"] = asyncio.get_event_loop()
    done = []
    for codec in (None, "gzip", "lz4", "zstd"):
        topic, sent = name_of(codec or "plain"), sample()
        try:
            producer = AIOKafkaProducer(compression_type=codec, acks="all", linger_ms=20, **options)
        except (RuntimeError, ValueError):
            continue  # it does not know the codec, or has no library for it
        await producer.start()

        async def produce(records, topic=topic, producer=producer):
            futures = [
                await producer.send(topic, value, key, 0, timestamp_ms=at_ms, headers=headers)
                for key, value, headers, at_ms in records
            ]
            return [(await future).offset for future in futures]

        async def read(count, topic=topic, sent=sent):
            consumer = AIOKafkaConsumer(
                topic, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest", **options
            )
            await consumer.start()
            found = []
            while len(found) < count:
                one = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                found.append((one.key, one.value, list(one.headers), one.timestamp))
            place = TopicPartition(topic, 0)
            same((await consumer.offsets_for_times({place: sent[7][3]}))[place].offset, 7, "by time")
            await consumer.commit()
            await consumer.stop()
            return found

        same(await produce(sent), list(range(COUNT)), codec)
        same(await read(COUNT), sent, codec)
        await produce(sent[:5])
        same(await read(5), sent[:5], "after commit")
        await producer.stop()
        done.append(codec or "plain")
    topic = name_of("transactions")
    for body in (b"aborted", b"committed"):
        producer = AIOKafkaProducer(transactional_id=topic, **options)
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait(topic, body, partition=0)
        await (producer.commit_transaction() if body == b"committed" else producer.abort_transaction())
        await producer.stop()
    consumer = AIOKafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed", **options
    )
    await consumer.start()
    same((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value, b"committed", "transaction")
    await consumer.stop()
    return [*done, "transactions"]


if __name__ == "__main__":
    client, server = sys.argv[1:]
    if client == "aiokafka":
        done = asyncio.get_event_loop_policy().new_event_loop()
        asyncio.set_event_loop(done)
        done = done.run_until_complete(aiokafka(server))
    else:
        done = {"kafka-python": kafka_python, "confluent-kafka": confluent}[client](server)
    print(", ".join(done))
