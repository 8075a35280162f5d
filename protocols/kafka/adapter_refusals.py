"""Which partitions a connection was refused last, so that what it had sent behind that is refused in the same way.

1. Clients have up to five batches of an idempotent producer on the way to a partition. The first may be refused because
   another broker leads, replicas are missing, or the topic or partition is not known here (it is new, or made anew),
   and that may be over when the second is looked at: then that one is a number too early, or is taken for the beginning
   where nothing is known of its producer.
2. Told of a wrong number, as by Kafka, librdkafka begins another epoch, and sends in that whatever it has no answer to,
   of any partition: what is stored already is stored twice (its issue 4953). A first batch that is too late is fatal.
   So whoever comes behind a refusal is told to send again as well, and does so in order.
3. That is believed of as many batches as may be on the way; then a client is told the truth.
4. Where nothing is known of a producer, its first batch is known by its number when it comes again: what is on the way
   comes in order. If none has come since it was refused it is taken for one that is behind, as are the others with it.
"""

from __future__ import annotations

from core_log.producer_states import REMEMBERED
from protocols.kafka.errors import ErrorCode

_ON_THE_WAY = REMEMBERED
_PLACES_MAX = 1000
_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
)  # fmt: skip


_NONE_YET = -1


class Refusals(dict[tuple[str, int], tuple[int, int]]):
    """See the module: by topic and partition, of how many batches more it is believed, and the number of the last one
    that has come since.
    """

    __slots__ = ()

    def note(self, topic: str, index: int, code: ErrorCode) -> None:
        """A batch for that partition is refused with this code."""
        if code in _AGAIN:
            if len(self) >= _PLACES_MAX:
                self.clear()
            self[topic, index] = _ON_THE_WAY, _NONE_YET

    def begins_again(self, topic: str, index: int, sequence: int) -> bool:
        """Whether a batch is not behind what was refused, as another one since had this number, or a later one. Of a
        partition that is here.
        """
        left, before = self[topic, index]
        self[topic, index] = left, sequence
        return sequence <= before

    def forget(self, topic: str, index: int) -> None:
        """A batch for that partition is in its place."""
        if self:
            self.pop((topic, index), None)

    def explain(self, topic: str, index: int) -> bool:
        """Whether a wrong number may come of a refusal; asked once for each."""
        left, sequence = self.pop((topic, index), (0, _NONE_YET))
        if left > 1:
            self[topic, index] = left - 1, sequence
        return left > 0
