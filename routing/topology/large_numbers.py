"""Numbers of over 64 bits, which catalogs of earlier versions have as text: those that came by HTTP in arguments of
queues and in policies. They stand for the largest number there is, or the smallest; that refuses nobody and means the
same. Text where text may be stays what it is.
"""

from __future__ import annotations

import re
from typing import Any

from routing.queues.settings import CHECKS

_LARGE = re.compile("(-?)[0-9]{19,}")
_LARGEST = (1 << 63) - 1


def number_again(value: Any) -> Any:
    """The number that a value is the text of, if it is such a text."""
    found = _LARGE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else -_LARGEST if found[1] else _LARGEST


def numbers_again(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a queue, or what a policy defines, with numbers where these have to be."""
    changed = {}
    for key, value in values.items():
        if isinstance(value, str) and (number := number_again(value)) != value:
            check = CHECKS.get(key.removeprefix("x-"))
            if check is not None and check(value) is not None and check(number) is None:
                changed[key] = number
    return {**values, **changed} if changed else values
