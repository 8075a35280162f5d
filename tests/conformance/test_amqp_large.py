"""Large messages through a real client: as large as RabbitMQ may be told to take them, on disk and back after a crash.

The largest takes a while: it is part of `python -m tests.conformance`, not of the suite.
"""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.support import broker_process

MIB = 1 << 20
LIMIT = 128 * MIB
DEFAULT_LIMIT = 16 * MIB
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def body_of(size: int) -> bytes:
    """No two pages of it are equal."""
    return b"".join(number.to_bytes(8, "big") * 512 for number in range(size // 4096 + 1))[:size]


def test_a_message_of_22_mb_survives_the_broker(tmp_path: Path) -> None:
    check_large_message(tmp_path, 22 * 1000 * 1000)


def test_without_a_word_messages_are_as_large_as_in_rabbitmq_4(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("amqp",)) as broker:
        channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)).channel()
        channel.queue_declare("large")
        channel.confirm_delivery()
        channel.basic_publish("", "large", bytes(DEFAULT_LIMIT))
        with pytest.raises(
            ChannelClosedByBroker, match=f"{DEFAULT_LIMIT + 1} is larger than .* {DEFAULT_LIMIT}"
        ) as told:
            channel.basic_publish("", "large", bytes(DEFAULT_LIMIT + 1))
        assert told.value.reply_code == 406


def check_large_message(tmp_path: Path, size: int) -> None:
    """Publish, kill the broker, get it back; at the limit also that one byte more is refused."""
    body, config = body_of(size), tmp_path / "millrace.toml"
    config.write_text(f"[amqp]\nmessage_bytes_max = {LIMIT}\n")
    with broker_process(tmp_path / "data", arguments=["--config", str(config)]) as broker:
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, heartbeat=0)
        channel = pika.BlockingConnection(parameters).channel()
        channel.queue_declare("large", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "large", body, PERSISTENT)
        channel.basic_publish("", "large", b"after", PERSISTENT)
        if size == LIMIT:
            with pytest.raises(ChannelClosedByBroker, match=f"message size {size + 1} is larger than .* {LIMIT}"):
                channel.basic_publish("", "large", body + b"!", PERSISTENT)
        broker.kill9()
        broker.start(same_ports=True)
        channel = pika.BlockingConnection(parameters).channel()
        assert channel.queue_declare("large", passive=True).method.message_count == 2
        assert channel.basic_get("large")[2] == body
        assert channel.basic_get("large")[2] == b"after"
        assert int(Path(f"/proc/{broker.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10 < 6 * LIMIT
