"""The command of rounds that have a number and a seed."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable


def main(run: Callable[[int, int], object], *, rounds: int) -> None:
    """Do as many rounds as are asked for, `rounds` if none are; from a seed, which is printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    run(options.rounds, options.seed)
