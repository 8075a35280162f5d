"""A bit that flipped in the catalog's file, under a real broker: nothing is deleted, and the way on is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.native.clients.blocking import BlockingClient
from tests.faults.neighbours import batch_of
from tests.support import HOST, BrokerProcess, broker_process


def flip_a_bit(data_dir: Path) -> None:
    """In the first record of the catalog."""
    path = data_dir / "catalog/0/00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 4
    path.write_bytes(content)


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


@pytest.mark.parametrize("clean", [False, True])
def test_a_flipped_bit_in_the_catalog(clean: bool, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, doors=("amqp", "mqtt", "native")) as broker:
        with BlockingClient(f"{HOST}:{broker.native_port}") as client:
            for name in ("first", "second"):
                client.create_topic(name)
                assert client.produce(name, 0, batch_of([name.encode()])) == 0
        if clean:
            broker.terminate()
        else:
            broker.kill9()
        flip_a_bit(data)
        with pytest.raises(RuntimeError, match="did not become ready"):
            broker.start()
        refusal = broker.log().strip().splitlines()[-1]
        assert refusal.startswith(f"millrace: data directory {data}: catalog/0/00000000000000000000.log is damaged at")
        assert "--accept-damage" in refusal
        assert "Traceback" not in broker.log()
        assert log_bytes(data / "topics/first-0") > 0
        assert log_bytes(data / "topics/second-0") > 0

    with broker_process(data, arguments=["--accept-damage"]) as broker, reading(broker) as client:
        assert set(client.metadata()) == {"second"}
        assert client.fetch("second", 0, 0).batches
    assert log_bytes(data / "unknown/first-0.1") > 0
    assert log_bytes(data / "damaged/catalog-0.1") > 0
    with broker_process(data) as broker, reading(broker) as client:
        assert set(client.metadata()) == {"second"}


def reading(broker: BrokerProcess) -> BlockingClient:
    return BlockingClient(f"{HOST}:{broker.native_port}")
