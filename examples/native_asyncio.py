"""A pipeline on asyncio: a group works on many orders at a time, and what comes of them takes effect with its progress.

python examples/native_asyncio.py [port]
"""

import asyncio
import sys

from millrace import Client, Consumer, Producer, TransactionalProducer

SERVER = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 9094}"
ORDERS, INVOICES = "example-asyncio-orders", "example-asyncio-invoices"


async def order(name: str, count: int) -> None:
    async with Producer(SERVER, linger_ms=5) as producer:  # at the end of the block all records are on disk
        for number in range(count):
            await producer.send(ORDERS, b"%d" % number, key=name.encode())  # waits for room only


async def invoice(count: int) -> None:
    async with (
        Consumer(SERVER, "invoices", topics=ORDERS, auto_offset_reset="earliest") as consumer,
        TransactionalProducer(SERVER, "example-asyncio") as producer,
    ):
        while count > 0:
            orders = await consumer.fetch()
            async with producer.transaction():  # all of it, or nothing
                for one in orders:
                    await producer.send(INVOICES, b"invoice for " + one.value, key=one.key)
                ends = {(one.topic, one.partition): one.offset + 1 for one in orders}
                await producer.send_offsets(ends, consumer.group_metadata())
            count -= len(orders)


async def main() -> None:
    async with Client(SERVER) as client:
        for topic in {ORDERS, INVOICES} - set(await client.list_topics()):
            await client.create_topic(topic, partitions=2)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(order("ada", 30))
        tasks.create_task(order("grace", 20))
        tasks.create_task(invoice(50))
    async with Consumer(SERVER, auto_offset_reset="earliest") as consumer:
        await consumer.assign(INVOICES)
        for _ in range(50):
            record = await anext(consumer)
            print(record.key.decode(), record.value.decode())


asyncio.run(main())
