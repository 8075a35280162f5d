"""Order by key with any number of workers: what pika consumers of a queue with `x-group-by` see."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, defaultdict

import pika
from pika.adapters.blocking_connection import BlockingConnection

from tests.support import BrokerProcess

WORKERS, KEYS, EACH = 12, 60, 25


def connect(broker: BrokerProcess) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


class Crew:
    """Workers that note what they have done before they say so; now and then one goes away with a message."""

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        self.broker = broker
        self.queue = queue
        self.lock = threading.Lock()
        self.done: dict[str, list[int]] = defaultdict(list)
        self.by: Counter[int] = Counter()
        self.left = KEYS * EACH

    def work(self, number: int) -> None:
        while True:
            connection = connect(self.broker)
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1 + number % 3)
            for at, (method, properties, body) in enumerate(channel.consume(self.queue, inactivity_timeout=0.05)):
                if method is not None and at == 20 + 3 * number:
                    break
                if method is not None:
                    with self.lock:
                        self.done[properties.headers["order"]].append(int(body))
                        self.by[number] += 1
                        self.left -= 1
                    channel.basic_ack(method.delivery_tag)
                if not self.left:
                    connection.close()
                    return
            connection.close()


def test_many_workers_and_every_key_in_order(shared_broker: BrokerProcess) -> None:
    queue = f"groups.{uuid.uuid4().hex}"
    connection = connect(shared_broker)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-group-by": "order"})
    for number in range(EACH):
        for key in range(KEYS):
            properties = pika.BasicProperties(delivery_mode=2, headers={"order": f"o{key}"})
            channel.basic_publish("", queue, str(number).encode(), properties)
    crew = Crew(shared_broker, queue)
    workers = [threading.Thread(target=crew.work, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert crew.done == {f"o{key}": list(range(EACH)) for key in range(KEYS)}
    assert len(crew.by) > 1
    connection.close()
