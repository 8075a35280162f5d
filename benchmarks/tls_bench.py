"""The durable AMQP scenarios over TLS, Millrace and RabbitMQ in turn, and Millrace without TLS beside them.

    python -m benchmarks.tls_bench --duration 6 --runs 3

Certificates are made for the run. Figures are those of `wire_bench`: deliveries a second, and the broker's CPU seconds
for a million deliveries. The load generator encrypts as well, so it takes more of the machine than without TLS.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trustme

from benchmarks import peers
from benchmarks.wire_bench import parse, run_once
from tests.support import broker_process

SCENARIOS = ("durable", "durable-varied")


@contextlib.contextmanager
def brokers(directory: Path) -> Iterator[dict[str, tuple[int, int, bool]]]:
    """Name: (port, process id, whether it speaks TLS)."""
    leaf = trustme.CA().issue_cert("127.0.0.1")
    cert, key = directory / "cert.pem", directory / "key.pem"
    leaf.cert_chain_pems[0].write_to_path(str(cert))
    leaf.private_key_pem.write_to_path(str(key))
    key.chmod(0o644)
    directory.chmod(0o755)
    doors = ("amqp", "mqtt", "native", "amqps")
    arguments = ("--tls-cert", str(cert), "--tls-key", str(key))
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(broker_process(directory / "data", doors=doors, arguments=arguments))
        found = {"Millrace TLS": (ours.ports["amqps"], ours.pid, True), "Millrace": (ours.amqp_port, ours.pid, False)}
        if peers.rabbitmq_installed():
            port, pid = stack.enter_context(peers.rabbitmq((str(cert), str(key))))
            found["RabbitMQ TLS"] = (port, pid, True)
        yield found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=6)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tls-bench-") as directory, brokers(Path(directory)) as found:
        for scenario in SCENARIOS:
            rates: dict[str, list[float]] = {name: [] for name in found}
            cpu: dict[str, list[float]] = {name: [] for name in found}
            for turn in range(options.runs + 1):
                for name, (port, pid, tls) in found.items():
                    wire = parse(["amqp", "--port", str(port), "--broker-pid", str(pid)])
                    wire.tls, wire.duration = tls, options.duration if turn else 1
                    figures = run_once(wire, scenario)
                    if turn:  # the first run is to warm up
                        rates[name].append(figures["rate"])
                        cpu[name].append(figures["cpu_s_per_million"])
            for name in found:
                rate, seconds = statistics.median(rates[name]), statistics.median(cpu[name])
                print(f"{scenario:15} {name:13} {rate:10,.0f} messages/s {seconds:8.2f} CPU s per million", flush=True)


if __name__ == "__main__":
    main()
