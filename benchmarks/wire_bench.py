"""Drive a message broker to saturation over AMQP 0-9-1 or MQTT 3.1.1 and 5.

    python -m benchmarks.wire_bench amqp --port 5672 --broker-pid 1234 --scenario durable --json out.jsonl
    python -m benchmarks.wire_bench mqtt --port 1883 --broker-pid 1234

AMQP scenarios                                   MQTT scenarios
  transient        no confirms, auto-ack           qos0          1 publisher, 1 subscriber
  durable          persistent, confirms, acks      qos1          same with QoS 1 and a window
  backlog          fill a durable queue, drain it  fanout        QoS 0, 1 to 50
  fanout           topic exchange, 10 queues       fanin         QoS 0, 50 to 1
  conns            idle connections                conns         idle connections
  latency          as transient, at --rate         latency       as qos0, at --rate
  latency-durable  as durable, at --rate           latency-qos1  as qos1, at --rate

MQTT also has `qos2`, `session` (QoS 1 to a session that lasts), and `v5-qos0` and `v5-qos1`: version 5 with a content
type, a user property and a topic alias on every message. Each of these and of those in the table has a `-varied` one.

`durable-rules` is `durable-ids` (bodies of one size, a message id that changes) with a random priority and expiration
on every message and a queue with priorities, a time to live and a dead letter exchange.

Uniform scenarios send one message again and again. `transient-varied`, `durable-varied`, `fanout-varied` and those of
MQTT send bodies of 50 to 500 bytes with message ids (AMQP) or topics (MQTT, fan-out) that change from message to
message, so that nothing can profit from messages being equal.

A rate is deliveries per second from the first publish to the last delivery. Broker CPU is user+system time of the
--broker-pid process tree, per million deliveries (per million publishes while a backlog is filled). Latencies run from
before the send to after the read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_mqtt import Mqtt
from benchmarks.wire_proto import Amqp, BrokerError, Plan, serial
from benchmarks.wire_roles import FORK, Child, Figures, Role, consume, publish

now = time.monotonic

SCENARIOS: dict[str, dict[str, Plan | None]] = {
    "amqp": {
        "transient": Plan(),
        "transient-varied": Plan(varied=True),
        "durable": Plan(reliable=True),
        "durable-varied": Plan(reliable=True, varied=True),
        "durable-ids": Plan(reliable=True, ids=True),
        "durable-rules": Plan(reliable=True, rules=True),
        "backlog": Plan(reliable=True, backlog=True),
        "fanout": Plan(topic=True, subscribers=10),
        "fanout-varied": Plan(topic=True, subscribers=10, varied=True),
        "conns": None,
        "latency": Plan(rate=1),
        "latency-durable": Plan(rate=1, reliable=True),
    },
    "mqtt": {
        "qos0": Plan(),
        "qos0-varied": Plan(varied=True),
        "qos1": Plan(reliable=True),
        "qos1-varied": Plan(reliable=True, varied=True),
        "qos2": Plan(reliable=True, qos=2),
        "qos2-varied": Plan(reliable=True, qos=2, varied=True),
        "session": Plan(reliable=True, session=True),
        "session-varied": Plan(reliable=True, session=True, varied=True),
        "fanout": Plan(subscribers=50),
        "fanout-varied": Plan(subscribers=50, varied=True),
        "fanin": Plan(publishers=50),
        "fanin-varied": Plan(publishers=50, varied=True),
        "v5-qos0": Plan(version=5),
        "v5-qos0-varied": Plan(version=5, varied=True),
        "v5-qos1": Plan(version=5, reliable=True),
        "v5-qos1-varied": Plan(version=5, reliable=True, varied=True),
        "conns": None,
        "latency": Plan(rate=1),
        "latency-qos1": Plan(rate=1, reliable=True),
    },
}


def flow(options: argparse.Namespace, broker: ProcessUsage, plan: Plan) -> Figures:
    """One run of publishers and subscribers, at once or for a backlog one after the other."""
    name = f"bench-{os.getpid()}-{next(serial)}"
    remove = options.client.prepare(options, plan, name)
    total = FORK.Value("q", -1)  # messages published, once that is known
    try:
        if not plan.backlog:
            return measure(options, broker, plan, name, total, [consume, publish])
        figures: Figures = {}
        for phase, role in (("fill", publish), ("drain", consume)):
            part = measure(options, broker, plan, name, total, [role])
            time.sleep(2)
            part["rss_after_mib"] = broker.rss_mib()
            figures |= {f"{phase}_{key}": value for key, value in part.items()}
        return figures
    finally:
        remove()


def measure(
    options: argparse.Namespace, broker: ProcessUsage, plan: Plan, name: str, total: object, roles: Sequence[Role]
) -> Figures:
    """Run the roles to their end together; a dict of figures."""
    children = {role: Child(role, options, plan, name, total) for role in roles}
    finish = broker.watch()
    try:
        for child in children.values():
            child.pipe.send("go")
        ends = {role: children[role].receive() for role in reversed(roles)}
        usage = finish()
    finally:
        for child in children.values():
            child.close()
    first, last = ends[roles[-1]], ends[roles[0]]  # publishing begins, consuming ends
    if not last["count"]:
        raise BrokerError("nothing was delivered")
    seconds = last["ended"] - first["began"]
    figures: Figures = {
        "rate": last["count"] / seconds,
        "count": last["count"],
        "seconds": seconds,
        "began": first["began"],
        "cpu_s_per_million": usage["cpu_s"] / last["count"] * 1e6,
        "other_cores": usage["machine_cores"] - usage["cores"],
        **usage,
    }
    for role, end in ends.items():
        share = end["cpu"] / (end["ended"] - end["began"])
        figures["pub_cpu_pct" if role is publish else "sub_cpu_pct"] = 100 * share
        figures["other_cores"] -= end["cpu"] / seconds
    if not plan.backlog:
        figures["publish_rate"] = first["count"] / (first["ended"] - first["began"])
        figures["lost"] = first["count"] * plan.subscribers - last["count"]
    if plan.rate:
        values = sorted(last["latencies"])
        for mark, part in ("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1):
            figures[f"lat_{mark}_us"] = values[min(int(part * len(values)), len(values) - 1)] / 1e3
        figures["pub_late_ms"] = first["late_ms"]
    return figures


def connections(options: argparse.Namespace, broker: ProcessUsage) -> Figures:
    """Open idle connections (AMQP: with a channel each); what one costs."""
    finish = broker.watch()
    before, began, cpu = broker.rss_mib(), now(), broker.cpu_s()
    conns = options.client.open_many(options, options.connections)
    seconds, cpu = now() - began, broker.cpu_s() - cpu
    time.sleep(3)
    after = broker.rss_mib()
    usage = finish()
    idle = broker.cpu_s()
    time.sleep(2)
    idle = (broker.cpu_s() - idle) / 2
    for conn in conns:
        conn.sock.close()
    time.sleep(3)
    count = len(conns)
    return usage | {
        "count": count,
        "rate": count / seconds,
        "cpu_ms_per_connection": cpu * 1e3 / count,
        "kib_per_connection": (after - before) * 1024 / count,
        "idle_cores": idle,
        "rss_closed_mib": broker.rss_mib(),
    }


def run_once(options: argparse.Namespace, scenario: str) -> Figures:
    """One run of a scenario of the protocol of `options`."""
    plan, broker = SCENARIOS[options.protocol][scenario], ProcessUsage(options.broker_pid)
    if plan is None:
        return connections(options, broker)
    rate = options.rate if plan.rate else 0
    options = argparse.Namespace(**vars(options) | {"version": plan.version})
    return flow(options, broker, replace(plan, body=options.body, window=options.window, rate=rate))


def summary(runs: Sequence[Figures]) -> tuple[Figures, dict[str, tuple[float, float]]]:
    """Median and (least, greatest) of each figure."""
    columns = {key: [one[key] for one in runs] for key in runs[0]}
    return (
        {key: statistics.median(column) for key, column in columns.items()},
        {key: (min(column), max(column)) for key, column in columns.items()},
    )


def run(options: argparse.Namespace, scenario: str) -> Figures:
    """All runs of a scenario: the warm-up is dropped, the others are summarised."""
    small = {
        "duration": options.warm_up,
        "backlog": options.backlog // 10,
        "connections": options.connections // 10,
    }
    warm_up = argparse.Namespace(**vars(options) | small)
    runs = []
    for these in [warm_up] * (options.warm_up > 0) + [options] * options.runs:
        runs.append(run_once(these, scenario))
        time.sleep(options.pause)
    runs = runs[-options.runs :]
    median, spread = summary(runs)
    return {
        "label": options.label,
        "protocol": options.protocol,
        "scenario": scenario,
        "body": options.body,
        "when": time.strftime("%F %T"),
        "nproc": os.cpu_count(),
        "median": median,
        "spread": spread,
        "runs": runs,
    }


def make_parser() -> argparse.ArgumentParser:
    """The command line; its defaults are also those of other tools."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--broker-pid", type=int, help="root of the process tree whose CPU and RSS count")
    add("--scenario", action="append", help="repeatable; all when not given")
    add("--body", type=int, default=100, help="bytes of payload, at least 8; varied scenarios choose their own")
    add("--duration", type=float, default=8, help="seconds of publishing in a run")
    add("--runs", type=int, default=3)
    add("--warm-up", type=float, default=2, help="seconds of a first run that is dropped")
    add("--pause", type=float, default=1, help="seconds between runs")
    add("--patience", type=float, default=5, help="seconds of silence that mean lost messages")
    add("--max-messages", type=int, default=20_000_000, help="cap on a run's publishes")
    add("--window", type=int, default=1000, help="unconfirmed publishes allowed")
    add("--rate", type=float, default=1000, help="messages a second in latency mode")
    add("--backlog", type=int, default=1_000_000, help="messages in the backlog scenario")
    add("--connections", type=int, default=1000)
    add("--label", default="", help="name of the broker in the output")
    add("--user", default="guest", help="AMQP only, as are the next two")
    add("--password", default="guest")
    add("--vhost", default="/")
    add("--persistent-session", action="store_true", help="MQTT only: clean session off")
    add("--tls", action="store_true", help="speak TLS, verifying nothing; not for scenarios without confirms")
    add("--json", nargs="?", const="-", metavar="FILE", help="append JSON lines to FILE, or stdout")
    sub = parser.add_subparsers(dest="protocol", required=True)
    sub.add_parser("amqp", parents=[common])
    sub.add_parser("mqtt", parents=[common])
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of a run, with the `client` class of the protocol."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.client = {"amqp": Amqp, "mqtt": Mqtt}[options.protocol]
    known = SCENARIOS[options.protocol]
    for scenario in options.scenario or ():
        if scenario not in known:
            parser.error(f"no scenario {scenario!r}; there are {', '.join(known)}")
    return options


def main() -> None:
    """Run the scenarios asked for and print their figures."""
    options = parse()
    for scenario in options.scenario or SCENARIOS[options.protocol]:
        result = run(options, scenario)
        if options.json:
            with open("/dev/stdout" if options.json == "-" else options.json, "a") as file:
                file.write(json.dumps(result) + "\n")
        if options.json != "-":
            print(f"{options.label or options.protocol} {scenario} body={options.body}")
            for key, value in result["median"].items():
                low, high = result["spread"][key]
                print(f"  {key:28} {value:14.2f}   [{low:.2f} .. {high:.2f}]", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokerError as error:
        sys.exit(f"wire_bench: {error}")
