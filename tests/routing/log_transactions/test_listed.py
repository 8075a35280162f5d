"""What is said of transactional ids while some of them are being taken over."""

from __future__ import annotations

import pytest

from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import LIST_TRANSACTIONS
from routing.administration import administer
from routing.cluster.metadata.log_names import TRANSACTIONS, log_of_kind
from routing.errors import StorageUnavailable
from tests.protocols.kafka.door import Peer
from tests.support.home_cluster import mesh, until


async def test_ids_that_are_not_read_yet_are_not_just_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh(1) as brokers:
        broker, cluster = brokers.members[1].broker, brokers.members[1].part
        shared = broker.transactions.shared
        assert shared is not None
        stores = shared.stores
        await until(lambda: len(list(stores.led())) == stores.count)
        await broker.coordinator.begin("payer", 60_000, None, "owner")

        async def told() -> list[str]:
            reply = await Peer(broker).ask(LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
            assert reply.error_code in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return [] if reply.error_code else [one.transactional_id for one in reply.transaction_states]

        async def listed() -> list[str]:
            rows = (await administer(broker, "guest", "transactions.list", {"only_open": False}))["rows"]
            return [row[0] for row in rows]

        assert (await told(), await listed()) == (["payer"], ["payer"])
        number = broker.coordinator.log_of("payer")
        with monkeypatch.context() as now:
            now.setattr(stores.parts[number], "store", None)
            assert await told() == []
            with pytest.raises(StorageUnavailable, match="does not know yet all"):
                await listed()
        leader_of, log = cluster.leader_of, log_of_kind(TRANSACTIONS, number)
        with monkeypatch.context() as now:
            now.setattr(cluster, "leader_of", lambda name: (None, 7) if name == log else leader_of(name))
            with pytest.raises(StorageUnavailable, match="nobody looks after some"):
                await listed()
        assert await listed() == ["payer"]
