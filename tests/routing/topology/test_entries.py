"""What is under way: keys of changes that are being written, and of what is to go by itself."""

from __future__ import annotations

from time import thread_time

from routing.topology.entries import Entry, InFlight, Plan, queue_key


def going(*names: str) -> Plan:
    return Plan([Entry(queue_key("/", name), None, True) for name in names])


def test_what_is_leaving_twice_has_left_when_both_say_so() -> None:
    in_flight = InFlight()
    in_flight.leave(going("a", "b"))
    in_flight.leave(going("b"))
    in_flight.left(going("a", "b"))
    assert [in_flight.is_leaving(queue_key("/", name)) for name in "ab"] == [False, True]
    in_flight.left(going("b"))
    assert not in_flight.is_leaving(queue_key("/", "b"))


def test_what_leaves_costs_the_same_however_many_others_do() -> None:
    in_flight = InFlight()
    plans = [going(str(number)) for number in range(20_000)]
    for plan in plans:
        in_flight.leave(plan)
    began_s = thread_time()
    for plan in plans:
        in_flight.left(plan)
    assert thread_time() - began_s < 1
