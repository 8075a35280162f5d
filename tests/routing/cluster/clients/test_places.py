"""Where deliveries of a queue that is led elsewhere lie, and which of them nobody is to get any more."""

from __future__ import annotations

from routing.cluster.clients.places import Places


def test_deliveries_are_found_until_they_are_settled_in_any_order() -> None:
    places = Places()
    places.add(10, [100, 102, 200, 200])
    places.add(14, [300, 301])
    assert places.offsets_of(range(10, 16)) == [100, 101, 102, 200, 300, 301]
    assert places.offsets_of([16]) is None
    places.settle([12, 10])
    assert places.offsets_of([11, 15]) == [101, 301]
    places.settle([11])
    assert places.offsets_of([11]) is None, "the run is done with"
    assert places.offsets_of([13, 14]) == [200, 300]


def test_what_is_received_is_not_given_out_again_until_it_is_completed() -> None:
    places = Places()
    places.add(1, [50, 54])
    places.receive([51, 53])
    assert places.fresh(1, 5) == [(1, 1), (3, 1), (5, 1)]
    assert places.fresh(3, 1) == [(3, 1)]
    places.complete([51, 53])
    places.add(6, [51, 53])
    assert places.fresh(6, 3) == [(6, 3)]


def test_places_that_nobody_told_are_passed_on() -> None:
    places = Places()
    places.receive([1])
    assert places.fresh(7, 2) == [(7, 2)]
