"""How many bytes wait: sums of columns with gaps between them."""

from __future__ import annotations

import random
from array import array

from routing.queues.message_sizes import MessageSizes


def test_how_many_messages_have_so_many_bytes() -> None:
    """As going through them one by one says."""
    random_ = random.Random(3)
    for _ in range(300):
        at, known, size_of, estimate = 0, {}, {}, random_.randint(0, 9)
        while at < 60:
            at += random_.randint(0, 9)
            column = array("I", [random_.randint(0, 20) for _ in range(random_.randint(1, 12))])
            known[at] = column
            size_of |= dict(enumerate(column, at))
            at += len(column)
        sizes = MessageSizes([], estimate, known)
        first, count = random_.randint(0, 60), random_.randint(1, 60)
        each = [size_of.get(offset, estimate) for offset in range(first, first + count)]
        for wanted in range(1, sum(each) + 5):
            enough = (n for n in range(1, count + 1) if sum(each[:n]) >= wanted)
            assert sizes.until(first, count, wanted) == next(enough, count)
