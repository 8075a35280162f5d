"""Topics, records and groups over HTTP, where several requests of the native protocol are one; and a cluster's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from millrace import BlockingClient, BlockingProducer, Consumer
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT
from tests.support.web import HOST, Api, ApiError, refusal

ODD = '<img src=x onerror="alert(1)">\u202e\n'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("operations")
    config = directory / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 0\n[http]\nrecords_bytes_max = 20000\n")
    arguments = ["--config", str(config)]
    with broker_process(directory / "data", doors=["native", "http"], arguments=arguments) as process:
        yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.ports["http"])


def printed(broker: BrokerProcess, *words: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "gateway", *words, "--json", "--server", f"{HOST}:{broker.native_port}"]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(found.stdout)


def test_a_topic_from_its_beginning_to_its_end(api: Api, broker: BrokerProcess) -> None:
    api("topics.create", topic="flights", partitions=2, config={"retention.ms": "-1"})
    assert refusal(api, "topics.create", topic="flights") == (409, "PRECONDITION_FAILED")
    assert refusal(api, "topics.create", topic="no/name") == (400, "INVALID_ARGUMENT")
    assert ["flights", 2] in api("topics.list")["rows"]
    assert api("topics.describe", topic="flights") == printed(broker, "topics", "describe", "flights")
    api("topics.partitions", topic="flights", partitions=3)
    assert refusal(api, "topics.partitions", topic="flights", partitions=1)[0] == 400
    assert len(api("topics.describe", topic="flights")["partitions"]) == 3
    for number in range(3):
        api("records.produce", topic="flights", partition=2, value=str(number))
    assert api("topics.delete_records", name="flights", partition=2, before=2) == 2
    assert api("records.read", topic="flights", partition=2)["start_offset"] == 2
    assert api("topics.delete_records", name="flights", partition=2) == 3
    assert refusal(api, "topics.delete_records", name="flights", partition=9) == (404, "UNKNOWN_PARTITION")
    api("topics.delete", topic="flights")
    assert refusal(api, "topics.describe", topic="flights") == (404, "UNKNOWN_TOPIC")


def test_records_are_what_was_produced(api: Api) -> None:
    api("topics.create", topic="bytes")
    binary = {"base64": "/wA="}
    headers = [[ODD, "one"], ["two", binary], ["three", None]]
    assert api("records.produce", topic="bytes", key=ODD, value=binary, headers=headers)["offset"] == 0
    assert api("records.produce", topic="bytes", key=binary, value=None)["offset"] == 1
    first, second = api("records.read", topic="bytes", partition=0)["records"]
    assert (first["key"], first["value"]) == ({"text": ODD}, binary)
    assert first["headers"] == [[ODD, {"text": "one"}], ["two", binary], ["three", None]]
    assert (second["key"], second["value"], second["headers"]) == (binary, None, [])
    for key, offset in ((ODD, 0), (binary, 1)):
        found = api("topics.find", topic="bytes", key=key)
        assert [row[:2] for row in found["rows"]] == [[0, offset]]
        assert found["columns"] == ["partition", "offset", "timestamp_ms", "bytes"]
    assert refusal(api, "records.produce", topic="nobody", value="x") == (404, "UNKNOWN_TOPIC")
    assert "nobody" not in dict(api("topics.list")["rows"])
    assert refusal(api, "records.produce", topic="bytes", value={"base64": "!"}) == (400, "INVALID_ARGUMENT")
    assert refusal(api, "records.produce", topic="bytes") == (400, "INVALID_ARGUMENT")
    assert refusal(api, "records.produce", topic="bytes", value="x", partition=1) == (404, "UNKNOWN_PARTITION")


def test_every_copy_of_a_message_by_its_key(api: Api) -> None:
    for topic, indexed in (("copies-a", "false"), ("copies-b", "true")):
        api("topics.create", topic=topic, partitions=2, config={"millrace.key.index.enable": indexed})
        for partition in (0, 1):
            api("records.produce", topic=topic, partition=partition, key="a b/ä", value="12345")
            api("records.produce", topic=topic, partition=partition, key={"base64": "/w=="}, value=None)
    found = api.send("messages?key=a+b%2F%C3%A4", None, {}, method="GET")
    assert found["columns"] == ["topic", "partition", "offset", "timestamp_ms", "bytes"]
    assert [[*row[:3], row[4]] for row in found["rows"]] == [
        ["copies-b", 0, 0, 5], ["copies-b", 1, 0, 5], ["copies-a", 0, 0, 5], ["copies-a", 1, 0, 5],
    ]  # fmt: skip
    assert found["complete"]
    assert {"topic": "copies-a", "indexed": False} in found["searched"]
    assert found["searched"][0] == {"topic": "copies-b", "indexed": True}
    binary = api("messages.find", key={"base64": "/w=="}, topic="copies-a")
    assert [[*row[:3], row[4]] for row in binary["rows"]] == [["copies-a", 0, 1, None], ["copies-a", 1, 1, None]]
    cut = api.send("messages?key=%FF&limit=3", None, {}, method="GET")
    assert (len(cut["rows"]), cut["complete"]) == (3, False)
    wrong = (
        ("", 400),
        ("key=a&limit=x", 400),
        ("key=a&key=b", 400),
        ("key=a&topic=none", 404),
        ("key=a&topic=%FF", 400),
    )
    for query, status in (*wrong, ("key=a&%FF=%FF", 400)):
        with pytest.raises(ApiError) as caught:
            api.send(f"messages?{query}", None, {}, method="GET")
        assert caught.value.status == status
        assert "int()" not in str(caught.value)
    with pytest.raises(ApiError, match="405"):
        api.send("topics.list", None, {}, method="GET")
    with pytest.raises(ApiError, match="403"):
        api.send("messages?key=a", None, {"Origin": "http://elsewhere"}, method="GET")


def test_long_values_are_cut(api: Api) -> None:
    api("topics.create", topic="long")
    for value in ("äöü" * 3000, {"base64": "/////w=="}):
        api("records.produce", topic="long", value=value)
    text, binary = (one["value"] for one in api("records.read", topic="long", partition=0, bytes_max=3)["records"])
    assert text == {"text": "ä", "bytes": 18000}
    assert binary == {"base64": "////", "bytes": 4}
    whole = api("records.read", topic="long", partition=0, limit=1, bytes_max=18000)["records"][0]["value"]
    assert whole == {"text": "äöü" * 3000}
    api("records.produce", topic="long", value="äöü" * 3000)
    found = api("records.read", topic="long", partition=0)
    assert len(found["records"]) == 2  # a third would be more than `http.records_bytes_max`
    assert (found["next_offset"], found["end_offset"]) == (2, 3)


def test_records_from_a_place_on(api: Api, broker: BrokerProcess) -> None:
    server = f"{HOST}:{broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic("places", config={"retention.ms": "-1"})
    with BlockingProducer(server) as producer:
        for number in range(600):
            producer.send("places", b"%d" % number, timestamp_ms=1_000_000 + 1000 * number)

    def offsets(**where: int) -> list[int]:
        return [one["offset"] for one in api("records.read", topic="places", partition=0, **where)["records"]]

    assert offsets() == list(range(50))
    assert offsets(offset=590) == list(range(590, 600))
    assert offsets(last=3) == [597, 598, 599]
    assert offsets(last=10_000, limit=500) == list(range(500))
    assert offsets(time_ms=1_000_001, limit=2) == [1, 2]
    assert offsets(time_ms=9_999_999_999_999) == []
    assert offsets(offset=600) == []
    assert offsets(offset=(1 << 63) - 1) == []
    for wrong in ({"offset": -1}, {"offset": 1 << 63}, {"limit": 501}, {"limit": 0}, {"offset": 1, "last": 1}):
        assert refusal(api, "records.read", topic="places", partition=0, **wrong)[0] == 400
    assert refusal(api, "records.read", topic="places", partition=1) == (404, "UNKNOWN_PARTITION")
    assert refusal(api, "records.read", topic="places", partition=-1) == (400, "INVALID_ARGUMENT")


async def test_a_group_is_described_reset_and_deleted(api: Api, broker: BrokerProcess) -> None:
    call = trio.to_thread.run_sync
    for topic in ("left", "right"):
        api("topics.create", topic=topic)
        for number in range(4):
            api("records.produce", topic=topic, value=str(number))
    async with Consumer(
        f"{HOST}:{broker.native_port}", group="g", auto_offset_reset="earliest", topics=["left", "right"]
    ) as consumer:
        taken = 0
        with trio.fail_after(30):
            while taken < 8:
                taken += len(await consumer.poll(5000))
        await consumer.commit()
        described = await call(lambda: api("groups.describe", group="g"))
        assert (described["state"], described["lag"], len(described["members"])) == ("Stable", 0, 1)
        with pytest.raises(ApiError) as caught:
            await call(lambda: api("groups.reset", group="g", to="earliest"))
        assert caught.value.status == 409
    assert ["g", "Empty", 0, "consumer"] in api("groups.list")["rows"]
    would = api("groups.reset", group="g", to="earliest", dry_run=True)
    assert would == {"columns": ["topic", "partition", "offset"], "rows": [["left", 0, 0], ["right", 0, 0]]}
    assert api("groups.describe", group="g")["lag"] == 0
    for to, offset in (("earliest", 0), ("latest", 4), ({"offset": 1}, 1), ({"shift": 2}, 3), ({"time_ms": 0}, 0)):
        assert api("groups.reset", group="g", to=to, topics=["left:0"])["rows"] == [["left", 0, offset]]
    described = api("groups.describe", group="g")
    assert described["lag"] == 4
    as_printed = printed(broker, "groups", "describe", "g")
    assert as_printed.keys() == described.keys()
    assert as_printed["partitions"][1] == described["partitions"][1]
    for wrong in ("nowhere", {}, {"offset": 1, "shift": 1}, {"offset": -1}, {"shift": 1.5}, 7):
        assert refusal(api, "groups.reset", group="g", to=wrong)[0] == 400
    assert refusal(api, "groups.reset", group="g", to="latest", topics=["left:1"]) == (404, "UNKNOWN_PARTITION")
    api("groups.delete", group="g")
    assert refusal(api, "groups.describe", group="g") == (404, "NOT_FOUND")


def test_names_of_any_kind(api: Api) -> None:
    assert refusal(api, "groups.describe", group=ODD) == (404, "NOT_FOUND")
    assert refusal(api, "topics.describe", topic=ODD) == (404, "UNKNOWN_TOPIC")
    assert refusal(api, "topics.create", topic=ODD) == (400, "INVALID_ARGUMENT")
    api("topics.create", topic="plain")
    api("groups.reset", group=ODD, to="latest", topics=["plain"])
    assert [ODD, "Empty", 0, "consumer"] in api("groups.list")["rows"]
    assert api("groups.describe", group=ODD)["group"] == ODD
    api("groups.delete", group=ODD)


def test_nothing_is_left_of_a_request(api: Api) -> None:
    for _ in range(3):
        api("topics.list")
    assert [row for row in api("connections.list")["rows"] if "http" in row] == []


def test_without_a_native_door(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=["http"]) as process:
        api = Api(process.ports["http"])
        api("topics.create", topic="t")
        assert api("records.produce", topic="t", value="x") == {"partition": 0, "offset": 0}
        assert api("records.read", topic="t", partition=0)["end_offset"] == 1
