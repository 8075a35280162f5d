"""Packet identifiers against a plain model: never one twice, whatever the order of acknowledgements."""

from __future__ import annotations

import random

import pytest

from protocols.mqtt.inflight import PacketIds
from protocols.sansio import LocalProtocolError


def expand(pairs: list[tuple[int, int]]) -> list[int]:
    return [value for first, last in pairs for value in range(first, last + 1)]


def test_in_order_everything_is_one_run() -> None:
    ids = PacketIds()
    assert ids.take(1, 1000) == [(1, 0, 1000)]
    assert ids.take(1001, 10) == [(1001, 0, 10)]
    assert ids.release(1, 1005) == [(1, 1005)]
    assert ids.outstanding == 5
    assert ids.release(1, 65_535) == [(1006, 1010)]


def test_identifiers_wrap_at_65535_and_skip_0() -> None:
    ids = PacketIds()
    ids.take(1, 65_530)
    ids.release(1, 65_530)
    assert ids.take(65_531, 10) == [(65_531, 0, 5), (1, 5, 5)]
    assert ids.release(1, 5) == [(65_536, 65_540)]
    assert ids.release(65_531, 65_535) == [(65_531, 65_535)]


def test_mqtt_2_3_1_4_an_unacknowledged_identifier_is_stepped_over() -> None:
    ids = PacketIds()
    ids.take(1, 65_535)
    assert ids.release(1, 99) == [(1, 99)]
    assert ids.release(101, 65_535) == [(101, 65_535)]
    assert ids.take(65_536, 200) == [(1, 0, 99), (101, 99, 101)]
    assert ids.release(100, 100) == [(100, 100)]


def test_identifiers_below_the_first_are_left_to_who_claims_them() -> None:
    ids = PacketIds(32_768)
    assert ids.claim(32_760, 1, 8) == 8
    assert ids.take(9, 32_760) == [(32_768, 0, 32_760)]
    assert ids.release(32_768, 65_500) == [(9, 32_741)]
    assert ids.take(40_000, 18) == [(65_528, 0, 8), (32_768, 8, 10)]
    assert ids.claim(32_767, 50_000, 1) == 0
    assert ids.release(32_760, 32_767) == [(1, 8)]
    with pytest.raises(LocalProtocolError):
        ids.take(60_000, 32_768)


def test_unknown_identifiers_are_passed_over() -> None:
    ids = PacketIds()
    assert ids.release(1, 65_535) == []
    ids.take(1, 3)
    assert ids.release(0, 0) == []
    assert ids.release(2, 2) == [(2, 2)]
    assert ids.release(2, 2) == []
    assert ids.release(1, 10) == [(1, 1), (3, 3)]


def test_all_identifiers_in_use_at_once() -> None:
    ids = PacketIds()
    assert ids.take(1, 65_535) == [(1, 0, 65_535)]
    with pytest.raises(LocalProtocolError):
        ids.take(65_536, 1)
    assert ids.release(1, 65_535) == [(1, 65_535)]
    assert ids.take(65_536, 2) == [(1, 0, 2)]


@pytest.mark.parametrize("seed", range(8))
def test_against_a_dictionary(seed: int) -> None:
    choose = random.Random(seed)
    ids, model, delivery = PacketIds(), dict[int, int](), 1
    for _ in range(1500):
        if choose.random() < 0.5 and len(model) < 65_000:
            delivery += choose.choice([0, 0, 1])  # a delivery at QoS 0 took an id in between
            count = choose.choice([1, 3, 500, 9000])
            count = min(count, 65_535 - len(model))
            taken = [packet_id for first, _, n in ids.take(delivery, count) for packet_id in range(first, first + n)]
            assert len(taken) == count
            for packet_id in taken:
                assert 1 <= packet_id <= 65_535
                assert packet_id not in model
                model[packet_id] = delivery
                delivery += 1
        else:
            first = choose.randint(1, 65_535)
            last = min(65_535, first + choose.choice([0, 1, 700, 30_000]))
            expected = [model.pop(packet_id) for packet_id in range(first, last + 1) if packet_id in model]
            assert expand(ids.release(first, last)) == expected
        assert ids.outstanding == len(model)
