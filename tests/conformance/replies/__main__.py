"""Reply codes of Millrace and of RabbitMQ, side by side.

python -m tests.conformance.replies            what Millrace answers otherwise than RabbitMQ did, and why
python -m tests.conformance.replies check      the same for an installed RabbitMQ: whether the table is still right
python -m tests.conformance.replies record     ask an installed RabbitMQ anew and write the table
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers import rabbitmq, rabbitmq_installed
from tests.conformance.replies.known import reason
from tests.conformance.replies.table import read_table, transcripts, write_table
from tests.support import broker_process

RABBITMQ_TIMEOUT_S = 8.0
"""It closes 3 s after a fault in the handshake."""


@contextmanager
def millrace_port() -> Iterator[int]:
    """A broker of our own."""
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data")) as broker:
        yield broker.amqp_port


def differences(port: int, timeout_s: float) -> Iterator[tuple[str, list[str], list[str]]]:
    """Name, RabbitMQ's answers, and what the broker at `port` answers instead."""
    table = read_table()
    for name, answers in transcripts(port, timeout_s):
        if answers != table.get(name, []):
            yield name, table.get(name, []), answers


def main(command: str = "compare") -> int:
    """See the module; the exit code is 1 if there are differences nobody knows of."""
    if command != "compare":
        if not rabbitmq_installed():
            print("RabbitMQ is not installed")
            return 2
        with rabbitmq() as (port, _):
            if command == "record":
                write_table(dict(transcripts(port, RABBITMQ_TIMEOUT_S)))
                return 0
            return show(list(differences(port, RABBITMQ_TIMEOUT_S)), known=False)
    with millrace_port() as port:
        return show(list(differences(port, 5.0)), known=True)


def show(found: list[tuple[str, list[str], list[str]]], *, known: bool) -> int:
    """Print differences; how many are unexplained decides the exit code."""
    unexplained = 0
    for name, expected, answers in found:
        why = reason(name) if known else None
        unexplained += why is None
        print(f"{name}\n    RabbitMQ: {' | '.join(expected)}\n    here:     {' | '.join(answers)}")
        print(f"    because {why}" if why else "    UNEXPLAINED")
    print(f"{len(found)} differences of {len(read_table())} cases, {unexplained} unexplained")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
