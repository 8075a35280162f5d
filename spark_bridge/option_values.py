"""What the text of an option means: numbers, times, names, JSON; and which of several names was given.

All raise `OptionError`, with a sentence that names the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

COUNT_MAX = 2**63 - 1
"""The largest number that Spark and the broker have room for."""

NAME_CHARACTERS_MAX = 255
"""The longest name that the native protocol has room for."""

_SHOWN_CHARACTERS = 40

_DIGITS_MAX = 100
"""Longer texts are not looked at as numbers: beyond some thousand digits Python refuses to."""

ByPartition = dict[str, dict[int, int]]


class OptionError(ValueError):
    """An option of the read is missing, unknown, malformed or at odds with another one."""


def known_options(options: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """Options by the names as they are written here. Raises `OptionError` for one that is not among them."""
    by_lower_name = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for name, value in options.items():
        found = by_lower_name.get(name.lower())
        if found is None:
            raise OptionError(f"unknown option {name!r}; the options {what} are {', '.join(known)}")
        given[found] = value
    return given


def one_of(given: Mapping[str, str], names: tuple[str, ...], *, required: bool = False) -> str | None:
    """Which of several names was given; None: none of them."""
    chosen = [name for name in names if name in given]
    if len(chosen) > 1:
        raise OptionError(f"the options {' and '.join(chosen)} contradict each other: give one of them")
    if not chosen and required:
        raise OptionError(f"one of the options {', '.join(names)} is needed")
    return chosen[0] if chosen else None


def name_of(given: Mapping[str, str], name: str, *, most: int = NAME_CHARACTERS_MAX) -> str | None:
    """A name that the broker is to know something by; None: it was not given."""
    text = given.get(name)
    if text is not None and (not text.strip() or len(text) > most):
        raise OptionError(f"{name} must be a name of 1 to {most} characters, not {_short(text)!r}")
    return text


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def flag_of(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`, in any case."""
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {given[name]!r}")
    return text == "true"


def count_of(given: Mapping[str, str], name: str, *, default: int = 1, least: int = 1, most: int = COUNT_MAX) -> int:
    """A number in decimal digits, not below `least` or above `most`."""
    text = given.get(name)
    if text is None:
        return default
    if not _is_digits(text) or not least <= int(text) <= most:
        limit = "" if most == COUNT_MAX else f" to {most}"
        raise OptionError(f"{name} must be a number from {least}{limit}, not {text!r}")
    return int(text)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def duration_ms(given: Mapping[str, str], name: str, *, default: int) -> int:
    """Such as `500ms`, `1s`, `15m`; milliseconds without a unit."""
    text = given.get(name)
    if text is None:
        return default
    found = re.fullmatch(r"([0-9]+) *([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise OptionError(f"{name} must be a time such as 500ms, 1s, 15m or 1h, not {text!r}")
    return min(int(found[1][:_DIGITS_MAX]) * _UNITS_MS[found[2]], COUNT_MAX)


def by_partition(option: str, text: str) -> ByPartition:
    """Numbers by topic and partition, in JSON."""
    parsed = json_object(option, text)
    try:
        return {topic: {int(part): _integer(number) for part, number in each.items()} for topic, each in parsed.items()}
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f'{option} must look like {{"topic": {{"0": 23, "1": -2}}}}, not {text}') from None


def assignment(text: str) -> dict[str, list[int]]:
    """Partitions by topic, in JSON; at least one."""
    parsed = json_object("assign", text)
    try:
        assignment = {topic: [_integer(number) for number in numbers] for topic, numbers in parsed.items()}
    except (TypeError, ValueError):
        raise OptionError(f'assign must look like {{"topic": [0, 1]}}, not {text}') from None
    if not any(assignment.values()):
        raise OptionError("assign names no partition")
    return assignment


def json_object(option: str, text: str) -> dict[str, Any]:
    """An object in JSON."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option} is not JSON ({error}): {text}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"{option} must be a JSON object, not {text}")
    return parsed


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def timestamp_ms(option: str, text: str) -> int:
    """Milliseconds since 1970."""
    if not _is_digits(text) or int(text) > COUNT_MAX:
        raise OptionError(f"{option} must be milliseconds since 1970, not {text!r}")
    return int(text)


def names_in(what: str, text: str) -> tuple[str, ...]:
    """Names with commas between them, at least one; `what` they are is in the error."""
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names:
        raise OptionError(f"{what} is empty")
    return names


def topic_pattern(text: str) -> str:
    """A regular expression, as it is."""
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern is not a regular expression: {error}") from None
    return text


def mqtt_filter(text: str) -> str:
    """A filter of MQTT, of ordinary topics."""
    levels = text.split("/")
    if (
        not text
        or "#" in text[:-1]
        or any(level not in ("+", "#") and ("+" in level or "#" in level) for level in levels)
    ):
        raise OptionError(f"mqtt.filter: {text!r} is no filter: + is a whole level, and # the last one")
    if text.startswith("$"):
        raise OptionError(f"mqtt.filter: {text!r} cannot be kept: it is no filter of ordinary topics")
    return text
