"""Which partitions a connection was refused last, so that what it had sent behind that is refused in the same way.

1. Clients have up to five batches of an idempotent producer on the way to a partition. The first may be refused because
   another broker leads or replicas are missing, and that may be over when the second is looked at: then that one is a
   number too early, or is taken for the beginning where nothing is known of its producer.
2. Told of a wrong number, as by Kafka, librdkafka begins another epoch, and sends in that whatever it has no answer to,
   of any partition: what is stored already is stored twice (its issue 4953). A first batch that is too late is fatal.
   So whoever comes behind a refusal is told to send again as well, and does so in order.
3. That is believed of as many batches as may have been on the way; then a client is told the truth.
"""

from __future__ import annotations

from core_log.producer_states import REMEMBERED
from protocols.kafka.errors import ErrorCode

_BEHIND = REMEMBERED - 1
_PLACES_MAX = 1000
_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
)  # fmt: skip


class Refusals(dict[tuple[str, int], int]):
    """See the module: by topic and partition, of how many batches more it is believed."""

    __slots__ = ()

    def note(self, topic: str, index: int, code: ErrorCode) -> None:
        """A batch for that partition is refused with this code."""
        if code in _AGAIN:
            if len(self) >= _PLACES_MAX:
                self.clear()
            self[topic, index] = _BEHIND

    def forget(self, topic: str, index: int) -> None:
        """A batch for that partition is in its place."""
        if self:
            self.pop((topic, index), None)

    def explain(self, topic: str, index: int) -> bool:
        """Whether a wrong number may come of a refusal; asked once for each."""
        left = self.pop((topic, index), 0)
        if left > 1:
            self[topic, index] = left - 1
        return left > 0
