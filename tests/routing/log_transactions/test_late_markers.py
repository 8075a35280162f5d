"""Ends of transactions that come to a partition when others have ended them, and the next one is under way."""

from __future__ import annotations

import pytest

from core_log.batch_header import TRANSACTIONAL_BIT
from core_log.producer_states import ProducerStates
from core_log.record_batch import validate
from core_log.replication.state import encode, log_key
from routing.cluster.metadata.log_names import topic_log
from routing.errors import NotLeader
from routing.log_transactions.links import Ending
from tests.core_log.compaction.helpers import keyed, of_producer
from tests.routing.cluster.test_topics_handed_over import led
from tests.support.home_cluster import mesh, until

PRODUCER = 7
ENDING = Ending(PRODUCER, 0, True, 1)


async def test_who_led_before_and_leads_again_ends_nothing_that_began_meanwhile() -> None:
    """It was asked to, and what is known of producers took that long to be read."""
    async with mesh() as brokers:
        leader, partition = await led(brokers)
        log, leadership, known = partition.log, partition.leadership, partition.producers.states
        endings, name = leader.broker.coordinator.endings, topic_log(leader.broker.topics["t"].uid, 0)
        assert leadership is not None

        async def allowed() -> None:
            pass

        async def put(sequence: int) -> None:
            batch = of_producer(keyed([(b"k", b"v")]), PRODUCER, sequence, bits=TRANSACTIONAL_BIT)
            await partition.append_once([validate(batch)], [batch], allowed)
            leader.turn()

        async def states() -> ProducerStates:
            partition.producers.states = known  # type: ignore[method-assign]
            state = leader.part.state_of(name)
            again = state.led_by(leader.me, state.leader_broker_epoch)
            await leader.part.store.change([], [(log_key(b"", name), encode(again))])
            await until(lambda: leadership.epoch == again.leader_epoch and leadership.refusal() is None)
            await endings.mark(partition, ENDING)  # it is told again, as it was led by another
            await put(1)
            return await known()

        await put(0)
        partition.producers.states = states  # type: ignore[method-assign]
        with pytest.raises(NotLeader, match="led elsewhere"):
            await endings.mark(partition, ENDING)
        assert log.transactions is not None
        assert PRODUCER in log.transactions.open, "the transaction that is under way"
