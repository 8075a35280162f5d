"""The workers: pika consumers that share the queue of delayed flights and acknowledge what they have handled.

A worker acknowledges all it has taken so far with one `basic.ack(multiple)` when `ACK_EVERY` are handled or the queue
has nothing more for the moment. What it reports is acknowledged already.
"""

from __future__ import annotations

import msgspec
import pika

from gateway.demo.crew import Report
from gateway.demo.flights import Flight

QUEUE = "delayed-flights"
BINDING = "flights.*.*.delayed"
PREFETCH = 300
ACK_EVERY = 100
IDLE_S = 0.1


def connect(port: int) -> pika.BlockingConnection:
    """A connection to the AMQP door."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def declare(port: int) -> None:
    """Create the durable queue and bind it to the exchange that MQTT publishes into."""
    with connect(port) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_bind(QUEUE, "amq.topic", BINDING)


def messages_left(port: int) -> int:
    """How many messages still wait in the queue."""
    with connect(port) as connection:
        return int(connection.channel().queue_declare(QUEUE, passive=True).method.message_count)


def work(report: Report, port: int) -> None:
    """The part of the job: handle flights until ended. Reports the identities of those handled and acknowledged."""
    decode = msgspec.json.Decoder(Flight).decode
    handled: list[int] = []
    with connect(port) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        last_tag = 0
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=IDLE_S):
            if method is not None:
                flight = decode(body)
                if not flight.delayed:
                    raise ValueError(f"flight {flight.id} is not delayed, but came through {BINDING}")
                handled.append(flight.id)
                last_tag = method.delivery_tag
            if handled and (method is None or len(handled) >= ACK_EVERY):
                channel.basic_ack(last_tag, multiple=True)
                report(handled)
                handled = []
