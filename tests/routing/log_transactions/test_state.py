"""Where transactional ids stand: what may follow what."""

from __future__ import annotations

import pytest

from routing.log_transactions.errors import (
    ProducerFenced,
    TransactionEnding,
    WrongProducerId,
    WrongTransactionState,
)
from routing.log_transactions.state import EPOCH_MAX, IdState, Stage, decode, encode, new

PLACES = [("t", 0), ("t", 1)]


def begun(epoch: int = 0) -> IdState:
    return IdState(7, epoch, -1, 1000, Stage.EMPTY, 0, "u")


def ongoing() -> IdState:
    state = begun().joined(PLACES, ["g"], "u", 100)
    assert state is not None
    return state


def prepared(*, committed: bool = True) -> IdState:
    state = ongoing().decided(committed=committed, now_ms=200)
    assert state is not None
    return state


def test_a_transaction_begins_with_its_first_partition_and_is_empty_again_at_its_end() -> None:
    state = ongoing()
    assert (state.stage, state.started_ms, state.partitions, state.groups) == (
        Stage.ONGOING, 100, (("t", 0), ("t", 1)), ("g",),
    )  # fmt: skip
    assert state.joined(PLACES[:1], [], "u", 150) is None
    more = state.joined([("s", 0)], ["h"], "u", 150)
    assert more is not None
    assert (more.started_ms, len(more.partitions), more.groups) == (100, 3, ("g", "h"))
    for committed, stage in ((True, Stage.COMPLETE_COMMIT), (False, Stage.COMPLETE_ABORT)):
        over = prepared(committed=committed).completed(300)
        assert (over.stage, over.commits, over.partitions, over.groups) == (stage, committed, (), ())
        again = over.joined(PLACES, [], "u", 400)
        assert again is not None
        assert (again.stage, again.started_ms, again.groups) == (Stage.ONGOING, 400, ())


def test_what_was_ended_may_be_ended_so_again_and_not_otherwise() -> None:
    for committed in (True, False):
        over = prepared(committed=committed).completed(300)
        assert over.decided(committed=committed, now_ms=400) is None
        with pytest.raises(WrongTransactionState):
            over.decided(committed=not committed, now_ms=400)
        with pytest.raises(WrongTransactionState):
            begun().decided(committed=committed, now_ms=400)


def test_nothing_joins_a_transaction_that_is_decided() -> None:
    with pytest.raises(TransactionEnding):
        prepared().joined(PLACES, [], "u", 300)
    with pytest.raises(TransactionEnding):
        prepared().check_has(7, 0, ("t", 0), None)


def test_what_is_a_part_of_a_transaction() -> None:
    ongoing().check_has(7, 0, ("t", 1), None)
    ongoing().check_has(7, 0, None, "g")
    for partition, group in ((("t", 2), None), (("s", 0), None), (None, "h")):
        with pytest.raises(WrongTransactionState):
            ongoing().check_has(7, 0, partition, group)
    with pytest.raises(WrongTransactionState):
        begun().check_has(7, 0, ("t", 0), None)
    with pytest.raises(WrongProducerId):
        ongoing().check_has(8, 0, ("t", 0), None)
    for epoch in (-1, 1):
        with pytest.raises(ProducerFenced):
            ongoing().check_has(7, epoch, ("t", 0), None)


def test_who_takes_an_id_over_has_the_next_epoch() -> None:
    state = begun(3).taken_over(None, 5000, "v", 99, 10)
    assert (state.producer_id, state.epoch, state.last_epoch, state.timeout_ms, state.owner) == (7, 4, -1, 5000, "v")


def test_who_asks_for_its_next_epoch_again_is_given_the_same() -> None:
    state = begun(3).taken_over((7, 3), 1000, "u", 99, 10)
    assert (state.epoch, state.last_epoch) == (4, 3)
    assert state.taken_over((7, 3), 1000, "u", 99, 20) is state
    after = state.taken_over((7, 4), 1000, "u", 99, 20)
    assert (after.epoch, after.last_epoch) == (5, 4)
    for wrong in ((7, 3), (7, 6), (8, 5)):
        with pytest.raises(ProducerFenced):
            after.taken_over(wrong, 1000, "u", 99, 30)


def test_a_producer_whose_transaction_was_given_up_is_over_unless_it_asked_for_that() -> None:
    for keeps in (True, False):
        state = ongoing().given_up(keeps=keeps, now_ms=200)
        assert (state.stage, state.epoch, state.commits) == (Stage.PREPARE_ABORT, 1, False)
        with pytest.raises(ProducerFenced):
            state.check_producer(7, 0)
        over = state.completed(300)
        if keeps:
            assert over.taken_over((7, 0), 1000, "u", 99, 400).epoch == 1
        else:
            with pytest.raises(ProducerFenced):
                over.check_expected((7, 0))


def test_after_the_last_epoch_comes_another_producer_id() -> None:
    state = begun(EPOCH_MAX - 1).taken_over(None, 1000, "u", 99, 10)
    assert (state.producer_id, state.epoch) == (99, 0)
    assert ongoing().given_up(keeps=False, now_ms=1).epoch == 1


def test_after_the_last_epoch_comes_another_producer_id_though_a_transaction_was_given_up() -> None:
    begun_last = begun(EPOCH_MAX - 1)
    ongoing_last = begun_last.joined(PLACES, [], "u", 100)
    assert ongoing_last is not None
    given_up = ongoing_last.given_up(keeps=True, now_ms=200).completed(300)
    for state in (begun_last, given_up):
        after = state.taken_over((7, EPOCH_MAX - 1), 1000, "u", 99, 400)
        assert (after.producer_id, after.epoch) == (99, 0)
        assert after.taken_over((7, EPOCH_MAX - 1), 1000, "u", 100, 500) is after
        later = after.taken_over((99, 0), 1000, "u", 100, 500)
        assert (later.producer_id, later.epoch) == (99, 1)
        assert later.taken_over((99, 0), 1000, "u", 100, 500) is later
        for wrong in ((7, EPOCH_MAX - 1), (7, 0), (99, EPOCH_MAX - 1)):
            with pytest.raises(ProducerFenced):
                later.check_expected(wrong)
        with pytest.raises(ProducerFenced):
            after.check_expected((7, 0))
        with pytest.raises(ProducerFenced):
            after.taken_over(None, 1000, "v", 100, 500).check_expected((7, EPOCH_MAX - 1))


def test_time_is_over_when_the_producers_own_is() -> None:
    assert not ongoing().is_over(1100)
    assert ongoing().is_over(1101)
    assert not prepared().is_over(99_999)


@pytest.mark.parametrize("state", [new(1 << 61, 1, "\xfc@[::1]:5", 5), ongoing(), prepared()])
def test_records_both_ways(state: IdState) -> None:
    assert decode(encode(state)) == state
