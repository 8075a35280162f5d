"""Views under anything at all, crashes among it."""

from __future__ import annotations

import random
from collections import Counter

import trio

from core_log.memory_files import MemoryFiles
from tests.routing.harness import engine, killed
from tests.routing.queues.test_views import append, bodies, topic, view, worker


async def test_at_random_with_crashes_nothing_is_lost_and_nothing_that_was_settled_for_good_comes_again() -> None:
    for seed in range(6):
        await _at_random(random.Random(seed), {})


async def test_with_a_filter_that_is_so_of_what_it_wants_and_the_rest_is_never_seen() -> None:
    for seed in range(6):
        await _at_random(random.Random(seed), {"filter": "wanted.#"})


async def _at_random(dice: random.Random, wanted: dict[str, str]) -> None:
    files = MemoryFiles()
    small = {"stripes": 1, "queue_segment_bytes": 4096, "checkpoint_interval_bytes": 1024}
    produced: set[str] = set()
    done: set[str] = set()
    perhaps: set[str] = set()
    for life in range(5):
        async with engine(files, **small) as running:
            if not life:
                await topic(running, 3)
                await view(running, delivery_limit=-1, **{f"view_{name}": value for name, value in wanted.items()})
            perhaps.clear()
            clients = [await worker(running, dice.choice((1, 5, 40))) for _ in range(3)]
            seen: set[str] = set()
            for step in range(40):
                if dice.random() < 0.3:
                    some = [f"{life}-{step}-{number}" for number in range(dice.randrange(1, 30))]
                    produced.update(some)
                    mixed = [(body, "wanted.a") for body in some]
                    if wanted:
                        mixed += [("not wanted", dice.choice(("b", "a.wanted"))) for _ in range(dice.randrange(60))]
                        dice.shuffle(mixed)
                    await append(running, *mixed, partition=dice.randrange(3))
                client = dice.choice(clients)
                taken = client.take()
                assert not done.intersection(bodies(taken)), "it was settled for good"
                for one in taken:
                    assert one.redelivered or one.body not in seen, "it was given out before"
                    seen.add(one.body)
                    if dice.random() < 0.7:
                        client.ack(one.id)
                        perhaps.add(one.body)
                    elif dice.random() < 0.6:
                        client.requeue(one.id)
                if dice.random() < 0.2:
                    await running.synced()
                    done |= perhaps
                    running.broker.checkpoints.take(running.home("v"))
                    running.home("v").delete_dead_prefix()
                    while running.broker.checkpoints._under_way:
                        await trio.sleep(0.001)
            if dice.random() < 0.6:
                await running.synced()
                done |= perhaps
                crashed = killed(files)
                for client in clients:
                    client.session.close()
            else:
                crashed = None
                done |= perhaps
                for client in clients:
                    client.session.close()
        files = files if crashed is None else crashed
    async with engine(files, **small) as running:
        left = [body for body, _ in await running.drain("v")]
        assert Counter(left) == Counter(produced - done)
