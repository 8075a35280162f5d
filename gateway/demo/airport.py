"""The reader: follows one airport's flights over the native protocol, from a topic of its own.

Topics are created and bound here: `flights` takes everything in several partitions, split by the record key, which is
the name a flight was published under; `AIRPORT_TOPIC` takes what one airport's devices publish.
"""

from __future__ import annotations

import msgspec

from core_log.record_batch import decode_columns
from gateway.demo.crew import Report
from gateway.demo.flights import AIRPORT, Flight
from protocols.native.blocking import BlockingClient

FLIGHTS_TOPIC = "flights"
FLIGHTS_PARTITIONS = 6
AIRPORT_TOPIC = f"flights-{AIRPORT.lower()}"
EXCHANGE = "amq.topic"
"""Where MQTT publishes; the `/` of its names are `.` there."""


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
    offset = 0
    with BlockingClient(server) as client:
        while True:
            for batch in client.fetch(AIRPORT_TOPIC, 0, offset).batches:
                columns = decode_columns(batch)
                rows = zip(columns.keys, columns.values, strict=True)
                report([((key or b"").decode(), decode(value or b"").id) for key, value in rows])
                offset = columns.offsets[-1] + 1
