"""A process of `kafka_rounds`: copies what it consumes from one topic to another, batch by batch in transactions.

    python -m tests.faults.kafka_worker SERVERS NAME SEED

It goes on until it is killed, or ends when its transactional id is another's, or the client library does not return:
librdkafka 2.16 that bootstraps anew, as it does when all brokers are gone, waits for ever in
`send_offsets_to_transaction` for the handle of a broker that it has let go. So it is told not to.
"""

from __future__ import annotations

import random
import signal
import sys
from typing import Any

import confluent_kafka

SOURCE, COPIES, GROUP = "source", "copies", "copy"
TRANSACTION_TIMEOUT_MS = 4000
SESSION_TIMEOUT_MS = 3000
PATIENCE_S = 10.0
HUNG_S = 15
ABORTED = 0.1
"""This part of the transactions is given up by the worker itself."""


def worker(servers: str, name: str, dice: random.Random) -> None:
    """Copy for ever. Raises KafkaException, when it has to begin anew."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "log_level": 0,
            "metadata.recovery.strategy": "none",
            "group.id": GROUP,
            "group.instance.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
        }
    )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "log_level": 0,
            "metadata.recovery.strategy": "none",
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
        }
    )
    try:
        signal.alarm(HUNG_S)
        producer.init_transactions(PATIENCE_S)
        consumer.subscribe([SOURCE])
        while True:
            signal.alarm(HUNG_S)
            messages: list[Any] = consumer.consume(dice.randrange(1, 200), 0.2)
            for one in messages:
                if one.error() is not None and one.error().fatal():
                    raise confluent_kafka.KafkaException(one.error())
            taken = [one for one in messages if one.error() is None]
            if taken and not _copy(consumer, producer, taken, give_up=dice.random() < ABORTED):
                _go_back(consumer)
    finally:
        consumer.close()


def _copy(consumer: Any, producer: Any, taken: list[Any], *, give_up: bool) -> bool:
    """One transaction; False: it was aborted. Raises KafkaException."""
    try:
        producer.begin_transaction()
        for one in taken:
            producer.produce(COPIES, one.value(), key=one.value())
        ends: dict[tuple[str, int], int] = {}
        for one in taken:
            ends[one.topic(), one.partition()] = one.offset() + 1
        offsets = [confluent_kafka.TopicPartition(*place, offset) for place, offset in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        if give_up:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
            return False
        producer.commit_transaction(PATIENCE_S)
        return True
    except confluent_kafka.KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(PATIENCE_S)
        return False


def _go_back(consumer: Any) -> None:
    """To where the group stands."""
    for place in consumer.committed(consumer.assignment(), PATIENCE_S):
        offset = place.offset if place.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
        consumer.seek(confluent_kafka.TopicPartition(place.topic, place.partition, offset))


def main() -> None:
    """See the module."""
    servers, name, seed = sys.argv[1:]
    dice = random.Random(int(seed))
    while True:
        try:
            worker(servers, name, dice)
        except confluent_kafka.KafkaException as failed:
            error = failed.args[0]
            print(f"{name}: {error}", flush=True)
            if error.code() in (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError._FATAL):
                return


if __name__ == "__main__":
    main()
