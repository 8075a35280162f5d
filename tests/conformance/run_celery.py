"""A Celery worker and its clients against a broker: the parts of Celery that lean on RabbitMQ's ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
TASK_COUNT = 25


class Celery:
    """The application, loaded for one broker, and its workers."""

    def __init__(self, port: int, directory: Path) -> None:
        self.directory = directory
        for name in ("results", "notes"):
            (directory / name).mkdir()
        os.environ["CONFORMANCE_BROKER"] = f"amqp://guest:guest@127.0.0.1:{port}//"
        os.environ["CONFORMANCE_RESULTS"] = f"file://{directory}/results"
        os.environ["CONFORMANCE_NOTES"] = str(directory / "notes")
        from tests.conformance import celery_tasks

        self.tasks: Any = celery_tasks
        self.app: Any = celery_tasks.app

    @contextmanager
    def worker(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that has said that it is ready."""
        command = [
            *(sys.executable, "-m", "celery", "-A", "tests.conformance.celery_tasks", "worker", "-E"),
            *("-n", f"{name}@%h", "-P", "threads", "-c", "4", "-l", "warning"),
        ]
        with Path(self.directory, f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
        try:
            wait_for(lambda: any(name in found for found in (self.app.control.inspect(timeout=1).ping() or {})))
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def log(self, name: str) -> str:
        """What a worker said."""
        return Path(self.directory, f"{name}.log").read_text()

    def notes(self, pattern: str) -> list[str]:
        """The notes that tasks have left."""
        return [path.name for path in Path(self.directory, "notes").glob(pattern)]


def wait_for(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first true answer. Raises TimeoutError."""
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{condition} was not met in {timeout_s} s")
        time.sleep(0.1)


def check_tasks(celery: Celery) -> str:
    """Plain tasks, groups, a chord, and retries with a countdown."""
    from celery import chord, group

    tasks = celery.tasks
    assert group(tasks.add.s(number, 1) for number in range(20)).apply_async().get(timeout=TIMEOUT_S) == list(
        range(1, 21)
    )
    assert chord((tasks.add.s(number, 0) for number in range(10)), tasks.total.s())().get(timeout=TIMEOUT_S) == 45
    assert (tasks.add.s(1, 2) | tasks.add.s(4)).apply_async().get(timeout=TIMEOUT_S) == 7
    assert tasks.third_time.delay().get(timeout=TIMEOUT_S) == 2
    return "tasks, groups, chains, chords, retries"


def check_eta(celery: Celery) -> str:
    """More tasks for later than the prefetch limit, which the worker has to raise for them."""
    wanted = time.time() + 3
    results = [celery.tasks.when.apply_async((wanted,), countdown=3) for _ in range(TASK_COUNT)]
    assert celery.tasks.add.delay(1, 1).get(timeout=TIMEOUT_S) == 2, "tasks for later hold up those for now"
    late = [result.get(timeout=TIMEOUT_S) for result in results]
    assert min(late) > -0.1, f"a task ran {-min(late)} s early"
    return f"countdown: {TASK_COUNT} tasks, the last ran {max(late):.2f} s late"


def check_control(celery: Celery) -> str:
    """inspect, control and revoke."""
    app, inspect = celery.app, celery.app.control.inspect(timeout=1)
    assert inspect.stats()
    assert inspect.active_queues()
    registered = inspect.registered()
    assert any("celery_tasks.add" in task for tasks in registered.values() for task in tasks)
    due = time.monotonic() + 10
    revoked = celery.tasks.nap.apply_async((0.1, "revoked"), countdown=10)
    wait_for(lambda: any((inspect.scheduled() or {}).values()))
    app.control.revoke(revoked.id)
    wait_for(lambda: any(revoked.id in ids for ids in (inspect.revoked() or {}).values()))
    assert app.control.rate_limit(celery.tasks.total.name, "100/s", reply=True)
    assert app.control.add_consumer("conformance.extra", reply=True)
    assert celery.tasks.add.apply_async((2, 3), queue="conformance.extra").get(timeout=TIMEOUT_S) == 5
    assert app.control.cancel_consumer("conformance.extra", reply=True)
    time.sleep(max(0.0, due + 1 - time.monotonic()))
    assert celery.notes("revoked.*") == []
    return "inspect, control, revoke"


def check_events(celery: Celery) -> str:
    """Events of tasks, as a monitor gets them."""
    seen: list[str] = []

    def listen() -> None:
        with celery.app.connection() as connection:
            receiver = celery.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
            try:
                receiver.capture(limit=None, timeout=8, wakeup=True)
            except OSError:
                pass  # nothing came for a while, or the broker has gone at the end

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    wanted = {"task-sent", "task-received", "task-started", "task-succeeded", "worker-heartbeat"}

    def complete() -> bool:
        celery.tasks.add.delay(1, 1)
        return wanted <= set(seen)

    wait_for(complete)
    return "events"


def check_rpc_results(celery: Celery) -> str:
    """The result backend that works by messages alone."""
    code = (
        "from tests.conformance.celery_tasks import add; "
        "print([result.get(timeout=30) for result in [add.delay(n, n) for n in range(20)]])"
    )
    with celery.worker("rpc"):
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    assert found.stdout.strip() == str([2 * number for number in range(20)]), found.stdout + found.stderr
    return "results by rpc"


def check_acks_late(celery: Celery) -> str:
    """A worker dies in the middle of a task: another does it."""
    with celery.worker("first") as first:
        celery.tasks.nap.delay(8, "late")
        wait_for(lambda: celery.notes("late.*.began"))
        first.kill()
        first.wait()
    with celery.worker("second"):
        wait_for(lambda: celery.notes("late.*.ended"))
    assert len(celery.notes("late.*.began")) == 2
    return "acks_late"


def run(port: int) -> list[str]:
    """All of it against the broker at `port`; what was checked. Raises AssertionError, TimeoutError."""
    with tempfile.TemporaryDirectory() as directory:
        celery = Celery(port, Path(directory))
        try:
            with celery.worker("main"):
                done = [check(celery) for check in (check_tasks, check_eta, check_control, check_events)]
            done.append(check_acks_late(celery))
            os.environ["CONFORMANCE_RESULTS"] = "rpc://"
            done.append(check_rpc_results(celery))
        except BaseException:
            print(celery.log("main")[-4000:])
            raise
        return done
