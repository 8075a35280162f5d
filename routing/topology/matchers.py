"""How each kind of exchange finds the destinations of a message.

A kind is a matcher: it is given bindings and asked for the destinations of a routing key, and of the message's
properties where it `varies` by them. What a matcher answers for a routing key is cached by the router unless it varies,
so matchers need to be right rather than fast. `kinds.py` knows all of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from routing.errors import PreconditionFailed
from routing.key_patterns import is_system, parse_pattern
from routing.message import NeutralProperties
from routing.queues.settings import type_name
from routing.topology.binding import Binding, Destination
from routing.topology.topic_trie import TopicTrie

Neutral = Callable[[], NeutralProperties]
"""The message's properties, decoded for those who ask."""


class Matcher:
    """What an exchange kind has to do; this one leads nowhere."""

    varies = False
    """Whether messages with equal routing keys may go to different places; then each is asked for anew."""

    by_chance = False
    """Whether that goes for messages that are alike in all else, too."""

    to_all = True
    """Whether a message goes to all destinations that match, whatever others there are."""

    by_first_key = True
    """Whether of several routing keys of a message only the first has a say."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """`arguments` of the exchange, which were checked."""

    @staticmethod
    def check_arguments(arguments: Mapping[str, Any]) -> None:
        """Raises PreconditionFailed if an exchange cannot have these."""

    @staticmethod
    def check(binding: Binding) -> None:
        """Raises PreconditionFailed if the binding makes no sense here."""

    def add(self, binding: Binding) -> None:
        """A new binding, which was checked."""

    def remove(self, binding: Binding) -> None:
        """A binding that was added is gone."""

    def tokens(self, binding: Binding) -> list[str] | None:
        """The pattern, parsed, of the only routing keys in which a binding has a say; None: it may be any."""
        return None

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        """Destinations, each at least once."""
        return ()


class DirectMatcher(Matcher):
    """Routing key equal to the binding key."""

    by_first_key = False

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.pattern, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        found = self._by_key.get(binding.pattern, {})
        found.pop(binding, None)
        if not found:
            self._by_key.pop(binding.pattern, None)

    def tokens(self, binding: Binding) -> list[str] | None:
        return binding.pattern.split(".") if binding.pattern else []

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        return [binding.destination for binding in self._by_key.get(key, ())]


class KeylessMatcher(Matcher):
    """Whatever the keys of its bindings are: it only knows which there are."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)


class FanoutMatcher(KeylessMatcher):
    """Everything to everyone."""

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        return [binding.destination for binding in self._bindings]


class TopicMatcher(Matcher):
    """Wildcards of AMQP and MQTT, see `topic_trie`. No filter matches what only the broker may say (`is_system`)."""

    by_first_key = False

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._trie: TopicTrie[Binding] = TopicTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding)

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding)

    def tokens(self, binding: Binding) -> list[str] | None:
        return parse_pattern(binding.pattern, binding.syntax)

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        found = self._trie.match(key)
        if is_system(key):
            return [binding.common.destination for binding in found if binding.common.syntax != "mqtt"]
        return [binding.common.destination for binding in found]


def _same(wanted: Any, value: Any) -> bool:
    """Equal and of one class (true is not 1, nor 1 a float); a void in the binding asks for presence only."""
    return wanted is None or (_class_of(wanted) is _class_of(value) and wanted == value)


def _class_of(value: Any) -> type:
    """A protocol's own kinds of integers are integers: the catalog gives them back as such."""
    return int if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _all_same(wanted: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    return all(name in headers and _same(value, headers[name]) for name, value in wanted.items())


_HEADERS_KINDS = ("all", "any", "all-with-x", "any-with-x")


class HeadersMatcher(Matcher):
    """Headers equal to the binding's arguments: `x-match` all (default), any, and the forms that count `x-` headers
    too.

    A binding is looked at when a message has a header that it asks for: each of those of `any`, and of those of `all`
    one, which the fewest others are found by.
    """

    varies = True

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._bindings: dict[Binding, tuple[bool, dict[str, Any]]] = {}
        self._found_by: dict[Asked, dict[Binding, None]] = {}
        """By a header that is asked for; those that ask for none by None."""

    @staticmethod
    def check(binding: Binding) -> None:
        kind = binding.arguments.get("x-match", "all")
        if not isinstance(kind, str):
            raise PreconditionFailed(f"Invalid x-match field type {type_name(kind)} (value {kind}); expected longstr")
        if kind not in _HEADERS_KINDS:
            raise PreconditionFailed(
                f'Invalid x-match field value <<"{kind}">>; expected all, any, all-with-x, or any-with-x'
            )

    def add(self, binding: Binding) -> None:
        kind = binding.arguments.get("x-match", "all")
        with_x = kind.endswith("-with-x")
        wanted = {
            name: value
            for name, value in binding.arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }
        every = kind.startswith("all")
        self._bindings[binding] = (every, wanted)
        asked: list[Asked] = [(name, _indexed(value)) for name, value in wanted.items()]
        if every:
            asked = [min(asked, key=lambda one: len(self._found_by.get(one, ())), default=None)]
        for one in asked:
            self._found_by.setdefault(one, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        _, wanted = self._bindings.pop(binding, (False, {}))
        for one in (None, *((name, _indexed(value)) for name, value in wanted.items())):
            found = self._found_by.get(one, {})
            if found.pop(binding, self) is None and not found:
                del self._found_by[one]

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        found_by, headers = self._found_by, neutral().headers
        found = [binding.destination for binding in found_by.get(None, ())]
        for name, value in headers.items():
            indexed = _indexed(value)
            for asked in ((name, indexed), (name, None)) if indexed is not None else ((name, None),):
                for binding in found_by.get(asked, ()):
                    every, wanted = self._bindings[binding]
                    # Of `any` this header decides: to look at the others as well would be quadratic.
                    hits = _all_same(wanted, headers) if every else _same(wanted[name], value)
                    if hits:
                        found.append(binding.destination)
        return found


Asked = tuple[str, str | bytes | int | float | None] | None
"""A header and the value that is asked for, as far as there is an index of them."""


def _indexed(value: Any) -> str | bytes | int | float | None:
    """The same for all values that may be `_same`. None: whatever the message has."""
    return value if isinstance(value, (str, bytes, int, float)) else None
