"""What the broker makes of topics that its operator wants otherwise, `topic_rewrites`, and what clients are subscribed
to without asking, `auto_subscriptions`.

Rules are tried in order; the first whose expression matches the whole topic says what it becomes: `$1` to `$9` are the
groups of the expression, `%c` and `%u` the identifier and the user name of the client. A filter is rewritten as it
stands, wildcards and all. What would become no topic, or none within the limits, stays as it is. So does what asks for
the name of a client or user that has a wildcard in it: clients choose their identifiers, and it would stand for all.

Where a topic or filter stands behind words of the broker (`$delayed/5/`, `$share/group/`) rules are about what stands
there, as with EMQX: else who shares a subscription would miss what is published to the topic's new name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocols.mqtt.packets import check_topic_filter, check_topic_name
from protocols.mqtt.reasons import MqttProtocolError

_VARIABLE = re.compile(r"\$([1-9])|%([cu])")
_WILDCARDS = frozenset("+#")
_BEFORE_NAMES = re.compile(r"\$delayed/[^/]*/")
_BEFORE_FILTERS = re.compile(r"\$(?:share/[^/]*|replay/[^/]*|exclusive)/")


_QUEUE = "$queue/"
_QUEUE_GROUP = "$share/$queue/"


def as_shared(topic_filter: str) -> str:
    """`$queue/<filter>` is EMQX's older word for a share of the group `$queue`; all others are what they are."""
    return _QUEUE_GROUP + topic_filter[len(_QUEUE) :] if topic_filter.startswith(_QUEUE) else topic_filter


@cache
def compiled(expression: str) -> Any:
    """An expression of RE2, whose time is linear in the topic. Raises re2.error."""
    import re2  # it is loaded by who needs it

    options = re2.Options()
    options.log_errors = False
    return re2.compile(expression, options)


def checked(setting: str, expression: str) -> Any:
    """An expression that a setting names. Raises ValueError."""
    import re2

    try:
        return compiled(expression)
    except re2.error as error:
        raise ValueError(f"{setting}: '{expression}' is no regular expression: {error}") from None


class TopicRewrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule; see the module."""

    match: str
    """A regular expression for the whole topic."""
    to: str
    action: Literal["publish", "subscribe", "all"] = "all"

    def __post_init__(self) -> None:
        groups = checked("topic_rewrites", self.match).groups
        asked = max((int(number) for number, _ in _VARIABLE.findall(self.to) if number), default=0)
        if asked > groups:
            raise ValueError(f"topic_rewrites: '{self.to}' asks for ${asked}, and '{self.match}' has {groups} groups")


class AutoSubscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every client is subscribed to when it connects, on terms as of SUBSCRIBE; `%c` and `%u` as in rewrites."""

    topic: str
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Annotated[int, Meta(ge=0, le=2)] = 0

    def __post_init__(self) -> None:
        try:
            check_topic_filter(_VARIABLE.sub("x", self.topic))
        except MqttProtocolError as error:
            raise ValueError(f"auto_subscriptions: '{self.topic}': {error}") from None


class Rewriting:
    """The rules as they are for one client. `name` and `filter` give what is published to and subscribed to instead."""

    __slots__ = ("_client_id", "_of_filters", "_of_names", "_over_limit", "_user_name")

    def __init__(
        self,
        rules: Sequence[TopicRewrite],
        client_id: str,
        user_name: str,
        over_limit: Callable[[str], str | None],
    ) -> None:
        self._client_id = client_id
        self._user_name = user_name
        self._over_limit = over_limit
        self._of_names = tuple((compiled(rule.match), rule.to) for rule in rules if rule.action != "subscribe")
        self._of_filters = tuple((compiled(rule.match), rule.to) for rule in rules if rule.action != "publish")

    def name(self, topic: str) -> str:
        """The topic to publish to."""
        return self._rewritten(topic, _BEFORE_NAMES, self._of_names, check_topic_name)

    def filter(self, topic_filter: str) -> str:
        """The filter to subscribe to."""
        return self._rewritten(as_shared(topic_filter), _BEFORE_FILTERS, self._of_filters, check_topic_filter)

    def _rewritten(
        self, topic: str, before: re.Pattern[str], rules: Sequence[tuple[Any, str]], check: Callable[[str], None]
    ) -> str:
        words = before.match(topic)
        prefix = words[0] if words else ""
        for expression, to in rules:
            found = expression.fullmatch(topic[len(prefix) :])
            if found is not None:
                made = self.filled(to, found)
                try:
                    check(made or "")
                except MqttProtocolError:
                    return topic
                return topic if made is None or self._over_limit(prefix + made) else prefix + made
        return topic

    def filled(self, text: str, found: Any = None) -> str | None:
        """A text with what its variables stand for; None: a name that it asks for has a wildcard."""
        names = {"c": self._client_id, "u": self._user_name}

        def value(one: re.Match[str]) -> str:
            number, letter = one.groups()
            if letter:
                return names[letter]
            return (found[int(number)] or "") if found is not None else one[0]

        asked = "".join(names[letter] for _, letter in _VARIABLE.findall(text) if letter)
        return None if not _WILDCARDS.isdisjoint(asked) else _VARIABLE.sub(value, text)
