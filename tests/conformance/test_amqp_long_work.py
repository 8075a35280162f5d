"""pika at work in the thread that should send heartbeats."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from tests.support import broker_process


class Worker:
    """Has taken a message, and says nothing until it has finished."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=1))
        self.channel = self.connection.channel()
        self.channel.queue_declare("long")
        self.channel.basic_publish("", "long", b"work")
        method, _, _ = next(self.channel.consume("long"))
        self._tag = method.delivery_tag

    def finish(self) -> None:
        """Acknowledge and stop."""
        self.channel.basic_ack(self._tag)
        self.channel.cancel()

    def until_given_up(self) -> None:
        """Wait until the broker has taken the message back."""
        deadline = time.monotonic() + 20
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port)) as other:
            channel = other.channel()
            while not channel.queue_declare("long", passive=True).method.message_count:
                assert time.monotonic() < deadline


def test_work_that_is_longer_than_three_heartbeats(tmp_path: Path) -> None:
    """Without and with a grace, side by side: each is a broker of its own, and most of this is waiting."""
    with ExitStack() as stack:
        taken = {}
        for grace_s in (0, 600):
            settings = tmp_path / f"{grace_s}.toml"
            settings.write_text(f"[amqp]\nbusy_grace_s = {grace_s}\n")
            arguments = ("--config", str(settings))
            broker = stack.enter_context(broker_process(tmp_path / f"data-{grace_s}", arguments=arguments))
            taken[grace_s] = Worker(broker.amqp_port)
        time.sleep(2.8)
        taken[0].until_given_up()
        with pytest.raises(AMQPConnectionError):
            taken[0].finish()
        taken[600].finish()
        assert taken[600].channel.queue_declare("long", passive=True).method.message_count == 0
        taken[600].connection.close()
