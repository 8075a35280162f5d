"""What a scrape of `/metrics` costs a broker with many queues, and for how long it holds up the event loop.

    python -m benchmarks.metrics [--queues 10000]

The broker runs in this process, with the settings of one; a task sleeps a millisecond again and again, and the longest
that it woke up late is told, without a scrape and with each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import urllib.request

import trio

from gateway.config import load_config
from gateway.server import serve, tune_process

_SLEEP_S = 0.001
_SCRAPES = ("identity", "gzip", "gzip", "identity", "gzip")


def scrape(port: int, encoding: str) -> int:
    """Bytes of the body as it was sent."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": encoding})
    with urllib.request.urlopen(request) as answer:
        return len(answer.read())


async def sleep_again_and_again(late_s: list[float]) -> None:
    """Notes how late it woke up."""
    while True:
        began = time.perf_counter()
        await trio.sleep(_SLEEP_S)
        late_s.append(time.perf_counter() - began - _SLEEP_S)


async def run(queues: int, directory: str) -> None:
    """Print a line for each scrape."""
    off = dict.fromkeys(("amqp", "mqtt", "native"), "off")
    config = load_config(environment={}, flags={"data_dir": directory, "listen": {**off, "http": "127.0.0.1:0"}})
    async with serve(config) as server, trio.open_nursery() as nursery:
        tune_process()
        for number in range(queues):
            await server.broker.declare_queue(f"queue-{number:05d}", durable=False)
        late_s: list[float] = []
        nursery.start_soon(sleep_again_and_again, late_s)
        await trio.sleep(0.5)
        print(f"no scrape: {max(late_s) * 1000:.1f} ms late at most")
        for encoding in _SCRAPES:
            late_s.clear()
            began, cpu_s = time.perf_counter(), time.process_time()
            size = await trio.to_thread.run_sync(scrape, server.ports["http"], encoding)
            took_ms, cpu_ms = (time.perf_counter() - began) * 1000, (time.process_time() - cpu_s) * 1000
            late_ms = max(late_s) * 1000
            print(
                f"{encoding}: {size:,} bytes in {took_ms:.0f} ms ({cpu_ms:.0f} ms CPU), {late_ms:.1f} ms late at most"
            )
            await trio.sleep(0.2)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    with tempfile.TemporaryDirectory() as made:
        trio.run(run, parser.parse_args().queues, made)
