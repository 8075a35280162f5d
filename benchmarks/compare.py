"""Measure Millrace side by side with RabbitMQ and Mosquitto and print a Markdown table against the targets.

    python -m benchmarks.compare                                  everything that is installed
    python -m benchmarks.compare --quick --ours-only              a smoke test of a few minutes
    python -m benchmarks.compare --scenario amqp-durable --runs 5 --json out.jsonl

1. Brokers of one scenario are started afresh, run at the same time and are driven in turn (ours, theirs, ours, ...), so
   that both meet the same machine; the one that is not driven is idle. A first short run of each is dropped.
2. A figure is the median of the runs, with the least and the greatest in parentheses. A run that lost messages fails.
3. Data directories are made where TMPDIR says: it should be on a real disk, or durability costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import trio

from benchmarks import many_queues, neighbour, peers
from benchmarks import native_produce as native
from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_bench import SCENARIOS, measure, parse, run_once
from benchmarks.wire_proto import BrokerError
from benchmarks.wire_roles import FORK, Figures, consume, publish
from tests.support import HOST, BrokerProcess, broker_process

OURS = "Millrace"
BASELINE_MESSAGES = 50_000


@dataclass(frozen=True)
class Comparison:
    """A scenario of `wire_bench` and what is expected: at least so many times the peer's rate, or at most (latency)."""

    protocol: str
    scenario: str
    at_least: float = 0
    at_most: Sequence[tuple[str, float]] = ()
    beside: str = ""
    """Another scenario of our own: a delivery may cost at most `DEARER_MAX` times the CPU of one there."""


DEARER_MAX = 1.3

COMPARISONS = {
    "amqp-transient": Comparison("amqp", "transient", at_least=3),
    "amqp-transient-varied": Comparison("amqp", "transient-varied", at_least=3),
    "amqp-durable": Comparison("amqp", "durable", at_least=5),
    "amqp-durable-varied": Comparison("amqp", "durable-varied", at_least=5),
    "amqp-fanout": Comparison("amqp", "fanout", at_least=5),
    "amqp-fanout-varied": Comparison("amqp", "fanout-varied", at_least=5),
    "amqp-latency": Comparison("amqp", "latency", at_most=[("p50", 1), ("p99", 1)]),
    "amqp-latency-durable": Comparison("amqp", "latency-durable", at_most=[("p50", 1), ("p99", 1)]),
    "mqtt-qos0": Comparison("mqtt", "qos0", at_least=6),
    "mqtt-qos0-varied": Comparison("mqtt", "qos0-varied", at_least=6),
    "mqtt-qos1": Comparison("mqtt", "qos1", at_least=6),
    "mqtt-qos1-varied": Comparison("mqtt", "qos1-varied", at_least=6),
    "mqtt-qos2": Comparison("mqtt", "qos2", at_least=3),
    "mqtt-qos2-varied": Comparison("mqtt", "qos2-varied", at_least=3),
    "mqtt-session": Comparison("mqtt", "session", at_least=3),
    "mqtt-session-varied": Comparison("mqtt", "session-varied", at_least=3),
    "mqtt-fanout": Comparison("mqtt", "fanout", at_least=20),
    "mqtt-fanout-varied": Comparison("mqtt", "fanout-varied", at_least=20),
    "mqtt-fanin": Comparison("mqtt", "fanin", at_least=4),
    "mqtt-fanin-varied": Comparison("mqtt", "fanin-varied", at_least=4),
    "mqtt5-qos0-varied": Comparison("mqtt", "v5-qos0-varied", beside="qos0-varied"),
    "mqtt5-qos1-varied": Comparison("mqtt", "v5-qos1-varied", beside="qos1-varied"),
    "mqtt-latency": Comparison("mqtt", "latency", at_most=[("p50", 1), ("p99", 1)]),
    "mqtt-latency-qos1": Comparison("mqtt", "latency-qos1", at_most=[("p50", 1), ("p99", 1)]),
}


@dataclass
class Row:
    """A line of the table; `ours` and `theirs` hold the figure of each run."""

    what: str
    unit: str
    ours: list[float]
    theirs: list[float]
    peer: str
    target: str
    met: bool | None

    def cells(self) -> list[str]:
        """The line as text."""
        ratio = f"{statistics.median(self.ours) / statistics.median(self.theirs):.2f}" if self.theirs else ""
        met = {True: "yes", False: "**no**", None: ""}[self.met]
        theirs = f"{spread(self.theirs)} ({self.peer})" if self.theirs else ""
        return [self.what, self.unit, spread(self.ours), theirs, ratio, self.target, met]


def spread(values: Sequence[float]) -> str:
    """`median (least to greatest)`."""
    form = "{:,.0f}" if statistics.median(values) >= 100 else "{:.3g}"
    median, least, greatest = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least} to {greatest})"


class Bench:
    """The options of a session, the brokers it starts, and what it has measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[Row] = []

    @contextlib.contextmanager
    def ours(self) -> Iterator[BrokerProcess]:
        """A fresh broker of our own."""
        with (
            tempfile.TemporaryDirectory(prefix="millrace-bench-") as directory,
            broker_process(Path(directory, "data"), arguments=self.options.broker_argument) as broker,
        ):
            yield broker

    @contextlib.contextmanager
    def brokers(
        self, protocol: str, *, latency: bool = False, sessions: bool = False
    ) -> Iterator[dict[str, tuple[int, int]]]:
        """Ours and the peers of `protocol` as name: (port, process id); with `sessions` all keep what they hold."""
        with contextlib.ExitStack() as stack:
            broker = stack.enter_context(self.ours())
            found = {OURS: (broker.ports[protocol], broker.pid)}
            if not self.options.ours_only:
                if protocol == "amqp" and peers.rabbitmq_installed():
                    found["RabbitMQ"] = stack.enter_context(peers.rabbitmq())
                if protocol == "mqtt" and peers.mosquitto_path():
                    # Nagle's algorithm, its default, ruins latencies and helps rates: compare with its best.
                    lines = ["max_topic_alias 100", *(["set_tcp_nodelay true"] if latency else [])]
                    if sessions:
                        kept = stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-mosquitto-kept-"))
                        lines += ["persistence true", f"persistence_location {kept}/"]
                    found["Mosquitto"] = stack.enter_context(peers.mosquitto(*lines))
            yield found

    def wire_options(self, protocol: str, port: int, pid: int, **changes: object) -> argparse.Namespace:
        """Options for `wire_bench`, with its defaults where we have none of our own."""
        wire = parse([protocol, "--port", str(port), "--broker-pid", str(pid)])
        wire.duration = self.options.duration
        wire.connections = self.options.connections
        wire.backlog = self.options.backlog
        vars(wire).update(changes)
        return wire

    def add(self, row: Row) -> None:
        """Keep and show a line."""
        self.rows.append(row)
        print("| " + " | ".join(row.cells()) + " |", flush=True)

    def record(self, scenario: str, runs: dict[str, list[Figures]]) -> None:
        """Append raw figures to the JSON file, if there is one."""
        if self.options.json:
            line = {"scenario": scenario, "when": time.strftime("%F %T"), "runs": runs}
            with open(self.options.json, "a") as file:
                file.write(json.dumps(line) + "\n")

    def compare(self, name: str, comparison: Comparison) -> None:
        """One scenario of COMPARISONS."""
        runs: dict[str, list[Figures]] = {}
        plan = SCENARIOS[comparison.protocol][comparison.scenario]
        sessions = plan is not None and plan.session
        with self.brokers(comparison.protocol, latency=bool(comparison.at_most), sessions=sessions) as brokers:
            drives = [(broker, broker, comparison.scenario) for broker in brokers]
            if comparison.beside:
                drives.append((OURS, comparison.beside, comparison.beside))
            for turn in range(self.options.runs + 1):
                for broker, column, scenario in drives:
                    changes = {} if turn else {"duration": self.options.warm_up}
                    figures = run_once(self.wire_options(comparison.protocol, *brokers[broker], **changes), scenario)
                    if turn:
                        runs.setdefault(column, []).append(figures)
                    time.sleep(0.5)
        self.record(name, runs)
        ours, beside = runs.pop(OURS), runs.pop(comparison.beside, [])
        peer, theirs = next(iter(runs.items()), ("", []))
        lossless = not any(figures["lost"] for figures in ours)
        if comparison.at_least:
            self.add_ratio(name, "deliveries/s", "rate", ours, theirs, peer, comparison.at_least, lossless)
            self.add_ratio(name, "broker CPU µs per delivery", "cpu_s_per_million", ours, theirs, peer, None, True)
        if beside:
            what = f"{name} beside {comparison.beside}"
            unit = "broker CPU µs per delivery"
            self.add_ratio(what, "deliveries/s", "rate", ours, theirs, peer, None, True)
            self.add_ratio(what, unit, "cpu_s_per_million", ours, beside, OURS, -DEARER_MAX, lossless)
        for mark, factor in comparison.at_most:
            self.add_ratio(name, f"{mark} µs", f"lat_{mark}_us", ours, theirs, peer, -factor, lossless)
        if not lossless:
            self.add(Row(name, "messages lost", [figures["lost"] for figures in ours], [], "", "0", False))

    def add_ratio(
        self,
        name: str,
        unit: str,
        key: str,
        ours: list[Figures],
        theirs: list[Figures],
        peer: str,
        factor: float | None,
        lossless: bool,
    ) -> None:
        """A line with a target relative to the peer: at least `factor` times, or at most when it is negative."""
        mine, others = [run[key] for run in ours], [run[key] for run in theirs]
        met, target = None, ""
        if factor is not None:
            target = f"≥ {factor:g}x" if factor > 0 else f"≤ {-factor:g}x"
            if others:
                ratio = statistics.median(mine) / statistics.median(others)
                met = lossless and (ratio >= factor if factor > 0 else ratio <= -factor)
        self.add(Row(name, unit, mine, others, peer, target, met))

    def add_limit(self, name: str, unit: str, ours: list[float], limit: float, *, at_least: bool = False) -> None:
        """A line with an absolute target: below `limit`, or at least it."""
        median = statistics.median(ours)
        met = median >= limit if at_least else median < limit
        self.add(Row(name, unit, ours, [], "", f"{'≥' if at_least else '<'} {limit:g}", met))

    def connections(self) -> None:
        """What an idle AMQP connection costs; each broker is fresh, as freed memory that is reused costs nothing."""
        runs: dict[str, list[Figures]] = {}
        with self.brokers("amqp") as brokers:
            for broker, (port, pid) in brokers.items():
                runs[broker] = [run_once(self.wire_options("amqp", port, pid), "conns")]
        self.record("connections", runs)
        ours = [run["kib_per_connection"] for run in runs.pop(OURS)]
        peer, theirs = next(iter(runs.items()), ("", []))
        others = [run["kib_per_connection"] for run in theirs]
        what = f"{self.options.connections} idle AMQP connections"
        self.add(Row(what, "KiB RSS each", ours, others, peer, "< 12", statistics.median(ours) < 12))

    def native_produce(self) -> None:
        """1 MiB batches with acks=all, beside the same bytes written to a file with an fdatasync after each."""
        batch, count = native.make_batch(), int(50 * self.options.duration)
        mib = count * len(batch) / (1 << 20)
        ours: list[float] = []
        plain: list[float] = []
        with self.ours() as broker:
            server, directory = f"{HOST}:{broker.native_port}", str(broker.data_dir.parent)
            trio.run(native.records_s, server, b"x", 1, 1)
            for _ in range(self.options.runs):
                plain.append(mib / native.plain_s(directory, batch, count, 1))
                ours.append(mib / trio.run(native.batches_s, server, batch, count, 4))
        self.record("native-produce", {OURS: [{"mib_s": ours, "plain_mib_s": plain}]})
        self.add(Row("native-produce", "MiB/s of durable 1 MiB batches", ours, plain, "write + fdatasync", "", None))

    def start(self) -> None:
        """Cold start on an empty directory, and memory when idle."""
        times, memory = [], []
        for _ in range(max(3, self.options.runs)):
            with self.ours() as broker:
                times.append(broker.start_s)
                time.sleep(1)
                usage = ProcessUsage(broker.pid)
                usage.find()
                memory.append(usage.rss_mib())
        self.record("start", {OURS: [{"start_s": times, "rss_mib": memory}]})
        self.add_limit("cold start", "s to `ready`", times, 1)
        self.add_limit("idle broker", "MiB RSS", memory, 60)

    def backlog(self) -> None:
        """Fill a durable queue, restart in both ways, drain; against rates of a short queue."""
        count, plan = self.options.backlog, SCENARIOS["amqp"]["backlog"]
        assert plan is not None
        figures: Figures = {}
        with self.ours() as broker:
            options = self.wire_options("amqp", broker.amqp_port, broker.pid)
            small = argparse.Namespace(**vars(options) | {"backlog": BASELINE_MESSAGES})
            base = [run_once(small, "backlog") for _ in range(max(3, self.options.runs))]
            remove = options.client.prepare(options, plan, "backlog")
            usage, total = ProcessUsage(broker.pid), FORK.Value("q", -1)
            figures["fill"] = measure(options, usage, plan, "backlog", total, [publish])
            time.sleep(2)
            figures["growth_mib"] = usage.rss_mib() - figures["fill"]["rss_start_mib"]
            broker.terminate()
            broker.start(same_ports=True)
            figures["restart_s"] = broker.start_s
            broker.kill9()
            broker.start(same_ports=True)
            figures["restart_killed_s"] = broker.start_s
            figures["drain"] = measure(options, ProcessUsage(broker.pid), plan, "backlog", total, [consume])
            remove()
        self.record("backlog", {OURS: [figures, *base]})
        what = f"backlog {count:,}"
        fill, drain = (statistics.median(run[f"{phase}_rate"] for run in base) for phase in ("fill", "drain"))
        self.add_limit(what, "fill rate / that of an empty queue", [figures["fill"]["rate"] / fill], 0.8, at_least=True)
        self.add_limit(what, "drain rate / that of 50,000", [figures["drain"]["rate"] / drain], 0.8, at_least=True)
        self.add_limit(what, "MiB RSS grown by the fill", [figures["growth_mib"]], 64)
        self.add_limit(what, "s to `ready` after SIGTERM", [figures["restart_s"]], 5)
        self.add_limit(what, "s to `ready` after kill -9", [figures["restart_killed_s"]], 5)
        lost = count - figures["drain"]["count"]
        self.add(Row(what, "messages lost", [lost], [], "", "0", lost == 0))
        self.backlog_rates(what, figures)

    def backlog_rates(self, what: str, ours: Figures) -> None:
        """The absolute rates beside RabbitMQ's, for information."""
        theirs: Figures | None = None
        if not self.options.ours_only and peers.rabbitmq_installed():
            with peers.rabbitmq() as (port, pid):
                theirs = run_once(self.wire_options("amqp", port, pid), "backlog")
            self.record("backlog", {"RabbitMQ": [theirs]})
        for phase in ("fill", "drain"):
            others = [theirs[f"{phase}_rate"]] if theirs else []
            self.add(Row(what, f"{phase} messages/s", [ours[phase]["rate"]], others, "RabbitMQ", "", None))

    def many_queues(self) -> None:
        """A thousand queues, one message in flight in each."""
        runs: dict[str, list[Figures]] = {}
        with self.brokers("amqp") as brokers:
            for turn in range(self.options.runs + 1):
                for broker, (port, pid) in brokers.items():
                    figures = many_queues.run(self.wire_options("amqp", port, pid))
                    if turn:
                        runs.setdefault(broker, []).append(figures)
                    time.sleep(0.5)
        self.record("many-queues", runs)
        ours = runs.pop(OURS)
        peer, theirs = next(iter(runs.items()), ("", []))
        name = f"{many_queues.QUEUES} queues"
        self.add_ratio(name, "deliveries/s", "rate", ours, theirs, peer, 3, True)
        self.add_ratio(name, "broker CPU µs per delivery", "cpu_s_per_million", ours, theirs, peer, None, True)

    def neighbour(self) -> None:
        """Latencies of a modest client beside a load that takes all it can get."""
        with self.brokers("amqp") as brokers:
            for confirms in (False, True):
                name = f"neighbour of {neighbour.LOAD}" + (", confirms" if confirms else "")
                runs: dict[str, list[Figures]] = {}
                for turn in range(self.options.runs + 1):
                    for broker, (port, pid) in brokers.items():
                        options = self.wire_options("amqp", port, pid)
                        figures = neighbour.beside_load(options, confirms=confirms)
                        if turn:
                            runs.setdefault(broker, []).append(figures)
                self.record(name, runs)
                ours = runs.pop(OURS)
                peer, theirs = next(iter(runs.items()), ("", []))
                for mark in ("p50", "p99"):
                    self.add_ratio(name, f"{mark} µs", f"lat_{mark}_us", ours, theirs, peer, -1, True)
                self.add_ratio(name, "deliveries/s of the load", "load_rate", ours, theirs, peer, None, True)

    OTHERS: ClassVar[dict[str, Callable[[Bench], None]]] = {
        "connections": connections,
        "many-queues": many_queues,
        "neighbour": neighbour,
        "backlog": backlog,
        "native-produce": native_produce,
        "start": start,
    }


def machine() -> str:
    """What the figures were measured on, in a line."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    system = subprocess.run(
        ["df", "--output=fstype", tempfile.gettempdir()], capture_output=True, text=True, check=False
    ).stdout.split()
    return (
        f"{os.cpu_count()} CPUs ({model.partition(':')[2].strip()}), Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}, data on {system[-1] if system else '?'}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    names = [*COMPARISONS, *Bench.OTHERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scenario", action="append", choices=names, metavar="NAME", help=f"repeatable: {', '.join(names)}")
    add("--duration", type=float, default=6, help="seconds of publishing in a run")
    add("--warm-up", type=float, default=2, help="seconds of a first run that is dropped")
    add("--runs", type=int, default=3)
    add("--backlog", type=int, default=1_000_000, help="messages")
    add("--connections", type=int, default=5000)
    add("--quick", action="store_true", help="one short run of each, a backlog of 100,000 and 500 connections")
    add("--json", metavar="FILE", help="append the raw figures as JSON lines")
    add("--ours-only", action="store_true", help="do not start peers")
    add("--broker-argument", action="append", default=[], metavar="ARGUMENT", help="passed on to our broker")
    options = parser.parse_args()
    options.scenario = options.scenario or names
    if options.quick:
        vars(options).update(duration=1, warm_up=0.5, runs=1, backlog=100_000, connections=500)
    return options


def main() -> int:
    """Run the scenarios asked for; 1 when a target was missed."""
    options = parse_arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"{machine()}; {options.runs} runs of {options.duration:g} s\n")
    print("| scenario | figure | Millrace | peer | ratio | target | met |\n|---|---|---|---|---|---|---|", flush=True)
    bench, failures = Bench(options), 0
    for name in options.scenario:
        try:
            if name in COMPARISONS:
                bench.compare(name, COMPARISONS[name])
            else:
                bench.OTHERS[name](bench)
        except (BrokerError, RuntimeError, OSError) as error:
            failures += 1
            print(f"| {name} | failed: {' '.join(str(error).split())[-300:]} | | | | | **no** |", flush=True)
    missed = [row.what for row in bench.rows if row.met is False]
    print(f"\n{len(bench.rows)} figures, {len(missed)} targets missed, {failures} scenarios failed")
    return 1 if missed or failures else 0


if __name__ == "__main__":
    sys.exit(main())
