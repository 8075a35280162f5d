"""A process that may have little memory."""

from __future__ import annotations

from pathlib import Path

from millrace import BlockingClient, BlockingProducer
from tests.support import broker_process

TOPICS, ROUNDS, RECORD = 60, 60, bytes(100_000)
"""360 MB, of which a broker keeps the newest 4 MiB of each topic while it may."""


def test_publishers_do_not_wait_for_ever_for_memory_that_caches_hold(tmp_path: Path) -> None:
    config = tmp_path / "millrace.toml"
    config.write_text("[engine]\nmemory_bytes_max = 130_000_000\n")
    with broker_process(tmp_path / "data", doors=("native",), arguments=["--config", str(config)]) as broker:
        server = f"127.0.0.1:{broker.native_port}"
        with BlockingClient(server) as client:
            for number in range(TOPICS):
                client.create_topic(f"t{number}", partitions=1)
        with BlockingProducer(server, delivery_timeout_ms=30_000) as producer:
            sent = [producer.send(f"t{number}", RECORD) for _ in range(ROUNDS) for number in range(TOPICS)]
            producer.flush()
            assert all(one.result().offset >= 0 for one in sent)
