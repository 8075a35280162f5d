"""What a million subscriptions cost: to find those that match, in memory, and others while they come and go.

    python -m benchmarks.topic_trie [--subscriptions 1000000] [--sessions 10000] [--durable]

Every subscription is bound by `Broker.bind`, as those of MQTT clients are, to queues of many sessions: *alike*, where
ten sessions have each filter, and *distinct*, where each filter is there once, a quarter of
them with wildcards. Then topics are matched of which the broker remembers no route: by the trie alone, and as a publish
does it. Memory is what the process has more of, a binding, with the queues left out.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryDirectory

import trio

from benchmarks.process_usage import ProcessUsage
from core_log.files import OsFiles
from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Subscriptions, to_arguments
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.message import Properties, Slab

QOS_0 = Properties("mqtt", b"", persistent=False)
ASKED = 20_000
AT_ONCE = 100
"""Sessions that subscribe at the same time: what is durable shares its flushes."""
OPTIONS = SubscriptionOptions(1)


def alike(subscriptions: int, sessions: int) -> Iterator[tuple[int, str]]:
    """Session and filter: each session watches devices that nine others watch as well."""
    for number in range(subscriptions):
        watched = number * 7919 % (subscriptions // 10)
        yield number * sessions // subscriptions, f"fleet/{watched % 100}/device/{watched}/state"


def distinct(subscriptions: int, sessions: int) -> Iterator[tuple[int, str]]:
    """Session and filter: each is there once."""
    kinds = ("state", "+", "temperature/#", "commands")
    for number in range(subscriptions):
        yield number * sessions // subscriptions, f"fleet/{number % 1000}/device/{number}/{kinds[number % 4]}"


def topics(subscriptions: int) -> list[str]:
    """Topics that devices publish to, in no order."""
    chosen = random.Random(1)
    kinds = ("state", "temperature/inside", "commands", "level")
    numbers = [chosen.randrange(subscriptions) for _ in range(ASKED)]
    return [f"fleet.{number % 1000}.device.{number}.{chosen.choice(kinds).replace('/', '.')}" for number in numbers]


def quantiles(times_ns: list[int]) -> str:
    """Median, 99th percentile and mean in microseconds."""
    times_ns.sort()
    median, late = times_ns[len(times_ns) // 2], times_ns[len(times_ns) * 99 // 100]
    mean = sum(times_ns) / len(times_ns)
    return f"p50 {median / 1000:6.1f} us   p99 {late / 1000:6.1f} us   mean {mean / 1000:6.1f} us"


def timed(ask: Callable[[str], object], keys: list[str]) -> list[int]:
    """How long each took, in nanoseconds."""
    found, clock = [], time.perf_counter_ns
    for key in keys:
        began = clock()
        ask(key)
        found.append(clock() - began)
    return found


async def bound(broker: Broker, bindings: list[tuple[int, str]], sessions: int, *, durable: bool) -> float:
    """Bind them all; how many seconds it took."""
    arguments = to_arguments(OPTIONS) if durable else {}
    names = [f"mqtt.device-{number}" for number in range(sessions)]
    filters: list[list[str]] = [[] for _ in names]
    for session, topic_filter in bindings:
        filters[session].append(topic_filter)

    async def bind(queues: Iterable[int]) -> None:
        for session in queues:
            for topic_filter in filters[session]:
                pattern = topic_to_routing_key(topic_filter)
                await broker.bind("queue", names[session], "amq.topic", pattern, arguments, syntax="mqtt", owner=broker)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for first in range(AT_ONCE):
            nursery.start_soon(bind, range(first, sessions, AT_ONCE))
    return time.perf_counter() - began


def subscribed(broker: Broker, sessions: int) -> list[Subscriptions]:
    """What the adapters of connected clients hold."""
    held = []
    for number in range(sessions):
        subscriptions = Subscriptions()
        for binding in broker.topology.vhosts["/"].bindings_to[("queue", f"mqtt.device-{number}")]:
            subscriptions.grant(binding.pattern, OPTIONS)
        held.append(subscriptions)
    return held


async def measure(name: str, bindings: list[tuple[int, str]], sessions: int, *, durable: bool, traced: bool) -> None:
    """Bind, and print the figures."""
    count = len(bindings)
    config = BrokerConfig(bindings_max=count + 10, queues_max=sessions + 10, fsync="never")
    usage = ProcessUsage(os.getpid())
    usage.find()
    with TemporaryDirectory() as directory:
        async with open_broker(OsFiles(directory), config) as broker:
            for number in range(sessions):
                await broker.declare_queue(
                    f"mqtt.device-{number}", durable=durable, exclusive=not durable, owner=broker
                )
            gc.collect()
            if traced:
                tracemalloc.start()
            before = usage.rss_mib()
            took = await bound(broker, bindings, sessions, durable=durable)
            gc.collect()
            if traced:
                engine = tracemalloc.get_traced_memory()[0]
                held = subscribed(broker, sessions)
                more = tracemalloc.get_traced_memory()[0] - engine
                tracemalloc.stop()
                print(f"{name}: {engine / count:.0f} bytes a binding in the engine, {more / count:.0f} in the adapter")
                assert held
                return
            grown_before = (usage.rss_mib() - before) * 2**20 / count
            held = subscribed(broker, sessions)
            grown = (usage.rss_mib() - before) * 2**20 / count
            print(
                f"{name}: {count:,} bound, {took / count * 1e6:.1f} us each, {grown_before:.0f} bytes resident each, "
                f"{grown:.0f} while their sessions are connected"
            )
            await ask(broker, count)


async def ask(broker: Broker, count: int) -> None:
    """Match, publish, and publish while others subscribe."""
    vhost = broker.topology.vhosts["/"]
    keys = topics(count)
    matcher = vhost.exchanges["amq.topic"].matcher
    print(f"   trie            {quantiles(timed(lambda key: matcher.match(key, lambda: QOS_0.neutral), keys))}")
    fresh = list(dict.fromkeys(keys))
    publish = vhost.router.routed
    slabs = {key: Slab("amq.topic", key, QOS_0, [b""]) for key in fresh}
    print(f"   no route        {quantiles(timed(lambda key: publish(slabs[key]), fresh))}")
    print(f"   a route         {quantiles(timed(lambda key: publish(slabs[key]), fresh))}")
    await broker.declare_queue("another")
    churn = []
    for number in range(1000):
        pattern = f"fleet.{number}.device.{number}.#"
        began_ns = time.perf_counter_ns()
        await broker.bind("queue", "another", "amq.topic", pattern, {}, syntax="mqtt")
        await broker.unbind("queue", "another", "amq.topic", pattern, {}, syntax="mqtt")
        churn.append(time.perf_counter_ns() - began_ns)
    left = sum(len(cache.routes) for cache in vhost.router._by_exchange.values())
    print(f"   bind and unbind {quantiles(churn)}; {left:,} of {len(fresh):,} routes are left after 2,000 changes")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument(
        "--durable", action="store_true", help="as those of sessions that last: bindings in the catalog"
    )
    parser.add_argument("--traced", action="store_true", help="only the exact memory, which takes ten times as long")
    chosen = parser.parse_args()
    for make in (distinct, alike):
        bindings = list(make(chosen.subscriptions, chosen.sessions))
        trio.run(
            lambda bindings, name: measure(
                name, bindings, chosen.sessions, durable=chosen.durable, traced=chosen.traced
            ),
            bindings,
            make.__name__,
        )


if __name__ == "__main__":
    main()
