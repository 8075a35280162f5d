"""What replication costs: a broker alone and three as a cluster, on one machine, under the load of `wire_bench`.

    python -m benchmarks.cluster [--scenario latency-durable] [--runs 3] [--duration 4] [--alone | --pairs] [--idle 10]

The load is connected to broker 1, which leads the queue's home; all data lies where TMPDIR says, and should be on a
real disk. CPU is that of each process for a delivery: of the leader, of the dearer follower, of etcd. With `--idle`
it says what a member takes that does nothing, in per cent of a processor. With `--pairs` a broker alone and the
cluster run in turn, and the leader's CPU is told as a multiple of that of the broker alone: pair by pair, as the
machine changes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_bench import parse, run_once
from benchmarks.wire_roles import Figures
from tests.support import broker_process
from tests.support.cluster import Status, cluster_processes

LEADER = 1


def is_settled(status: Status) -> bool:
    """Whether all is led by whom it is to be led by: no leader changes under the load."""
    return all(one["leader"] == one["replicas"][0] for one in status["partitions"])


def usages(stack: ExitStack, *, alone: bool) -> tuple[int, dict[str, ProcessUsage]]:
    """Start what is to be measured: the AMQP port, and the processes by what they are."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
    if alone:
        broker = stack.enter_context(broker_process(directory / "data"))
        return broker.amqp_port, {"leader": ProcessUsage(broker.pid)}
    cluster = stack.enter_context(cluster_processes(directory, relayed=False))
    cluster.until_whole()
    cluster.until(is_settled, what="preferred leaders")
    found = {"leader" if one == LEADER else f"follower {one}": broker.pid for one, broker in cluster.brokers.items()}
    found["etcd"] = cluster.etcd.pids[0]
    return cluster.brokers[LEADER].amqp_port, {name: ProcessUsage(pid) for name, pid in found.items()}


def ready(stack: ExitStack, options: argparse.Namespace, *, alone: bool) -> tuple[int, dict[str, ProcessUsage]]:
    """What `usages` starts, after a short run that is not counted."""
    port, processes = usages(stack, alone=alone)
    for usage in processes.values():
        usage.find()
    if options.idle:
        time.sleep(2)
        idle(processes, options.idle)
    measure(port, processes, options, options.duration / 4)
    return port, processes


def measure(port: int, processes: dict[str, ProcessUsage], options: argparse.Namespace, seconds: float) -> Figures:
    """One run."""
    wire = parse(["amqp", "--port", str(port), "--rate", str(options.rate)])
    wire.duration, wire.broker_pid = seconds, processes["leader"].pid
    before = {name: usage.cpu_s() for name, usage in processes.items()}
    figures = run_once(wire, options.scenario)
    for name, usage in processes.items():
        figures[f"us of {name}"] = (usage.cpu_s() - before[name]) / figures["count"] * 1e6
    return figures


def idle(processes: dict[str, ProcessUsage], seconds: float) -> None:
    """Print what they take when nobody asks anything of them."""
    before = {name: usage.cpu_s() for name, usage in processes.items()}
    time.sleep(seconds)
    shares = (f"{name} {(usage.cpu_s() - before[name]) / seconds:.1%}" for name, usage in processes.items())
    print("idle: " + ", ".join(shares), flush=True)


def show(name: str, runs: list[Figures], wanted: list[str]) -> None:
    """Print medians, and the least and greatest."""
    print(f"{name}:")
    for key in wanted:
        if key in runs[0]:
            values = [run[key] for run in runs]
            print(f"{key:16} {statistics.median(values):12,.2f}   [{min(values):,.2f} .. {max(values):,.2f}]")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scenario", default="latency-durable", help="of `wire_bench amqp`")
    add("--rate", type=float, default=1000, help="messages a second in a latency scenario")
    add("--duration", type=float, default=4, help="seconds of publishing in a run")
    add("--runs", type=int, default=3)
    add("--alone", action="store_true", help="a single broker, without a cluster")
    add("--pairs", action="store_true", help="a single broker and a cluster, in turn")
    add("--idle", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    with ExitStack() as stack:
        which = [True, False] if options.pairs else [options.alone]
        started = [ready(stack, options, alone=alone) for alone in which]
        rounds = [[measure(*one, options, options.duration) for one in started] for _ in range(options.runs)]
    for number, (alone, (_, processes)) in enumerate(zip(which, started)):
        wanted = ["rate", "lost", "lat_p50_us", "lat_p99_us", *(f"us of {name}" for name in processes)]
        show("alone" if alone else "cluster", [figures[number] for figures in rounds], [*wanted, "machine_cores"])
    if options.pairs:
        ratios = [cluster["us of leader"] / alone["us of leader"] for alone, cluster in rounds]
        print(f"leader to alone  {statistics.median(ratios):.2f}   {' '.join(f'{ratio:.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
