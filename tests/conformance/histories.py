"""What is known of dead letters when they arrive, as RabbitMQ tells it (`histories.json`) and as we do.

python -m tests.conformance.histories check     whether the table is still what an installed RabbitMQ tells
python -m tests.conformance.histories record    ask an installed RabbitMQ anew and write the table
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from pprint import pformat
from typing import Any

import pika
import pika.data
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from benchmarks.peers import rabbitmq, rabbitmq_installed

Properties = pika.BasicProperties

TABLE = Path(__file__).with_name("histories.json")


def connect(port: int) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = False, wait_s: float = 5) -> tuple[Any, Any, bytes]:
    """The next message of a queue, waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, f"nothing in {queue}"
        time.sleep(0.01)


class Letters:
    """Runs scenarios against a broker; `found` has what arrived, as plain values that can be compared.

    Values of tables keep the letter of their type on the wire. Times only say whether they are about now.
    """

    def __init__(self, port: int) -> None:
        self.found: dict[str, Any] = {}
        decode = pika.data.decode_value

        def with_type(encoded: bytes, offset: int) -> tuple[Any, int]:
            kind = encoded[offset : offset + 1].decode()
            value, end = decode(encoded, offset)
            if kind == "T":
                value = abs(value.timestamp() - time.time()) < 60
            if kind == "l":
                value = int(value)
            return (value if kind in "FA" else (kind, value)), end

        pika.data.decode_value = with_type
        self.restore = lambda: setattr(pika.data, "decode_value", decode)
        self.connection = connect(port)
        self.channel = self.connection.channel()
        self.channel.exchange_declare("letters", "fanout")
        self.channel.exchange_declare("letters.in", "topic")
        self.channel.queue_declare("letters.dead", exclusive=True)
        self.channel.queue_bind("letters.dead", "letters")

    def queue(self, name: str, key: str = "", **arguments: Any) -> str:
        """Declare a queue of the scenarios."""
        arguments = {f"x-{part.replace('_', '-')}": value for part, value in arguments.items()}
        self.channel.queue_declare(
            name, durable="x-queue-type" in arguments, exclusive="x-queue-type" not in arguments, arguments=arguments
        )
        if key:
            self.channel.queue_bind(name, "letters.in", key)
        return name

    def arrived(self, scenario: str, queue: str = "letters.dead") -> None:
        """Note the next message of a queue."""
        method, properties, body = get(self.channel, queue, auto_ack=True)
        fields = {part: value for part, value in vars(properties).items() if value is not None}
        fields["headers"] = headers = dict(properties.headers or {})
        for part in ("queue", "reason", "exchange"):
            headers.pop(f"x-last-death-{part}", None)  # RabbitMQ 3.13 and later
        self.found[scenario] = [method.exchange, method.routing_key, method.redelivered, fields, body]

    def reject(self, queue: str) -> None:
        """Refuse the next message of a queue."""
        method, _, _ = get(self.channel, queue)
        self.channel.basic_reject(method.delivery_tag, requeue=False)


def scenarios(letters: Letters) -> None:
    """Everything that is compared."""
    channel, queue, arrived = letters.channel, letters.queue, letters.arrived
    queue("rejected", "k.#", dead_letter_exchange="letters")
    rich = Properties(
        content_type="text/plain", headers={"h": 1, "big": 1 << 40, "z": b"\xff", "t": {"x": [1, "y"]}, "CC": ["k.2"]},
        expiration="60000", message_id="m", priority=3, delivery_mode=2, timestamp=5, app_id="ap", user_id="guest",
        correlation_id="c", reply_to="r", type="t",
    )  # fmt: skip
    channel.basic_publish("letters.in", "k.1", b"rich", rich)
    letters.reject("rejected")
    arrived("rejected, with CC")
    queue("keyed", dead_letter_exchange="letters", dead_letter_routing_key="own")
    channel.basic_publish("", "keyed", b"keyed", Properties(headers={"CC": ["nowhere"]}))
    letters.reject("keyed")
    arrived("under another key")
    queue("short", dead_letter_exchange="letters", message_ttl=20)
    for scenario, properties in {
        "expired": Properties(),
        "expired by itself": Properties(expiration="5", headers={}),
        "no history": Properties(headers={"x-death": "text"}),
        "an odd history": Properties(headers={"x-death": [{"queue": "short", "reason": "expired", "count": 7}]}),
        "another history": Properties(headers={"x-death": [{"queue": "q", "reason": "expired", "n": 1 << 40}]}),
    }.items():
        channel.basic_publish("", "short", b"x", properties)
        arrived(scenario)
    queue("one", dead_letter_exchange="letters", max_length=1)
    channel.basic_publish("", "one", b"first")
    channel.basic_publish("", "one", b"second")
    arrived("too many")
    queue("there", dead_letter_exchange="", dead_letter_routing_key="back", message_ttl=20)
    queue("back", dead_letter_exchange="", dead_letter_routing_key="there")
    channel.basic_publish("", "back", b"round")
    for turn in range(3):
        letters.reject("back")
        time.sleep(0.05)
        method, properties, _ = get(channel, "back")
        letters.found[f"round {turn}"] = [properties.headers["x-death"], properties.headers["x-first-death-queue"]]
        channel.basic_nack(method.delivery_tag, requeue=True)
    queue("itself", dead_letter_exchange="", dead_letter_routing_key="itself", message_ttl=20)
    channel.basic_publish("", "itself", b"gone")
    queue("missing", dead_letter_exchange="letters.missing", message_ttl=20)
    channel.basic_publish("", "missing", b"gone")
    time.sleep(0.2)
    for dropped in ("itself", "missing"):
        letters.found[f"dropped by {dropped}"] = channel.queue_declare(dropped, passive=True).method.message_count
    queue("limited", dead_letter_exchange="letters", queue_type="quorum", delivery_limit=2)
    try:
        channel.basic_publish("", "limited", b"poison", Properties(headers={"h": 1}))
        for turn in range(3):
            method, properties, _ = get(channel, "limited")
            count = properties.headers.get("x-delivery-count", ("l", 0))
            letters.found[f"delivery {turn}"] = [method.redelivered, count, properties.headers["h"]]
            channel.basic_nack(method.delivery_tag, requeue=True)
        arrived("delivered too often")
    finally:
        channel.queue_delete("limited")


def found_at(port: int) -> dict[str, str]:
    """What the broker at `port` tells, by scenario, as text that is equal where it is."""
    letters = Letters(port)
    try:
        scenarios(letters)
        letters.channel.exchange_delete("letters")
        letters.channel.exchange_delete("letters.in")
        letters.connection.close()
    finally:
        letters.restore()
    return {scenario: pformat(found, width=100, sort_dicts=True) for scenario, found in letters.found.items()}


def read_table() -> dict[str, str]:
    """What RabbitMQ told."""
    table: dict[str, str] = json.loads(TABLE.read_text())
    return table


def main(command: str) -> int:
    """See the module; the exit code is 1 if the table is wrong, 2 if that cannot be told."""
    if not rabbitmq_installed():
        print("RabbitMQ is not installed")
        return 2
    with rabbitmq() as (port, _):
        theirs = found_at(port)
    if command == "record":
        TABLE.write_text(json.dumps(theirs, indent=1) + "\n")
        return 0
    wrong = [name for name, found in read_table().items() if theirs.get(name) != found]
    print(f"{len(wrong)} of {len(theirs)} histories are others", *wrong, sep="\n    ")
    return 1 if wrong or list(theirs) != list(read_table()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["check"]))
