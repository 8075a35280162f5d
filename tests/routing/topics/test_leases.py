"""Readers for whom records are kept: for how long, from where on, and that the rest goes all the same."""

from __future__ import annotations

import logging

import pytest

from millrace import BlockingClient, BlockingProducer
from protocols.native.errors import MillraceError, NotFound
from routing import errors
from routing.topics.leases import LEASES_MAX, Leases
from tests.support import BrokerProcess


def test_the_first_offset_that_anybody_needs() -> None:
    leases = Leases()
    assert leases.needed_from(0, "t-0", 0) is None
    leases.renew("a", 10, 100, 0)
    leases.renew("b", 5, 50, 0)
    assert leases.needed_from(49, "t-0", 0) == 5
    leases.renew("b", 20, 60, 49)
    assert leases.needed_from(49, "t-0", 0) == 10
    leases.give_back("a")
    leases.give_back("nobody")
    assert leases.needed_from(49, "t-0", 0) == 20


def test_a_lease_ends_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    leases.renew("slow", 10, 100, 0)
    leases.renew("done", 3, 100, 0)
    with caplog.at_level(logging.WARNING):
        assert leases.needed_from(100, "t-0", 5) is None
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: reader 'slow' has not been heard of, what it has not read (from offset 10 on) is kept no longer"
    ]


def test_there_is_a_limit() -> None:
    leases = Leases()
    for number in range(LEASES_MAX):
        leases.renew(str(number), 0, 100 + number, 0)
    with pytest.raises(errors.LimitExceeded):
        leases.renew("one more", 0, 200, 99)
    leases.renew("0", 1, 200, 99)
    leases.renew("one more", 0, 200, 101)  # "1" is over


def start_of(client: BlockingClient, topic: str) -> int:
    return client.describe_topic(topic).partitions[0].log_start_offset


def test_retention_waits_for_a_reader(shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client, BlockingProducer(server) as producer:
        client.create_topic("leased", config={"segment.bytes": "65536", "retention.bytes": "200000"})

        def fill(count: int) -> None:
            for _ in range(count):
                producer.send("leased", bytes(10_000))
                producer.flush()

        client.lease("reader", {("leased", 0): 3}, 60_000)
        fill(60)
        held = start_of(client, "leased")
        assert held <= 3
        client.lease("reader", {("leased", 0): 30}, 60_000)
        fill(10)
        assert held < start_of(client, "leased") <= 30
        client.lease("reader", {("leased", 0): 30}, 0)
        fill(10)
        assert start_of(client, "leased") > 30
        with pytest.raises(NotFound):
            client.administer("topics.lease", name="leased", reader="r", offsets={"7": 0}, lease_ms=5)
        for number in range(LEASES_MAX):
            client.lease(f"reader {number}", {("leased", 0): 90}, 60_000)
        with pytest.raises(MillraceError, match="64 readers hold a lease"):
            client.lease("one more", {("leased", 0): 90}, 60_000)
