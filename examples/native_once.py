"""Work that takes effect once though records come again: their ids are kept in the transaction that keeps the results.

python examples/native_once.py [port]
"""

import sqlite3
import sys
import tempfile

from millrace import BlockingConsumer, BlockingProducer, ConsumerRecord, SqliteOnceStore, once

server = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 9094}"
with BlockingProducer(server) as producer:
    for number, amount in ((1, 50), (2, 20), (1, 50), (3, 5)):  # the payment 1 was sent twice
        producer.send("example-payments", b"%d" % amount, key=b"ada", headers=[("message-id", b"payment-%d" % number)])

store = SqliteOnceStore(tempfile.mkdtemp() + "/accounts.db")
store.connection.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER)")


@once(store)
def book(record: ConsumerRecord, transaction: sqlite3.Connection) -> None:
    transaction.execute(
        "INSERT INTO accounts VALUES (?1, ?2) ON CONFLICT DO UPDATE SET balance = balance + ?2",
        (record.key.decode(), int(record.value)),
    )


for _ in range(2):  # the second consumer gets all again: the first has ended before it committed
    with BlockingConsumer(server, group="accounts", auto_offset_reset="earliest") as consumer:
        consumer.assign("example-payments")
        records = []
        while len(records) < 4:
            records += consumer.fetch()
    print([book(record) for record in records], *store.connection.execute("SELECT * FROM accounts"))
