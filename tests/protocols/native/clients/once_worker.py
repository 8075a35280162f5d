"""A consumer that is killed at a record it names, before or after its work is committed: run by `test_once.py`."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

from millrace import BlockingConsumer, ConsumerRecord, SqliteOnceStore, once

server, path, count, where, value = sys.argv[1:]
store = SqliteOnceStore(path)
store.connection.execute("CREATE TABLE IF NOT EXISTS results (value TEXT)")


def die_here(here: str, record: ConsumerRecord) -> None:
    if where == here and record.value == value.encode():
        os.kill(os.getpid(), signal.SIGKILL)


@once(store)
def work(record: ConsumerRecord, transaction: sqlite3.Connection) -> None:
    transaction.execute("INSERT INTO results VALUES (?)", ((record.value or b"").decode(),))
    die_here("within", record)


with BlockingConsumer(server, group="g", auto_offset_reset="earliest") as consumer:
    consumer.assign("t")
    done = 0
    while done < int(count):
        for record in consumer.fetch(1):
            print(record.offset, work(record))
            die_here("behind", record)
            done = record.offset + 1
            consumer.commit()
