"""Attacks on a broker, all at once, while somebody honest has to be served, and what is said of that."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.support import BrokerProcess

Where = TypeVar("Where")


def _attack(
    where: Where, which: Callable[[Where, random.Random], None], seed: int, end: float, done: list[str]
) -> None:
    """Do it until the time is over; being thrown out is what is to be expected."""
    chance = random.Random(seed)
    while True:
        try:
            which(where, chance)
        except OSError:
            pass
        done.append(which.__name__)
        if time.monotonic() > end:
            return


def attack_beside(
    honest: threading.Thread,
    stop: threading.Event,
    where: Where,
    attacks: Sequence[Callable[[Where, random.Random], None]],
    seed: int,
    seconds: float,
) -> list[str]:
    """All attacks for so long beside `honest`, who is told to `stop` then; their names, as often as they were done."""
    end, done = time.monotonic() + seconds, list[str]()
    bad = [
        threading.Thread(target=_attack, args=(where, which, seed + number, end, done))
        for number, which in enumerate(attacks)
    ]
    for thread in (honest, *bad):
        thread.start()
    for thread in bad:
        thread.join()
    stop.set()
    honest.join(60)
    assert not honest.is_alive(), "who is honest was not served"
    assert set(done) == {which.__name__ for which in attacks}
    return done


def resident_bytes(broker: BrokerProcess) -> int:
    """The most memory that the broker ever had."""
    return int(Path(f"/proc/{broker.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


def figures(done: list[str], took: list[float], memory_bytes: int) -> str:
    """What is said in the end; `took` are the round trips of who is honest, in seconds."""
    ordered = sorted(took)
    return (
        f"{len(done)} attacks, {len(took)} honest round trips: p50 {ordered[len(took) // 2] * 1000:.1f} ms, "
        f"p99 {ordered[len(took) * 99 // 100] * 1000:.0f} ms, at most {max(took) * 1000:.0f} ms; "
        f"at most {memory_bytes >> 20} MiB"
    )
