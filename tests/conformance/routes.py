"""Where messages go here and in RabbitMQ, over random topologies: every kind of its core, alternates, internal
exchanges, bindings between exchanges, CC, mandatory.

    python -m tests.conformance.routes [ROUNDS]        needs an installed RabbitMQ; the exit code is 1 if one differs
"""

from __future__ import annotations

import random
import sys

import pika
import trio
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import UnroutableError

from benchmarks.peers import rabbitmq, rabbitmq_installed
from core_log.files import MemoryFiles
from routing.broker import Broker
from tests.routing.harness import engine, with_headers

EXCHANGES = [f"routes.x{number}" for number in range(5)]
QUEUES = [f"routes.q{number}" for number in range(6)]
PATTERNS = ["a", "b", "a.b", "a.*", "#", "b.#", ""]
ARGUMENTS = [{}, {"h": 1}, {"h": 1, "x-match": "any", "g": 2}]


async def build(dice: random.Random, channel: BlockingChannel, broker: Broker) -> None:
    """The same exchanges, queues and bindings on both sides."""
    for exchange in EXCHANGES:
        kind, internal = dice.choice(["direct", "fanout", "topic", "headers"]), dice.random() < 0.2
        alternate = {"alternate-exchange": dice.choice([*EXCHANGES, "missing"])} if dice.random() < 0.6 else {}
        channel.exchange_declare(exchange, kind, internal=internal, arguments=alternate)
        await broker.declare_exchange(exchange, kind, internal=internal, arguments=alternate)
    for queue in QUEUES:
        channel.queue_declare(queue)
        await broker.declare_queue(queue)
    for _ in range(14):
        source, pattern, arguments = dice.choice(EXCHANGES), dice.choice(PATTERNS), dice.choice(ARGUMENTS)
        if dice.random() < 0.65:
            queue = dice.choice(QUEUES)
            channel.queue_bind(queue, source, pattern, arguments)
            await broker.bind("queue", queue, source, pattern, arguments)
        else:
            exchange = dice.choice(EXCHANGES)
            channel.exchange_bind(exchange, source, pattern, arguments)
            await broker.bind("exchange", exchange, source, pattern, arguments)


def reached_there(channel: BlockingChannel, exchange: str, keys: list[str], headers: dict[str, int]) -> set[str]:
    """The queues RabbitMQ puts a message into. Raises AssertionError when one gets it twice, or its return is wrong."""
    all_headers = headers | ({"CC": keys[1:]} if len(keys) > 1 else {})
    returned = False
    try:
        channel.basic_publish(exchange, keys[0], b"m", pika.BasicProperties(headers=all_headers), mandatory=True)
    except UnroutableError:
        returned = True
    found: list[str] = []
    for queue in QUEUES:
        while channel.basic_get(queue, auto_ack=True)[0] is not None:
            found.append(queue)
    assert len(set(found)) == len(found)
    assert returned == (not found)
    return set(found)


async def compare(seed: int, connection: BlockingConnection) -> tuple[int, int]:
    """One random topology: how many messages, and how many went elsewhere."""
    dice = random.Random(seed)
    channel = connection.channel()
    channel.confirm_delivery()
    count = different = 0
    async with engine(MemoryFiles()) as running:
        await build(dice, channel, running.broker)
        vhost = running.broker.topology.vhost("/")
        for _ in range(40):
            exchange = vhost.exchange(dice.choice([*EXCHANGES, ""]))
            keys = [dice.choice(["a", "b", "a.b", "c", QUEUES[1], ""])]
            keys += dice.choice([[], [], ["b"], [QUEUES[2], "a.b"]])
            headers = dice.choice([{}, {"h": 1}, {"g": 2}])
            if exchange.internal:
                continue
            there = reached_there(channel, exchange.name, keys, headers)
            properties = with_headers(headers)
            here = {queue.name for queue in vhost.router.resolve(exchange, keys, lambda: properties.neutral).queues}  # noqa: B023
            count += 1
            if here != there:
                different += 1
                print(f"seed {seed}: {exchange.name!r} {keys} {headers}: there {sorted(there)}, here {sorted(here)}")
        for queue in QUEUES:
            channel.queue_delete(queue)
        for name in EXCHANGES:
            channel.exchange_delete(name)
    channel.close()
    return count, different


def main(rounds: int = 25) -> int:
    """See the module."""
    if not rabbitmq_installed():
        print("RabbitMQ is not installed")
        return 2
    count = different = 0
    with rabbitmq() as (port, _), BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        for seed in range(rounds):
            messages, wrong = trio.run(compare, seed, connection)
            count, different = count + messages, different + wrong
    print(f"{count} messages in {rounds} topologies, {different} went elsewhere")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
