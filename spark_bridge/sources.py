"""What stands behind the options of a read: topics, what an MQTT filter keeps, a queue.

1. An MQTT filter has a topic that keeps what it matches; the broker makes it when it is first asked for (the operation
   `topics.of_filter`). From there on it is a topic like any other, and so is a queue that is a stream.
2. What waits in another queue is read in the order in which it came, under its offsets in the log behind the queue, and
   stays there. Offsets of other queues' messages are gaps. A queue that was deleted and made again may be in another
   log: the broker says the queue's id wherever it says something of such offsets.
3. What a query takes out of a queue is set aside for it by the broker, under positions that follow each other
   (`consuming.py`). Either kind comes as whole record batches, like a topic's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocols.native.clients.blocking import BlockingClient, KnownTopic, Which
from protocols.native.clients.records import split_batches
from protocols.native.errors import MillraceError, NotFound, PreconditionFailed
from spark_bridge.offsets import DataLoss, OffsetRange, OffsetSource
from spark_bridge.options import DEFAULT_VHOST, OptionError, ReadOptions

FETCH_BYTES_MAX = 1 << 20
_SWAPPED = str.maketrans("/.", "./")
"""Topics of MQTT as routing keys, and back."""


@dataclass(frozen=True)
class Source:
    """What is read, as `options` name it: topics. With a `reader` they are queues; see `OffsetRange.reader`."""

    log: OffsetSource
    options: ReadOptions
    reader: str | None = None


def source_of(client: BlockingClient, options: ReadOptions) -> Source:
    """What the options mean. Raises `OptionError`, `MillraceError`."""
    if options.mqtt_filter is not None:
        topic = client.look("topics.of_filter", pattern=options.mqtt_filter.translate(_SWAPPED), vhost=options.vhost)
        return Source(client, replace(options, topics=(topic,)))
    if options.queue is None:
        return Source(client, options)
    log = QueueLog(client, options.queue, options.vhost)
    if log.topic is not None:
        if options.consumes:
            raise OptionError(f"queue.mode=consume: {options.queue!r} is a stream, nothing is taken from it: browse it")
        return Source(client, replace(options, topics=(log.topic,)))
    reader = options.group if options.consumes else ""
    return Source(log, replace(options, topics=(options.queue,)), reader)


class QueueLog:
    """A queue as one partition of a topic. `topic` is another one if it is a stream."""

    def __init__(self, client: BlockingClient, name: str, vhost: str) -> None:
        self._client = client
        self._name = name
        self._vhost = vhost
        self.topic: str | None = self._asked()["topic"]

    def _asked(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.look("queues.ends", name=self._name, vhost=self._vhost)
        except NotFound:
            where = "" if self._vhost == DEFAULT_VHOST else f" in virtual host {self._vhost!r}"
            raise OptionError(f"there is no queue {self._name!r}{where}") from None
        return found

    def _queue(self) -> dict[str, Any]:
        found = self._asked()
        if found["topic"] is not None:
            raise OptionError(f"the queue {self._name!r} was made again as a stream: begin to read it anew")
        return found

    def topics(self, names: Sequence[str] | None = None) -> dict[str, KnownTopic]:
        """It has one partition; its id is empty from brokers that do not say it."""
        return {self._name: KnownTopic([0], self._queue().get("id", "").encode())}

    def list_many_offsets(self, wanted: Sequence[tuple[str, int, Which]]) -> list[int | None]:
        """See `OffsetSource`; there is no looking up by time."""
        end = self._queue()["end"] if any(which == "latest" for _, _, which in wanted) else 0
        return [end if which == "latest" else 0 for _, _, which in wanted]


def queue_batches(client: BlockingClient, one: OffsetRange, options: ReadOptions) -> Iterator[memoryview]:
    """The record batches of a range of a queue. Raises `DataLoss`, `MillraceError`."""
    operation = "queues.reserved" if one.reader else "queues.browse"
    said: dict[str, str | int] = {"vhost": options.vhost}
    if one.reader:
        said["reader"] = one.reader
    number = "position" if one.reader else "offset"
    at = one.start_offset
    while at < one.end_offset:
        said |= {"name": one.topic, number: at, "before": one.end_offset, "bytes_max": FETCH_BYTES_MAX}
        try:
            found = client.look(operation, **said)
        except (PreconditionFailed, NotFound) as error:
            if options.fail_on_data_loss:
                raise _lost(one, error) from None
            return
        if one.topic_id and found.get("id", "").encode().hex() != one.topic_id:
            if options.fail_on_data_loss:
                raise _lost(one, "it was deleted and made again")
            return
        yield from split_batches(memoryview(found["batches"]))
        at = found["next"]


def _lost(one: OffsetRange, why: MillraceError | str) -> DataLoss:
    return DataLoss(f"what was to be read of the queue {one.topic!r} is not there any more: {why}")
