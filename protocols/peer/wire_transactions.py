"""What brokers ask each other for transactions, as frames of links of kind `engine`; the codec is `wire_engine.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from protocols.peer.wire import ENTRIES_MAX, Frame, LogName, Number, Ranges

QUESTION_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 256 << 20
"""A message that is retained travels in one: it must hold the largest there can be, of an MQTT client."""

Key = Annotated[bytes, Meta(min_length=1, max_length=64)]
Outcome = Literal["done", "refused", "unknown", "before"]


class KeepTransaction(Frame, tag=48):
    """Keep a transaction that is decided in log `number`, which the receiver leads, or forget it (no record)."""

    request: Number
    number: Number
    key: Key
    record: bytes | None


class AskPlaces(Frame, tag=49):
    """Where in their queue's home the deliveries of consumer `number` lie: ranges of ids."""

    request: Number
    number: Number
    ids: Ranges


class SettlementEntry(Frame):
    """Messages of one queue that are done with, by their offsets; consumer `number` (0: none) has them as `ids`."""

    queue_id: Number
    number: Number
    ids: Ranges
    offsets: Ranges
    rejected: bool


class SettleThere(Frame, tag=50):
    """Settle messages of queues of a home that the receiver leads, whoever has them. `revision` as in `Publish`."""

    request: Number
    revision: Number
    log: LogName
    entries: Annotated[list[SettlementEntry], Meta(max_length=ENTRIES_MAX)]


class TransactionAnswer(Frame, tag=51):
    """To all of these. `refused`: nothing was done, and `text` says why; `unknown`: it may yet be; `before`: the step,
    or a later one, was kept before. To `PutThere` the offset is where the log ends.
    """

    request: Number
    outcome: Outcome
    text: Annotated[str, Meta(max_length=4096)]
    offsets: Ranges


class AskCoordinator(Frame, tag=52):
    """A question about transactions of producers (`routing/log_transactions/questions.py`, msgpack)."""

    request: Number
    question: Annotated[bytes, Meta(max_length=QUESTION_BYTES_MAX)]


class CoordinatorAnswer(Frame, tag=53):
    """To that: the name of an error and what it says, or the answer."""

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    answer: Annotated[bytes, Meta(max_length=ANSWER_BYTES_MAX)]


class KeepStep(Frame, tag=54):
    """Keep a step of a writer in log `number`, which the receiver leads, unless that was done before."""

    request: Number
    number: Number
    key: Key
    record: bytes
    writer: Annotated[bytes, Meta(max_length=255)]
    step: Number


class PutThere(Frame, tag=55):
    """Have a log that the receiver leads hold its part of a step, as the record says; without one only say where it
    ends. `revision` as in `Publish`.
    """

    request: Number
    revision: Number
    log: LogName
    record: bytes


Question = KeepTransaction | AskPlaces | SettleThere | KeepStep | PutThere
"""What has a `TransactionAnswer`."""
TransactionFrame = Question | TransactionAnswer | AskCoordinator | CoordinatorAnswer
"""What `adapter_transactions.py` deals with."""
