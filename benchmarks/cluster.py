"""What replication costs: a broker alone and three as a cluster, on one machine, under the load of `wire_bench`.

    python -m benchmarks.cluster [--scenario latency-durable] [--runs 3] [--duration 4] [--alone] [--idle 10]

The load is connected to broker 1, which leads the queue's home; all data lies where TMPDIR says, and should be on a
real disk. CPU is that of each process for a delivery: of the leader, of the dearer follower, of etcd. With `--idle` it
says what a member takes that does nothing, in per cent of a processor.
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


def usages(stack: ExitStack, options: argparse.Namespace) -> tuple[int, dict[str, ProcessUsage]]:
    """Start what is to be measured: the AMQP port, and the processes by what they are."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
    if options.alone:
        broker = stack.enter_context(broker_process(directory / "data"))
        return broker.amqp_port, {"leader": ProcessUsage(broker.pid)}
    cluster = stack.enter_context(cluster_processes(directory, relayed=False))
    cluster.until_whole()
    cluster.until(is_settled, what="preferred leaders")
    found = {"leader" if one == LEADER else f"follower {one}": broker.pid for one, broker in cluster.brokers.items()}
    found["etcd"] = cluster.etcd.pids[0]
    return cluster.brokers[LEADER].amqp_port, {name: ProcessUsage(pid) for name, pid in found.items()}


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


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scenario", default="latency-durable", help="of `wire_bench amqp`")
    add("--rate", type=float, default=1000, help="messages a second in a latency scenario")
    add("--duration", type=float, default=4, help="seconds of publishing in a run")
    add("--runs", type=int, default=3)
    add("--alone", action="store_true", help="a single broker, without a cluster")
    add("--idle", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    with ExitStack() as stack:
        port, processes = usages(stack, options)
        for usage in processes.values():
            usage.find()
        if options.idle:
            time.sleep(2)
            idle(processes, options.idle)
        measure(port, processes, options, options.duration / 4)
        runs = [measure(port, processes, options, options.duration) for _ in range(options.runs)]
    wanted = ["rate", "lost", "lat_p50_us", "lat_p99_us", *(f"us of {name}" for name in processes), "machine_cores"]
    for key in wanted:
        if key in runs[0]:
            values = [run[key] for run in runs]
            print(f"{key:16} {statistics.median(values):12,.2f}   [{min(values):,.2f} .. {max(values):,.2f}]")


if __name__ == "__main__":
    main()
