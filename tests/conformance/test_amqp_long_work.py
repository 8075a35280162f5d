"""pika at work in the thread that should send heartbeats."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from tests.support import broker_process


@pytest.mark.parametrize("grace_s", [0, 600])
def test_work_that_is_longer_than_two_heartbeats(tmp_path: Path, grace_s: int) -> None:
    settings = tmp_path / "millrace.toml"
    settings.write_text(f"[amqp]\nbusy_grace_s = {grace_s}\n")
    with broker_process(tmp_path / "data", doors=("amqp",), arguments=("--config", str(settings))) as broker:
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, heartbeat=1)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("long")
        channel.basic_publish("", "long", b"work")
        method, _, _ = next(channel.consume("long"))
        time.sleep(2.8)

        def done() -> None:
            channel.basic_ack(method.delivery_tag)
            channel.cancel()

        if not grace_s:
            with pytest.raises(AMQPConnectionError):
                done()
            return
        done()
        assert channel.queue_declare("long", passive=True).method.message_count == 0
        connection.close()
