"""Reading a log's files: the rows are those that the broker sends, whatever is in the log and in the directory."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from core_log.batch_header import CRC_START, HEADER_BYTES, size_of
from millrace import BlockingClient, BlockingProducer, BlockingTransactionalProducer
from protocols.native.clients.blocking import FetchResult
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.offsets import DataLoss
from spark_bridge.options import OptionError, parse_options
from spark_bridge.segments import directory_of
from tests.support import BrokerProcess

TOPIC = "read-directly"


class Counted:
    """Counts what is fetched from the broker."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.size_bytes = 0
        fetch = BlockingClient.fetch

        def counted(client: BlockingClient, *arguments: Any, **named: Any) -> FetchResult:
            result = fetch(client, *arguments, **named)
            self.size_bytes += sum(map(len, result.batches))
            return result

        patch.setattr(BlockingClient, "fetch", counted)


def rows(broker: BrokerProcess, **options: str) -> pa.Table:
    server = f"127.0.0.1:{broker.native_port}"
    source = MillraceDataSource({"millrace.servers": server, "subscribe": TOPIC, "includeHeaders": "true", **options})
    reader = source.reader(source.schema())
    return pa.Table.from_batches([found for part in reader.partitions() for found in reader.read(part)])


@pytest.fixture(scope="module")
def filled(shared_broker: BrokerProcess) -> BrokerProcess:
    """A topic of several segments, with transactions of both ends in the middle, and one that stays open."""
    server = f"127.0.0.1:{shared_broker.native_port}"
    rng = random.Random(5)
    with BlockingClient(server) as client:
        client.create_topic(TOPIC, partitions=1, config={"segment.bytes": str(1 << 20)})

    def plain(count: int) -> None:
        with BlockingProducer(server) as producer:
            for number in range(count):
                producer.send(TOPIC, rng.randbytes(rng.randrange(600)), b"k%d" % (number % 9), [("n", b"%d" % number)])

    plain(12_000)
    with BlockingTransactionalProducer(server, "direct-reads") as producer:
        for number in range(6):
            producer.begin()
            producer.send(TOPIC, b"of transaction %d" % number)
            producer.commit() if number % 2 else producer.abort()
    plain(2000)
    with BlockingClient(server) as client:
        client.delete_records(TOPIC, 0, 17)
    return shared_broker


def test_the_answers_are_the_brokers(filled: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = {"read.mode": "direct", "read.dataDir": str(filled.data_dir)}
    wanted = rows(filled)
    assert wanted["value"].to_pylist().count(b"of transaction 1") == 1
    assert b"of transaction 2" not in wanted["value"].to_pylist()
    counted = Counted(monkeypatch)
    assert rows(filled, **direct).equals(wanted)
    assert 0 < counted.size_bytes < wanted.nbytes / 2
    for start, end in ((17, 18), (1000, 9000), (11_900, 12_100), (13_000, 13_900)):
        cut = {f"{side}Offsets": f'{{"{TOPIC}": {{"0": {at}}}}}' for side, at in (("starting", start), ("ending", end))}
        found = rows(filled, **direct, **cut)
        assert found.combine_chunks().equals(rows(filled, **cut).combine_chunks())


@pytest.mark.parametrize("damage", ["another log", "no segment", "cut", "overwritten", "no index"])
def test_what_is_not_as_it_should_be_is_asked_of_the_broker(filled: BrokerProcess, tmp_path: Path, damage: str) -> None:
    found = directory_of(str(filled.data_dir), TOPIC, 0)
    assert found is not None
    copy = tmp_path / "topics" / found.name
    shutil.copytree(found, copy)
    logs = sorted(copy.glob("*.log"))
    assert len(logs) > 3
    match damage:
        case "another log":
            for path in logs:
                data = bytearray(path.read_bytes())
                data[61 + 300] ^= 1
                data[17:21] = b"none"
                path.write_bytes(data)
        case "no segment":
            logs[1].unlink()
        case "cut":
            logs[1].write_bytes(logs[1].read_bytes()[:-1000])
        case "overwritten":
            data = bytearray(logs[1].read_bytes())
            data[len(data) // 2] ^= 1
            logs[1].write_bytes(data)
        case "no index":
            for path in copy.glob("*.index"):
                path.unlink()
    assert rows(filled, **{"read.mode": "direct", "read.dataDir": str(tmp_path)}).equals(rows(filled))


def test_files_of_a_broker_that_led_have_what_was_never_decided(
    filled: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batches are whole and are those of an epoch in which nobody else got them."""
    found = directory_of(str(filled.data_dir), TOPIC, 0)
    assert found is not None
    copy = tmp_path / "topics" / found.name
    shutil.copytree(found, copy)
    last = max(copy.glob("*.log"))
    data = bytearray(last.read_bytes())
    places = [0]
    while places[-1] < len(data) and size_of(memoryview(data), places[-1]) >= HEADER_BYTES:
        places.append(places[-1] + size_of(memoryview(data), places[-1]))
    assert len(places) > 3
    for start, stop in list(pairwise(places))[-2:]:
        data[start + 15] ^= 1  # of the epoch
        data[stop - 1] ^= 1  # of the last header's value
        data[start + 17 : start + 21] = crc32c(bytes(data[start + CRC_START : stop])).to_bytes(4, "big")
    last.write_bytes(data)
    begin = {"startingOffsets": f'{{"{TOPIC}": {{"0": 12100}}}}'}
    direct = {"read.mode": "direct", "read.dataDir": str(tmp_path)}
    assert rows(filled, **begin, **direct).combine_chunks().equals(rows(filled, **begin).combine_chunks())
    end = int.from_bytes(data[places[-3] : places[-3] + 8], "big")
    counted = Counted(monkeypatch)
    wanted = rows(filled, endingOffsets=f'{{"{TOPIC}": {{"0": {end}}}}}', **direct)
    assert 0 < counted.size_bytes < wanted.nbytes / 2, "what is before it is read from them"


def test_without_the_directory_the_broker_is_asked(filled: BrokerProcess, tmp_path: Path) -> None:
    assert rows(filled, **{"read.mode": "direct", "read.dataDir": str(tmp_path)}).equals(rows(filled))


def test_what_retention_took_is_lost_here_too(filled: BrokerProcess) -> None:
    direct = {"read.mode": "direct", "read.dataDir": str(filled.data_dir)}
    with pytest.raises(DataLoss):
        rows(filled, **direct, startingOffsets=f'{{"{TOPIC}": {{"0": 3}}}}')


@pytest.mark.parametrize("options", [{"read.mode": "direct"}, {"read.dataDir": "/d"}, {"read.mode": "fast"}])
def test_mode_and_directory_belong_together(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"read\.mode"):
        parse_options({"millrace.servers": "h:1", "subscribe": "t", **options})
