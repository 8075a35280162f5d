"""Remote procedure calls with pika by direct reply-to, one at a time: how long a round trip takes."""

from __future__ import annotations

import threading
import time

import pika


def serve(port: int, queue: str, count: int) -> None:
    """Answer `count` requests with what they say."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    for method, properties, body in channel.consume(queue, auto_ack=True):
        answer = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body, answer)
        assert method is not None
        if method.delivery_tag == count:
            break
    connection.close()


def round_trips(port: int, count: int) -> list[float]:
    """The seconds that each of `count` calls took."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    queue = channel.queue_declare("", auto_delete=True).method.queue
    server = threading.Thread(target=serve, args=(port, queue, count), daemon=True)
    server.start()
    answers: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda c, m, p, body: answers.append(body), auto_ack=True)
    took = []
    for number in range(count):
        request = b"%d" % number
        began = time.perf_counter()
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number))
        channel.basic_publish("", queue, request, properties)
        while not answers:
            connection.process_data_events(1)
        took.append(time.perf_counter() - began)
        assert answers.pop() == request
    server.join(10)
    connection.close()
    return took


def summary(took: list[float]) -> str:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(took)
    return f"p50 {ordered[len(took) // 2] * 1000:.2f} ms, p99 {ordered[len(took) * 99 // 100] * 1000:.2f} ms"
