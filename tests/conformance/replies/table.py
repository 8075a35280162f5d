"""All cases, what RabbitMQ answers to them (`rabbitmq.json`), and asking a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from protocols.amqp import methods as m
from tests.conformance.replies import (
    cases_arguments,
    cases_equivalence,
    cases_frames,
    cases_messages,
    cases_others,
    cases_streams,
    cases_topology,
)
from tests.conformance.replies.client import ReplyClient, Step
from tests.conformance.replies.steps import CASES, Q, X

TABLE = Path(__file__).with_name("rabbitmq.json")
MODULES = (
    cases_topology, cases_others, cases_arguments, cases_equivalence, cases_messages, cases_frames, cases_streams,
)  # fmt: skip
"""Importing them fills `CASES`."""

_LEFTOVERS: list[Step] = [m.QueueDelete(queue=Q), m.ExchangeDelete(exchange=X)]


def transcripts(port: int, timeout_s: float) -> Iterator[tuple[str, list[str]]]:
    """Do every case, each on a connection of its own; its name and what was answered."""
    for name, (login, steps) in CASES.items():
        yield name, ReplyClient(port, login, timeout_s).run(steps)
        if any(_stays(step) for step in steps):
            ReplyClient(port, None, timeout_s).run(list(_LEFTOVERS))


def _stays(step: Step) -> bool:
    """Whether what it makes outlives its connection."""
    return isinstance(step, m.ExchangeDeclare) or (isinstance(step, m.QueueDeclare) and not step.exclusive)


def read_table() -> dict[str, list[str]]:
    """What RabbitMQ answered."""
    table: dict[str, list[str]] = json.loads(TABLE.read_text())
    return table


def write_table(table: dict[str, list[str]]) -> None:
    """Keep what RabbitMQ answered."""
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
