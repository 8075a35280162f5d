"""The demo's main thread: starts the parts, shows how far they are, compares, and leaves nothing behind.

1. Everything lives in one temporary directory and in processes this one started; both are gone when `run` returns,
   whether it ends well, fails or is interrupted.
2. Bindings and topics exist before the first flight is published, so every flight must arrive.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gateway.demo import DIFFERENT, INTERRUPTED, OK, airport, devices, show, spark, workers
from gateway.demo.broker import BrokerDidNotStart, DemoBroker
from gateway.demo.check import Outcome, compare
from gateway.demo.crew import Crew, PartFailed
from gateway.demo.flights import AIRPORT, Expected, expect, load

WORKERS = 3
SILENCE_TIMEOUT_S = 60
LOG_SHOWN_BYTES = 4_000
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Bars = dict[str, tuple[TaskID, int]]


def run(rows: int | None) -> int:
    """Run the demo; see `gateway.demo.main`."""
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    previous = {number: signal.signal(number, _interrupt) for number in INTERRUPTS}
    try:
        return _run_in(directory, rows, console)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return INTERRUPTED
    except (BrokerDidNotStart, PartFailed) as error:
        console.print("[bold red]FAILED[/]", end=" ")
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        for log in sorted(directory.glob("*.log")):
            text = log.read_text(errors="replace")[-LOG_SHOWN_BYTES:]
            console.print(f"--- end of {log.name}\n{text}", markup=False, highlight=False, soft_wrap=True)
        return DIFFERENT
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)  # cleaning up is not to be interrupted
    raise KeyboardInterrupt


def _run_in(directory: Path, rows: int | None, console: Console) -> int:
    began = time.monotonic()
    without_spark = spark.missing()
    with console.status("reading the data set"):
        expected = expect(load(rows))
    with console.status("starting a broker"):
        broker = DemoBroker(directory)
    with broker:
        console.print(f"broker ready: {', '.join(f'{door} {broker.address(door)}' for door in broker.ports)}")
        workers.declare(broker.ports["amqp"])
        airport.create_topics(broker.address("native"))
        outcome = _work(broker, rows, expected, console, directory, with_spark=without_spark is None)
    checks = compare(expected, outcome)
    if outcome.means is not None:
        console.print(show.means_table(outcome.means))
    console.print(show.checks_table(checks))
    if without_spark is not None:
        console.print(f"Spark was left out: {without_spark}. This installs it:", highlight=False)
        console.print("    pip install 'millrace[demo]'", markup=False, highlight=False)
    failed = [check for check in checks if check.differences]
    verdict = "[bold red]DIFFERENT[/]" if failed else "[bold green]ALL EQUAL[/]"
    console.print(f"{verdict} after {time.monotonic() - began:.1f} s", highlight=False)
    return DIFFERENT if failed else OK


def _work(
    broker: DemoBroker, rows: int | None, expected: Expected, console: Console, directory: Path, *, with_spark: bool
) -> Outcome:
    """Run all parts to their ends."""
    outcome = Outcome()
    columns = TextColumn("{task.description}"), BarColumn(bar_width=10), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        with Crew(silence_timeout_s=SILENCE_TIMEOUT_S) as crew:
            bars = _bars(progress, expected)
            crew.start("reader", airport.follow, broker.address("native"))
            for number in range(WORKERS):
                crew.start(f"worker {number + 1}", workers.work, broker.ports["amqp"])
            crew.start("devices", devices.publish, broker.ports["mqtt"], rows)
            for name, value in crew.reports():
                _note(outcome, name, value)
                for bar, done in _done(outcome).items():
                    progress.update(bars[bar][0], completed=done)
                if all(done >= bars[bar][1] for bar, done in _done(outcome).items()):
                    break
        outcome.left_in_queue = workers.messages_left(broker.ports["amqp"])
        if with_spark:
            task = progress.add_task("Spark computes mean delays", total=1)
            with Crew(silence_timeout_s=2 * SILENCE_TIMEOUT_S) as crew:
                crew.start("Spark", spark.compute, broker.address("native"), airport.FLIGHTS_TOPIC, str(directory))
                _, outcome.means = next(crew.reports())
            progress.update(task, completed=1)
    return outcome


def _bars(progress: Progress, expected: Expected) -> Bars:
    """A bar for each part, with the number it has to reach."""
    totals = {
        "devices": (f"{expected.devices} devices publish over MQTT", expected.flights),
        "workers": (f"{WORKERS} workers take the delayed over AMQP", len(expected.delayed)),
        "reader": (f"a reader follows {AIRPORT}, natively", sum(map(len, expected.airport.values()))),
    }
    return {name: (progress.add_task(text, total=total), total) for name, (text, total) in totals.items()}


def _done(outcome: Outcome) -> dict[str, int]:
    return {
        "devices": outcome.published,
        "workers": len(outcome.handled),
        "reader": sum(map(len, outcome.airport.values())),
    }


def _note(outcome: Outcome, name: str, value: Any) -> None:
    """Take in one report."""
    if name == "devices":
        outcome.published = value
    elif name == "reader":
        for key, identity in value:
            outcome.airport.setdefault(key, []).append(identity)
    else:
        outcome.handled += value
