"""A broker that says that it is of no use, though it runs: clients go on by the next one that they know."""

from __future__ import annotations

import trio

from millrace import BlockingClient, Client
from tests.protocols.native.broker import native_broker


async def test_clients_that_are_sent_on_go_to_another_broker_first() -> None:
    async with native_broker() as first, native_broker() as second:
        await first.broker.create_topic("first")
        await second.broker.create_topic("second")
        async with Client([first.server, second.server]) as client:
            assert await client.list_topics() == {"first": 1}
            first.broker.send_on("it is cut off")
            first.broker.end_turn()
            with trio.fail_after(10):
                while first.broker.clients:
                    await trio.sleep(0.001)
                assert await client.list_topics() == {"second": 1}


async def test_blocking_clients_do_so_as_well() -> None:
    async with native_broker() as first, native_broker() as second:
        await first.broker.create_topic("first")
        await second.broker.create_topic("second")
        client = BlockingClient([first.server, second.server])

        async def seen() -> list[str]:
            return await trio.to_thread.run_sync(lambda: list(client.metadata()))

        with client, trio.fail_after(10):
            assert await seen() == ["first"]
            first.broker.send_on("it is cut off")
            first.broker.end_turn()
            assert await seen() == ["second"]
