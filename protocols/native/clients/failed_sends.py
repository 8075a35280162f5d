"""What is said of records that a producer took and could not store: a line each, and the sink of the application.

1. A record that is stored costs nothing: a batch is looked at when it has failed for good, after all that was tried
   again.
2. The line, of the level error, says topic, partition, key, message id, the size of the value and the error, never the
   value. They are fields of the `logging.LogRecord` too (`extra`). Of a batch there are `_LINES_MAX` at most, and one
   that counts the others.
3. The sink gets every record, whole, as it was sent (behind serialisers and interceptors), and the error. It is called
   by whoever has found out, so it must not wait; what it raises is logged.
4. A record that is told of may have been stored all the same when the error says that nobody knows: ConnectionLost,
   DeliveryTimedOut. What `send` itself raises is the caller's, who has the record; what an aborted transaction takes
   back has not failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from core_log.compression import Compression
from protocols.buffers import BytesLike
from protocols.native.clients.hooks import ProducerRecord
from protocols.native.clients.records import BatchDraft, ConsumerRecord, batch_records, message_id_of
from protocols.native.errors import MillraceError, TransactionAborted

logger = logging.getLogger("protocols.native.clients.producer")

FailedSink = Callable[[ProducerRecord, MillraceError], object]

_LINES_MAX = 100
_SHOWN_BYTES_MAX = 200


def tell_failed(
    topic: str, partition: int, batch: BatchDraft | BytesLike, error: MillraceError, sink: FailedSink | None
) -> None:
    """See the module. A draft is used up."""
    if isinstance(error, TransactionAborted):
        return
    data = batch.build(Compression.NONE) if isinstance(batch, BatchDraft) else batch
    records = batch_records(topic, partition, data, 0)
    for record in islice(records, _LINES_MAX):
        _say(record, error)
    if len(records) > _LINES_MAX:
        logger.error(
            "send failed topic=%r partition=%d: %d more records of the batch, error=%s",
            topic, partition, len(records) - _LINES_MAX, type(error).__name__,
        )  # fmt: skip
    if sink is None:
        return
    for record in records:
        sent = ProducerRecord(topic, record.value, record.key, record.headers, partition, record.timestamp_ms)
        try:
            sink(sent, error)
        except Exception:
            logger.exception("the sink for failed sends failed")


def _say(record: ConsumerRecord, error: MillraceError) -> None:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "key": _text(record.key),
        "message_id": _text(message_id_of(record.headers)),
        "value_bytes": len(record.value or b""),
        "error": type(error).__name__,
        "reason": str(error),
    }
    said = " ".join(f"{name}={value!r}" for name, value in fields.items())
    logger.error("send failed %s", said, extra=fields)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value[:_SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace")
