"""What users of the jobs are told of an error in a Python process of Spark's."""

from __future__ import annotations

import traceback

import pytest

from core_log.errors import CorruptBatch
from protocols.native.errors import BatchTooLarge, ConnectionLost, NotLeader, ProducerFenced, UnknownTopic
from spark_bridge.jobs.session import JobError, sentence_of
from spark_bridge.offsets import DataLoss
from spark_bridge.options import OptionError


@pytest.mark.parametrize(
    "kind",
    [
        BatchTooLarge,
        ConnectionLost,
        CorruptBatch,
        DataLoss,
        JobError,
        NotLeader,
        OptionError,
        ProducerFenced,
        UnknownTopic,
    ],
)
def test_the_sentence_of_an_error_is_what_users_are_told(kind: type[Exception]) -> None:
    try:
        raise kind("a batch of 2000075 bytes, the limit is 1048588")
    except Exception as error:
        said = "".join(traceback.format_exception(error))
    told = sentence_of(RuntimeError(f"An exception was thrown from the Python worker:\n{said}"))
    assert told == "a batch of 2000075 bytes, the limit is 1048588"
