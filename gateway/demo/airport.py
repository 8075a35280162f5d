"""The reader: follows one airport's flights over the native protocol, from a topic of its own.

Topics are created and bound here: `flights` takes everything in several partitions, split by the record key, which is
the name a flight was published under; `AIRPORT_TOPIC` takes what one airport's devices publish.
"""

from __future__ import annotations

import msgspec

from gateway.demo.crew import Report
from gateway.demo.flights import AIRPORT, Flight
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.blocking_consumer import BlockingConsumer

FLIGHTS_TOPIC = "flights"
FLIGHTS_PARTITIONS = 6
AIRPORT_TOPIC = f"flights-{AIRPORT.lower()}"
EXCHANGE = "amq.topic"
"""Where MQTT publishes; the `/` of its names are `.` there."""
RECORDS_MAX = 5_000
"""Most records in one report."""


def create_topics(server: str) -> None:
    """Create both topics and bind them."""
    with BlockingClient(server) as client:
        client.create_topic(FLIGHTS_TOPIC, partitions=FLIGHTS_PARTITIONS)
        client.bind_topic(FLIGHTS_TOPIC, EXCHANGE, "flights.#")
        client.create_topic(AIRPORT_TOPIC, partitions=1)
        client.bind_topic(AIRPORT_TOPIC, EXCHANGE, f"flights.{AIRPORT}.#")


def follow(report: Report, server: str) -> None:
    """The part of the job: read from the start and go on until ended. Reports (key, identity) of each record."""
    decode = msgspec.json.Decoder(Flight).decode
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(AIRPORT_TOPIC)
        while True:
            if records := consumer.fetch(RECORDS_MAX):
                report([((one.key or b"").decode(), decode(one.value or b"").id) for one in records])
