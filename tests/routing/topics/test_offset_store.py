"""Offsets of groups in one store, those of transactions beside others."""

from __future__ import annotations

import msgpack
import pytest
import trio

from core_log.files import MemoryFiles
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from routing.topics.offset_store import Committed, OffsetStore, Partition
from tests.core_log.helpers import open_log

PLACE, OTHER = PLACES = [("t", 0), ("t", 1)]


async def there() -> None:
    """The transaction is under way."""


async def read_again(disk: MemoryFiles, flusher: LogFlusher) -> OffsetStore:
    return OffsetStore(KeyedStore(open_log(disk.crash(), flusher=flusher)))


async def test_what_is_committed_after_a_transactions_offsets_counts_whatever_becomes_of_it(
    flusher: LogFlusher,
) -> None:
    """As in Kafka, which keeps what was written last: an operator's reset was undone by a producer that came back."""
    for committed in (True, False):
        disk = MemoryFiles()
        store = OffsetStore(KeyedStore(open_log(disk, flusher=flusher)))
        await store.commit_pending("g", 7, dict.fromkeys(PLACES, Committed(9)), there)
        await store.commit_pending("g", 8, {PLACE: Committed(5)}, there)
        await store.commit("g", {PLACE: Committed(3)})
        for found in (store, await read_again(disk, flusher)):
            assert found.unstable("g") == {OTHER}
            await found.end_pending("g", 7, committed=committed)
            await found.end_pending("g", 8, committed=True)
            assert found.known("g") == {PLACE: Committed(3)} | ({OTHER: Committed(9)} if committed else {})
            assert not found.pending._groups


async def test_what_is_forgotten_of_a_group_does_not_come_back_with_a_transaction(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    store = OffsetStore(KeyedStore(open_log(disk, flusher=flusher)))
    await store.commit("g", {PLACE: Committed(1)})
    await store.commit_pending("g", 7, dict.fromkeys(PLACES, Committed(9)), there)
    await store.forget("g", PLACES)
    for found in (store, await read_again(disk, flusher)):
        await found.end_pending("g", 7, committed=True)
        assert found.known("g") == {}


async def test_offsets_are_kept_as_long_as_a_transaction_has_others_for_their_place(flusher: LogFlusher) -> None:
    store = OffsetStore(KeyedStore(open_log(MemoryFiles(), flusher=flusher)))
    await store.commit("g", dict.fromkeys(PLACES, Committed(1)))
    await store.commit_pending("g", 7, {PLACE: Committed(9)}, there)
    later = store.log.wall_clock_ms() + 1
    assert store.older("g", later) == [OTHER]
    await store.end_pending("g", 7, committed=False)
    assert store.older("g", later) == PLACES


async def test_a_topic_that_is_deleted_while_a_transaction_is_asked_about_gets_no_offsets(flusher: LogFlusher) -> None:
    """They were given to the group when the transaction was committed, for a topic of that name that was made later."""
    store = OffsetStore(KeyedStore(open_log(MemoryFiles(), flusher=flusher)))
    gone: Partition = ("gone", 0)

    async def deleted() -> None:
        store.forget_topic("gone")
        await trio.lowlevel.checkpoint()

    await store.commit_pending("g", 7, {gone: Committed(5), PLACE: Committed(6)}, deleted)
    assert store.unstable("g") == {PLACE}
    await store.end_pending("g", 7, committed=True)
    assert store.known("g") == {PLACE: Committed(6)}


async def test_what_is_of_a_former_topic_is_not_given_to_the_group_by_who_leads_it_next(flusher: LogFlusher) -> None:
    """When the transaction was committed the group had come somewhere in the topic that was made anew meanwhile."""
    disk = MemoryFiles()
    store = OffsetStore(KeyedStore(open_log(disk, flusher=flusher)))
    store.topic_id = lambda name: name.encode()
    for producer_id in (7, 8):
        await store.commit_pending("g", producer_id, {PLACE: Committed(9), ("u", 3): Committed(4)}, there)
    next_one = await read_again(disk, flusher)
    next_one.topic_id = lambda name: b"anew" if name == "t" else name.encode()
    next_one.forget_former()
    await next_one.commit_pending("g", 8, {PLACE: Committed(2)}, there)
    for producer_id in (7, 8):
        found = OffsetStore(next_one._store)
        found.topic_id = next_one.topic_id
        found.forget_former()
        assert found.unstable("g") == {PLACE, ("u", 3)}
        await found.end_pending("g", producer_id, committed=True)
        assert found.known("g") == {("u", 3): Committed(4)} | ({PLACE: Committed(2)} if producer_id == 8 else {})
    assert len(dict(next_one._store.items())) == 2, "nothing is left of the transactions"


@pytest.mark.parametrize("is_overwritten", [True, False])
async def test_an_id_beside_what_a_broker_of_an_earlier_version_has_put_or_taken_away_counts_for_nothing(
    flusher: LogFlusher, is_overwritten: bool
) -> None:
    store = OffsetStore(KeyedStore(open_log(MemoryFiles(), flusher=flusher)))
    store.topic_id = lambda name: b"former"
    await store.commit_pending("g", 7, {PLACE: Committed(9)}, there)
    earlier = store._store
    earlier.put(msgpack.packb(["g", *PLACE, 7]), msgpack.packb([3, ""]) if is_overwritten else None)
    found = OffsetStore(earlier)
    found.topic_id = lambda name: b"anew"
    found.forget_former()
    await found.end_pending("g", 7, committed=True)
    assert found.known("g") == ({PLACE: Committed(3)} if is_overwritten else {})
    assert len(dict(earlier.items())) == len(found.known("g"))
