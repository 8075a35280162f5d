"""A Celery application as one finds them, without a word about the broker but its address.

Its settings come from the environment: `CONFORMANCE_BROKER`, `CONFORMANCE_RESULTS` (a result backend) and
`CONFORMANCE_NOTES` (a directory in which tasks leave a file).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery(
    "conformance",
    broker=os.environ.get("CONFORMANCE_BROKER", "amqp://guest:guest@127.0.0.1:5672//"),
    backend=os.environ.get("CONFORMANCE_RESULTS", "rpc://"),
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    task_send_sent_event=True,
    task_default_queue="conformance.celery",
    result_expires=600,
)


@app.task
def add(left: int, right: int) -> int:
    """The sum."""
    return left + right


@app.task
def total(numbers: list[int]) -> int:
    """The sum of many."""
    return sum(numbers)


@app.task
def when(wanted_s: float) -> float:
    """How much later than wanted it ran."""
    return time.time() - wanted_s


@app.task
def nap(seconds: float, note: str) -> str:
    """Take a while, and leave a note at both ends."""
    notes = Path(os.environ["CONFORMANCE_NOTES"])
    (notes / f"{note}.{os.getpid()}.began").touch()
    time.sleep(seconds)
    (notes / f"{note}.{os.getpid()}.ended").touch()
    return note


@app.task(bind=True, max_retries=3)
def third_time(self: Any) -> int:
    """Fails twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    attempts: int = self.request.retries
    return attempts
