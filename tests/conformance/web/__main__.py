"""A walk through the broker's own page in a real browser, while clients of AMQP, MQTT and Kafka are connected.

    python -m tests.conformance.web
    python -m tests.conformance.web --https                  # by the door with TLS
    python -m tests.conformance.web --cluster                # the page of one of three brokers, clients at another
    python -m tests.conformance.web --pictures DIRECTORY     # and of each task how the page looked at its end

It needs Chromium with chromedriver, and selenium (extra `conformance`); without them it is left out, and says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trustme

from gateway.etcd_process import find_etcd
from tests.conformance.__main__ import Missing
from tests.support import BrokerProcess, broker_process
from tests.support.cluster import cluster_processes
from tests.support.web import with_tls

DOORS = ("amqp", "mqtt", "native", "kafka", "http")
CONFIG = "[engine]\ngroup_initial_delay_ms = 0\n"
"""Nobody waits for more members before a group begins."""


@contextmanager
def started(directory: Path, options: argparse.Namespace) -> Iterator[tuple[BrokerProcess, str, str]]:
    """The broker where clients are, the page, and the page of that broker. Raises Missing."""
    if options.cluster and find_etcd() is None:
        raise Missing("there is no etcd")
    arguments = with_tls(directory, trustme.CA(), CONFIG)
    if options.cluster:
        with cluster_processes(directory / "cluster", relayed=False, arguments=arguments, doors=DOORS) as cluster:
            pages = [f"http://127.0.0.1:{cluster.brokers[number].ports['http']}/" for number in (1, 2)]
            yield cluster.brokers[2], *pages
        return
    scheme = "https" if options.https else "http"
    doors = (*DOORS[:-1], scheme)
    with broker_process(directory / "data", doors=doors, arguments=arguments) as broker:
        url = f"{scheme}://127.0.0.1:{broker.ports[scheme]}/"
        yield broker, url, url


def walk_through(broker: BrokerProcess, url: str, clients_url: str, pictures: Path | None) -> int:
    """All tasks in their order; how many failed. Raises Missing."""
    try:
        from tests.conformance.web import devices_and_users, topics_and_queues
        from tests.conformance.web.clients import clients
        from tests.conformance.web.page import page_at, saved
        from tests.conformance.web.walk import ADMINISTRATOR, GROUP, PASSWORD, QUEUE, TOPIC, Walk
    except ImportError as error:
        raise Missing(str(error)) from None
    failed = 0
    with ExitStack() as stack:
        first = at_the_clients = stack.enter_context(page_at(url))
        walk = Walk(first, broker)
        with walk.client() as client:
            client.administer("users.add", name=ADMINISTRATOR, password=PASSWORD, tags=["administrator"])
            client.administer("permissions.set", vhost="/", name=ADMINISTRATOR, configure=".*", write=".*", read=".*")
            client.create_topic(TOPIC)
        tasks = [*topics_and_queues.TASKS, *devices_and_users.TASKS]
        others = topics_and_queues.AT_THE_CLIENTS + devices_and_users.AT_THE_CLIENTS
        with clients(broker, QUEUE, TOPIC, GROUP) as walk.clients:
            if url != clients_url:
                at_the_clients = stack.enter_context(page_at(clients_url))
                at_the_clients.open()
                at_the_clients.logout()
                at_the_clients.login(ADMINISTRATOR, PASSWORD)
                tasks.insert(len(topics_and_queues.TASKS), devices_and_users.a_broker_shows_its_own_clients)
            for task in tasks:
                page = walk.page = at_the_clients if task in others else first
                began = time.monotonic()
                said = "done"
                try:
                    task(walk)
                    complaints = page.complaints()
                    assert not complaints, f"the console says {complaints}"
                except Exception as error:
                    failed += 1
                    said = f"FAILED\n{type(error).__name__}: {error}"
                if pictures is not None:
                    saved(page, pictures / f"{task.__name__}.png")
                page.give_up()
                print(f"{task.__name__.replace('_', ' ')}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    return failed


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--https", action="store_true", help="by the door with TLS")
    where.add_argument("--cluster", action="store_true", help="the page of another broker than the clients'")
    parser.add_argument("--pictures", type=Path, help="a directory for pictures")
    options = parser.parse_args()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as directory, started(Path(directory), options) as found:
            failed = walk_through(*found, options.pictures)
    except Missing as missing:
        print(f"left out, {missing}")
        return 0
    print(f"{failed} tasks failed" if failed else "all tasks done")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
