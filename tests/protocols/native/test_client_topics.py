"""Topics are configured and emptied by the native client with an event loop."""

from __future__ import annotations

import pytest
import trio

from millrace import Client, MillraceError, Producer
from tests.gateway.relay import relay
from tests.protocols.native.broker import native_broker


async def test_topics_are_altered_and_emptied() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=2)
        async with Producer(running.server) as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number, partition=0)
        await client.alter_topic("t", {"retention.ms": "5000"})
        assert (await client.describe_topic("t")).config["retention.ms"] == "5000"
        await client.alter_topic("t", {}, unset=["retention.ms"])
        assert "retention.ms" not in (await client.describe_topic("t")).config
        assert await client.delete_records("t", 0, 4) == 4
        assert await client.list_offsets([("t", 0)], "earliest") == [4]
        with pytest.raises(MillraceError):
            await client.delete_records("t", 0, 11)
        assert await client.delete_records("t", 0) == 10
        with pytest.raises(MillraceError):
            await client.alter_topic("t", {"nonsense": "1"})
        with pytest.raises(MillraceError, match="unknown topic config 'retention_ms'"):
            await client.alter_topic("t", {}, unset=["retention_ms"])


async def test_the_broker_says_how_many_partitions_there_may_be() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        with pytest.raises(MillraceError, match="partitions must be 1 to 1000, not 9999999"):
            await client.create_topic("many", partitions=9_999_999)
        with pytest.raises(MillraceError, match="partitions must be 1 to 1000, not 9999999"):
            await client.create_partitions("t", 9_999_999)


async def test_what_is_asked_for_once_waits_for_a_connection_that_is_being_made_again() -> None:
    """It was refused at once, though nothing had been sent: as by a script behind a broker's restart."""
    async with native_broker() as running, relay(running.server) as between, Client(between.address) as client:
        between.cut()
        with trio.fail_after(10):
            while client._link._stream is not None:
                await trio.sleep(0.001)
            await client.create_topic("t")
        assert await client.list_topics() == {"t": 1}
