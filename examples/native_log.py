"""A partitioned log: records of one key stay in order, and every reader goes at its own pace and may begin again.

python examples/native_log.py [port]
"""

import sys

from millrace import BlockingClient, BlockingConsumer, BlockingProducer

server = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 9094}"
with BlockingClient(server) as client:
    if "example-orders" not in client.metadata():
        client.create_topic("example-orders", partitions=3)

with BlockingProducer(server) as producer:  # at the end of the block all records are on disk
    for step in ("ordered", "paid", "shipped"):
        for customer in (b"ada", b"grace", b"edsger"):
            producer.send("example-orders", step.encode(), key=customer)

for group in ("billing", "statistics"):
    with BlockingConsumer(server, group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign("example-orders")
        records = []
        while len(records) < 9:
            records += consumer.fetch()
        consumer.commit()  # another consumer of this group goes on from here
    for record in records:
        print(f"{group}: {record.key.decode()} {record.value.decode()} (partition {record.partition})")
