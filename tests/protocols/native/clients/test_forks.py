"""A process that forks with clients: its children begin anew, and nothing that is confirmed is taken for another's."""

from __future__ import annotations

import pickle
import sys

import trio

from millrace import BlockingConsumer, BlockingProducer, BlockingTransactionalProducer
from tests.protocols.native.broker import native_broker
from tests.support.broker_process import CHECKOUT

TIMEOUT_S = 20
SAID = ["sent", "sent", "{'t': [0]}", "False", "RuntimeError", "RuntimeError", "True [('t', 0)]", "[]"]
VALUES = [
    b"parent 0", b"child 1 a", b"child 1 b", b"child 2 a", b"child 2 b", b"still to be sent", b"parent 1",
    b"of a transaction",
]  # fmt: skip


async def test_parent_and_children_go_on_each_for_itself() -> None:
    def values(server: str) -> list[bytes | None]:
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            return [record.value for record in consumer.fetch()]

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=1)
        command = [sys.executable, "-u", "-m", "tests.protocols.native.clients.fork_worker", running.server]
        with trio.fail_after(TIMEOUT_S):
            done = await trio.run_process(command, cwd=CHECKOUT, capture_stdout=True)
            assert done.stdout.decode().splitlines() == SAID
            assert await trio.to_thread.run_sync(values, running.server) == VALUES


async def test_copies_that_are_pickled_go_on_each_for_itself() -> None:
    def work(server: str) -> list[bytes | None]:
        producer = BlockingProducer(server)
        producer.send("t", b"first")
        producer.flush()
        producer.send("t", b"last")
        for number in range(2):
            with pickle.loads(pickle.dumps(producer)) as copy:
                copy.send("t", b"of copy %d" % number)
        producer.flush()
        with BlockingTransactionalProducer(server, "id") as transactional:
            transactional.begin()
            transactional.send("t", b"of a transaction")
            assert not pickle.loads(pickle.dumps(transactional)).in_transaction
            transactional.commit()
        producer.client.close()
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            return [record.value for record in consumer.fetch()]

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=1)
        with trio.fail_after(TIMEOUT_S):
            found = await trio.to_thread.run_sync(work, running.server)
    assert found == [b"first", b"of copy 0", b"of copy 1", b"last", b"of a transaction"]
