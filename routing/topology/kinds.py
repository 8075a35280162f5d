"""All kinds of exchanges by name, and what their arguments have to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routing.errors import PreconditionFailed, UnknownExchangeType
from routing.queues.settings import type_name
from routing.topology.hash_matchers import ConsistentHashMatcher, ModulusHashMatcher, RandomMatcher
from routing.topology.history import RecentHistoryMatcher
from routing.topology.matchers import DirectMatcher, FanoutMatcher, HeadersMatcher, Matcher, TopicMatcher

DELAYED = "x-delayed-message"
"""A kind that matches as its argument `x-delayed-type` says, and whose messages wait as long as they ask for."""
ALTERNATE = "alternate-exchange"

_KINDS: dict[str, type[Matcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
    "x-consistent-hash": ConsistentHashMatcher,
    "x-modulus-hash": ModulusHashMatcher,
    "x-random": RandomMatcher,
    "x-local-random": RandomMatcher,
    "x-recent-history": RecentHistoryMatcher,
}
KINDS = (*_KINDS, DELAYED)


def _class_of(kind: str, arguments: Mapping[str, Any]) -> type[Matcher]:
    return _KINDS[arguments["x-delayed-type"] if kind == DELAYED else kind]


def make_matcher(kind: str, arguments: Mapping[str, Any]) -> Matcher:
    """The matcher of an exchange that was checked."""
    return _class_of(kind, arguments)(arguments)


def check_exchange(name: str, vhost: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Raises UnknownExchangeType, and PreconditionFailed for arguments that make no sense."""
    if kind == "":
        raise UnknownExchangeType("invalid exchange type ''")
    if kind not in KINDS:
        raise UnknownExchangeType(f"unknown exchange type '{kind}'")
    alternate = arguments.get(ALTERNATE)
    if alternate is not None and not isinstance(alternate, str):
        raise PreconditionFailed(
            f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE}' in exchange '{name}' in vhost '{vhost}'"
        )
    like = arguments.get("x-delayed-type")
    if kind == DELAYED and not (isinstance(like, str) and like in _KINDS):
        raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
    _class_of(kind, arguments).check_arguments(arguments)
