"""Messages that are kept by their keys: replaced, cleared, ended, refused, and there after any stop."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from routing.broker import Broker, open_broker
from routing.errors import LimitExceeded, StorageUnavailable
from routing.facts import TTL_MS_MAX, delay_ms_of, pack, ttl_ms_of
from routing.kept.retained import Retained
from routing.message import Properties, Slab
from tests.routing.harness import PROTOCOL, Engine, engine, killed, passing

EXCHANGE = "amq.topic"


def slab(*messages: tuple[str, bytes], persistent: bool = True, ttl_ms: int | None = None, raw: bytes = b"") -> Slab:
    properties = Properties(PROTOCOL, raw, persistent=persistent, facts=pack(persistent, ttl_ms=ttl_ms))
    keys = [key for key, _ in messages]
    return Slab(EXCHANGE, keys[0], properties, [body for _, body in messages], keys=keys)


def slabs(retained: Retained, names: list[str], vhost: str = "/") -> list[Slab]:
    return [one for piece in retained.pieces(vhost, names, EXCHANGE) for one in piece]


def there(broker: Broker, pattern: str = "#", vhost: str = "/") -> dict[str, bytes]:
    found = {}
    names = broker.retained.matching(vhost, pattern, "mqtt")
    for one in slabs(broker.retained, names, vhost):
        assert one.exchange == EXCHANGE
        found |= {one.key_of(index): body for index, body in enumerate(one.bodies)}
    return found


async def committed(at: Engine) -> None:
    await at.broker.retained.log.wait_committed(at.broker.retained.log.log_end_offset)


async def test_the_last_of_each_key_is_kept_and_an_empty_body_clears() -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        broker = at.broker
        broker.retained.keep("/", slab(("a.b", b"1"), ("a", b"x"), ("a.b", b"2"), ("gone", b"y")))
        end = broker.retained.keep("/", slab(("gone", b""), ("never", b""), ("a", b"3")))
        assert there(broker) == {"a.b": b"2", "a": b"3"}
        assert there(broker, "a.+") == {"a.b": b"2"}
        assert there(broker, "a.#") == {"a.b": b"2", "a": b"3"}
        assert broker.retained.count == 2
        await broker.retained.log.wait_committed(end)
        after_kill = killed(files)
    for found in (files, after_kill):
        async with engine(found) as at:
            assert there(at.broker) == {"a.b": b"2", "a": b"3"}
            assert at.broker.retained.count == 2
            assert at.broker.retained.size_bytes > 0
            at.broker.retained.keep("/", slab(("a", b""), ("a.b", b"")))
            assert (at.broker.retained.count, at.broker.retained.size_bytes) == (0, 0)


async def test_a_slab_is_one_batch() -> None:
    async with engine(MemoryFiles()) as at:
        log = at.broker.retained.log
        appended = []
        append = log.append
        log.append = lambda batch, **more: appended.append(1) or append(batch, **more)  # type: ignore[method-assign]
        at.broker.retained.keep("/", slab(*((f"k{n}", b"body") for n in range(1000))))
        assert len(appended) == 1


async def test_properties_and_persistence_come_back_in_slabs_of_one_kind() -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        at.broker.retained.keep("/", slab(("a", b"1"), persistent=False))
        at.broker.retained.keep("/", slab(("b", b"2"), raw=b'{"n": 1}'))
        at.broker.retained.keep("/", slab(("c", b"3"), raw=b'{"n": 2}'))
    async with engine(files) as at:
        found = {
            one.key_of(index): (one.properties.persistent, one.properties_of(index).raw)
            for one in slabs(at.broker.retained, ["a", "b", "c", "d"])
            for index in range(len(one))
        }
        assert found == {"a": (False, b""), "b": (True, b'{"n": 1}'), "c": (True, b'{"n": 2}')}


async def test_pieces_are_bounded() -> None:
    async with engine(MemoryFiles()) as at:
        at.broker.retained.keep("/", slab(*((f"s{n}", b"x") for n in range(2500))))
        at.broker.retained.keep("/", slab(*((f"l{n}", bytes(600_000)) for n in range(3))))
        names = at.broker.retained.matching("/", "#", "mqtt")
        pieces = slabs(at.broker.retained, sorted(names))
        assert sum(map(len, pieces)) == 2503
        assert max(map(len, pieces)) == 1000
        assert max(piece.size for piece in pieces) < 1_300_000


async def test_what_is_replaced_between_two_pieces_is_given_out_as_it_is_then_whatever_its_kind() -> None:
    async with engine(MemoryFiles()) as at:
        retained = at.broker.retained
        retained.keep("/", slab(("a", b"old"), persistent=False))
        retained.keep("/", slab(*((f"l{n}", bytes(300_000)) for n in range(3))))
        retained.keep("/", slab(("z", b"old"), persistent=False))
        pieces = retained.pieces("/", ["a", "l0", "l1", "l2", "z"], EXCHANGE)
        found = [{one.key_of(index) for one in next(pieces) for index in range(len(one))}]
        retained.keep("/", slab(("z", b"new"), persistent=False))
        retained.keep("/", slab(("l2", b"")))
        rest = [one for piece in pieces for one in piece]
        found.append({one.key_of(index) for one in rest for index in range(len(one))})
        assert found == [{"a", "l0"}, {"l1", "z"}]
        assert [body for one in rest for body in one.bodies if len(body) == 3] == [b"new"]


async def test_what_has_ended_is_not_given_out_and_goes(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        retained = at.broker.retained
        retained.keep("/", slab(("short", b"1"), ttl_ms=1000))
        retained.keep("/", slab(("long", b"2"), ttl_ms=60_000))
        retained.keep("/", slab(("renewed", b"3"), ttl_ms=1000))
        retained.keep("/", slab(("renewed", b"4")))
        await passing(clock, 0.4)
        (one,) = slabs(retained, ["short"])
        assert ttl_ms_of(one.properties.facts if one.facts is None else one.facts[0]) == 600
        await passing(clock, 0.6)
        assert there(at.broker) == {"long": b"2", "renewed": b"4"}
        assert retained.count == 3
        retained.expire()
        assert retained.count == 2
        await committed(at)
    async with engine(files) as at:
        assert there(at.broker) == {"long": b"2", "renewed": b"4"}
        await passing(clock, 60)
        assert there(at.broker) == {"renewed": b"4"}
        at.broker.retained.expire()
        assert at.broker.retained.count == 1


async def test_what_ends_while_it_is_given_out_does_not_live_for_ever() -> None:
    async with engine(MemoryFiles()) as at:
        for steps_ms in range(1, 12):
            retained = at.broker.retained
            retained.keep("/", slab(("a", b"x"), ttl_ms=10))
            began_ms = at.broker.clock.now_ms()
            times = count(began_ms, steps_ms)
            other = Retained(retained._store, at.broker.config, lambda times=times: next(times))
            left = [left_ms for _ in range(12) for *_, left_ms in other.rows("/", ["a"])]
            assert all(left_ms is not None and left_ms > 0 for left_ms in left)


async def test_what_a_clock_that_was_ahead_let_live_long_has_no_more_left_than_there_can_be(clock: MockClock) -> None:
    files = MemoryFiles()
    async with open_broker(files, wall_clock_ms=lambda: 2_400_000_000_000) as broker:
        broker.retained.keep("/", slab(("a", b"1"), ttl_ms=TTL_MS_MAX))
        await broker.retained.log.wait_committed(broker.retained.log.log_end_offset)
    async with open_broker(files, wall_clock_ms=lambda: 1_800_000_000_000) as broker:
        (one,) = slabs(broker.retained, ["a"])
        facts = one.facts[0] if one.facts is not None else one.properties.facts
        assert (ttl_ms_of(facts), delay_ms_of(facts)) == (ttl_ms_of(pack(True, ttl_ms=TTL_MS_MAX)), 0)


async def test_a_key_that_is_renewed_for_ever_takes_no_memory_for_that() -> None:
    async with engine(MemoryFiles()) as at:
        for _ in range(5000):
            at.broker.retained.keep("/", slab(("a", b"1"), ttl_ms=86_400_000))
        assert len(at.broker.retained._due) < 1100


async def test_limits_refuse_what_would_be_more_and_nothing_else() -> None:
    async with engine(MemoryFiles(), retained_messages_max=3, retained_bytes_max=400) as at:
        retained = at.broker.retained
        retained.keep("/", slab(("a", b"1"), ("b", b"2")))
        with pytest.raises(LimitExceeded, match="more than 3 retained messages"):
            retained.keep("/", slab(("c", b"3"), ("d", b"4")))
        assert there(at.broker) == {"a": b"1", "b": b"2"}
        retained.keep("/", slab(("a", b"5"), ("c", b"3")))
        with pytest.raises(LimitExceeded, match="more than 400 bytes"):
            retained.keep("/", slab(("a", bytes(400))))
        retained.keep("/", slab(("a", b""), ("d", b"4")))
        assert there(at.broker) == {"b": b"2", "c": b"3", "d": b"4"}


async def test_virtual_hosts_have_their_own_and_take_it_along() -> None:
    async with engine(MemoryFiles()) as at:
        await at.broker.set_vhost("other")
        at.broker.retained.keep("/", slab(("a", b"1")))
        at.broker.retained.keep("other", slab(("a", b"2")))
        assert there(at.broker) == {"a": b"1"}
        assert there(at.broker, vhost="other") == {"a": b"2"}
        await at.broker.delete_vhost("other")
        await at.broker.set_vhost("other")
        assert there(at.broker, vhost="other") == {}
        assert there(at.broker) == {"a": b"1"}


async def test_a_refusing_disk_is_told() -> None:
    async with engine(MemoryFiles()) as at:
        at.broker.retained.log.close()
        with pytest.raises(StorageUnavailable):
            at.broker.retained.keep("/", slab(("a", b"1")))
        assert there(at.broker) == {}


async def test_garbage_goes_with_the_housekeeping(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as at:
        for n in range(300):
            at.broker.retained.keep("/", slab(("a", bytes(10_000) + b"%d" % n)))
        await committed(at)
        log = at.broker.retained.log
        assert log.size_bytes > 3_000_000
        await passing(clock, 1)
        await at.until(lambda: log.size_bytes < 100_000)
        assert there(at.broker) == {"a": bytes(10_000) + b"299"}


async def test_a_virtual_host_stays_while_what_is_retained_in_it_cannot_be_forgotten() -> None:
    """A later one of its name would have that, and nobody could ask for it to go again."""
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.set_vhost("other")
        broker.retained.keep("other", slab(("a", b"1")))
        asked = []

        async def operate(name: str, vhost: str) -> None:
            asked.append(name)
            if len(asked) == 1:
                raise StorageUnavailable("nobody has what is retained now")

        there: Any = SimpleNamespace(operate=operate, retained=broker.retained)
        broker.keeping = there
        with pytest.raises(StorageUnavailable):
            await broker.delete_vhost("other")
        assert "other" in broker.topology.vhosts
        await broker.delete_vhost("other")
        assert "other" not in broker.topology.vhosts
        assert set(asked) == {"forget"}
        broker.keeping = None
