"""Any broker of a cluster answers over HTTP what another one leads: real etcd, real links, plain and with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trustme

from gateway.config import HttpConfig, Listen, Tls
from gateway.etcd_process import EtcdProcess
from tests.gateway.test_member import ANY, Running, config, until
from tests.support.web import HOST, Api, ApiError

PARTITIONS = 4


def settings(etcd: EtcdProcess, directory: Path, number: int, *, tls: bool) -> Any:
    found = config(etcd.address, directory, f"web-{tls}", number)
    if not tls:
        return msgspec.structs.replace(found, listen=Listen(amqp="off", mqtt="off", native=ANY, http=ANY))
    return msgspec.structs.replace(
        found,
        listen=Listen(amqp="off", mqtt="off", native="off", natives=ANY, http=ANY),
        tls=Tls(cert=str(directory / "cert.pem")),
        http=HttpConfig(native_ca=str(directory / "ca.pem")),
    )


@pytest.mark.parametrize("tls", [False, True])
async def test_records_and_groups_are_those_of_the_cluster(etcd: EtcdProcess, tmp_path: Path, tls: bool) -> None:
    authority = trustme.CA()
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with trio.open_nursery() as nursery:
        brokers = [Running(settings(etcd, tmp_path, number, tls=tls)) for number in (1, 2)]
        async with trio.open_nursery() as starting:
            for broker in brokers:
                starting.start_soon(nursery.start, broker.run)
        await until(lambda: all(len(one.cluster.members.brokers) == 2 for one in brokers))
        try:
            apis = [Api(one.server.ports["http"], "guest", "guest") for one in brokers]
            await trio.to_thread.run_sync(ask, *apis)
            alarms = brokers[1].server.broker.alarms
            alarms.memory_bytes_max, alarms.memory_bytes = 1, 2
            alarms.check()
            await trio.to_thread.run_sync(produce_to_who_takes_nothing, *apis)
        finally:
            for broker in brokers:
                broker.scope.set()


def ask(one: Api, two: Api) -> None:
    """Everything at one broker, and what came of it at the other."""
    assert [api("whoami")["broker_id"] for api in (one, two)] == [1, 2]
    one("topics.create", topic="t", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        placed = one("records.produce", topic="t", partition=number, key=f"key {number}", value=f"in {number}")
        assert placed == {"partition": number, "offset": 0}
    leaders = {partition["leader"] for partition in two("topics.describe", topic="t")["partitions"]}
    assert leaders == {1, 2}
    for number in range(PARTITIONS):
        (record,) = two("records.read", topic="t", partition=number)["records"]
        assert record["value"] == {"text": f"in {number}"}
        assert [row[:2] for row in two("topics.find", topic="t", key=f"key {number}")["rows"]] == [[number, 0]]
    for group in ("a", "b", "c", "d"):  # some are looked after by either
        assert len(one("groups.reset", group=group, to="earliest", topics=["t"])["rows"]) == PARTITIONS
        described = two("groups.describe", group=group)
        assert (described["lag"], len(described["partitions"])) == (PARTITIONS, PARTITIONS)
    assert [row[0] for row in two("groups.list")["rows"]] == ["a", "b", "c", "d"]
    for number in range(PARTITIONS):
        assert two("topics.delete_records", name="t", partition=number) == 1
    for group in ("a", "b", "c", "d"):
        two("groups.delete", group=group)
    two("topics.delete", topic="t")
    with pytest.raises(ApiError, match="404 UNKNOWN_TOPIC"):
        two("topics.describe", topic="t")


def produce_to_who_takes_nothing(one: Api, two: Api) -> None:
    """Publishers have to wait at the second broker: for what it leads, whoever is asked."""
    one("topics.create", topic="t", partitions=PARTITIONS)
    assert [api("whoami")["blocked"] for api in (one, two)] == [None, "low on memory"]
    for partition in one("topics.describe", topic="t")["partitions"]:
        for api in (one, two):
            if partition["leader"] == 1:
                api("records.produce", topic="t", partition=partition["partition"], value="x")
            else:
                with pytest.raises(ApiError, match="503 BLOCKED: producers are blocked: low on memory"):
                    api("records.produce", topic="t", partition=partition["partition"], value="x")
