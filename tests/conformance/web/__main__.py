"""A walk through the broker's own page in a real browser, while clients of AMQP, MQTT and Kafka are connected.

    python -m tests.conformance.web
    python -m tests.conformance.web --pictures DIRECTORY     # and of each task how the page looked at its end

It needs Chromium with chromedriver, and selenium (extra `conformance`); without them it is left out, and says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance.__main__ import Missing
from tests.support import BrokerProcess, broker_process

DOORS = ("amqp", "mqtt", "native", "kafka", "http")
CONFIG = "[engine]\ngroup_initial_delay_ms = 0\n"
"""Nobody waits for more members before a group begins."""


def walk_through(broker: BrokerProcess, pictures: Path | None) -> int:
    """All tasks in their order; how many failed. Raises Missing."""
    try:
        from tests.conformance.web import devices_and_users, topics_and_queues
        from tests.conformance.web.clients import clients
        from tests.conformance.web.page import page_at, saved
        from tests.conformance.web.walk import ADMINISTRATOR, GROUP, PASSWORD, QUEUE, TOPIC, Walk
    except ImportError as error:
        raise Missing(str(error)) from None
    failed = 0
    with page_at(f"http://127.0.0.1:{broker.ports['http']}/") as page:
        walk = Walk(page, broker)
        with walk.client() as client:
            client.administer("users.add", name=ADMINISTRATOR, password=PASSWORD, tags=["administrator"])
            client.administer("permissions.set", vhost="/", name=ADMINISTRATOR, configure=".*", write=".*", read=".*")
            client.create_topic(TOPIC)
        with clients(broker, QUEUE, TOPIC, GROUP) as walk.clients:
            for task in (*topics_and_queues.TASKS, *devices_and_users.TASKS):
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
    parser.add_argument("--pictures", type=Path, help="a directory for pictures")
    options = parser.parse_args()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.toml")
        config.write_text(CONFIG)
        with broker_process(Path(directory, "data"), doors=DOORS, arguments=("--config", str(config))) as broker:
            try:
                failed = walk_through(broker, options.pictures)
            except Missing as missing:
                print(f"left out, {missing}")
                return 0
    print(f"{failed} tasks failed" if failed else "all tasks done")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
