"""Clients in a process that forks, and in its children: run by `test_forks.py`, which is told what each has seen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from millrace import BlockingConsumer, BlockingGroupConsumer, BlockingProducer, BlockingTransactionalProducer

server = sys.argv[1]


def in_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        signal.alarm(10)  # whoever waits for ever ends
        try:
            print(work(), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


def send(*values: str) -> str:
    for value in values:
        producer.send("t", value.encode())
        producer.flush()
    return "sent"


with BlockingProducer(server) as producer:
    send("parent 0")
    producer.send("t", b"still to be sent")
    for name in ("child 1", "child 2"):
        in_child(lambda name=name: send(f"{name} a", f"{name} b"))  # type: ignore[misc]
    print(producer.client.metadata(["t"]))
    send("parent 1")

with BlockingTransactionalProducer(server, "id") as transactional:
    transactional.begin()
    transactional.send("t", b"of a transaction")
    in_child(lambda: transactional.in_transaction)
    transactional.commit()

with BlockingGroupConsumer(server, "g", auto_offset_reset="earliest") as consumer:
    consumer.assign("t")
    found = len(consumer.poll(10_000))
    in_child(lambda: consumer.poll(0))
    in_child(lambda: consumer.assignment)
    print(found > 0, consumer.assignment)


def wait() -> None:
    while True:
        with suppress(RuntimeError):  # the other thread asks
            reader.fetch(timeout_ms=1000)
            return


with BlockingConsumer(server) as reader:
    reader.assign("t")
    reader.fetch(timeout_ms=0)
    thread = Thread(target=wait)
    thread.start()
    with suppress(RuntimeError):  # once the thread is in the middle of its request
        while True:
            reader.fetch(timeout_ms=0)
    in_child(lambda: reader.fetch(timeout_ms=0))
    thread.join()
