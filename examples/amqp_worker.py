"""A work queue over AMQP: tasks survive the broker, and each is done by one worker, which says so when it is done.

python examples/amqp_worker.py [port]
"""

import sys

import pika

port = int(sys.argv[1]) if len(sys.argv) > 1 else 5672
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.queue_declare("example-tasks", durable=True)

channel.confirm_delivery()  # from here on basic_publish returns when the task is on disk
for number in range(10):
    channel.basic_publish("", "example-tasks", b"task %d" % number, pika.BasicProperties(delivery_mode=2))

channel.basic_qos(prefetch_count=5)  # at most five tasks at a time in this worker's hands
for method, _, body in channel.consume("example-tasks"):
    print(f"did {body.decode()}")
    channel.basic_ack(method.delivery_tag)  # without this another worker gets it when this one is gone
    if body == b"task 9":
        break
connection.close()
