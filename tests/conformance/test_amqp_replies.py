"""Reply codes and texts against what RabbitMQ 3.10 was seen to answer."""

from __future__ import annotations

import pytest

from tests.conformance.replies.known import reason
from tests.conformance.replies.table import read_table, transcripts
from tests.support import BrokerProcess


def test_every_case_of_misuse_is_answered_as_rabbitmq_does(shared_broker: BrokerProcess) -> None:
    table = read_table()
    wrong = []
    for name, answers in transcripts(shared_broker.amqp_port, 5.0):
        if answers != table[name] and reason(name) is None:
            wrong.append(f"{name}\n    RabbitMQ: {' | '.join(table[name])}\n    here:     {' | '.join(answers)}")
    if wrong:
        pytest.fail("\n".join(wrong))
