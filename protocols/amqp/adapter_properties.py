"""AMQP properties and the engine's: `Properties.raw` is the content header from its flags on.

What a short string of AMQP cannot hold (more than 255 bytes) travels as the header `millrace.<name>` instead, and a
header value without an AMQP type as its text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocols.amqp import property_edits, wire
from protocols.amqp.digit_columns import DIGITS_MAX, FEW, LANES_MAX, combined
from protocols.amqp.errors import AmqpError, SyntaxFault
from protocols.amqp.properties import (
    DELAY_HEADER,
    BasicProperties,
    Step,
    decode_properties,
    encode_properties,
    layout_of,
)
from protocols.sansio import LocalProtocolError
from routing.facts import (
    DELAY_BITS,
    DELAY_MS_MAX,
    DELAYED_FROM,
    PRIORITY_MAX,
    TTL_EXACT_MS_MAX,
    TTL_MASK,
    TTL_MS_MAX,
    asked_delay_ms,
    pack,
    without_delay,
)
from routing.message import (
    NAME_ENCODING_ERRORS,
    RESERVED_HEADER_PREFIX,
    NeutralProperties,
    Properties,
    register_decoder,
)
from routing.property_editors import register_editor
from routing.queues.settings import type_name

PROTOCOL = "amqp"
TRANSIENT, PERSISTENT = 1, 2
COPY_HEADERS = ("CC", "BCC")
"""Lists of further routing keys; the second is not delivered."""
REPLY_TO = "amq.rabbitmq.reply-to"
"""As a queue, and as the `reply_to` of requests: the address of the channel that replies come to directly."""

_REPLY_TO = wire.short_string(REPLY_TO)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTERNED_MAX = 4096
_INTERNED_BYTES_MAX = 1024
_interned: dict[bytes, Properties | SpecialProperties | AmqpError] = {}
_USER_ID_FLAG = 0x10
"""In the second byte of a property list."""
_STEPS_MAX = 1024
_steps: dict[bytes, tuple[Step, ...]] = {}
"""How to walk a property list, by its flags."""


def to_neutral(raw: bytes) -> NeutralProperties:
    """The neutral form of a property list that was checked when it was published."""
    found = decode_properties(raw)
    return NeutralProperties(
        content_type=found.content_type,
        content_encoding=found.content_encoding,
        headers=found.headers or {},
        persistent=found.delivery_mode == PERSISTENT,
        priority=found.priority,
        correlation_id=_to_bytes(found.correlation_id),
        reply_to=found.reply_to,
        expiration_ms=int(found.expiration) if found.expiration is not None else None,
        message_id=found.message_id,
        timestamp_s=found.timestamp,
        type=found.type,
        user_id=found.user_id,
        app_id=found.app_id,
    )


register_decoder(PROTOCOL, to_neutral)


class _Editor:
    """`routing.property_editors.PropertyEditor` for property lists."""

    headers = staticmethod(property_edits.read_headers)
    expiration = staticmethod(property_edits.expiration_of)
    message_id = staticmethod(property_edits.message_id_of)
    encode = staticmethod(property_edits.encode_headers)
    join = staticmethod(operator.add)
    edit = staticmethod(property_edits.edit)


register_editor(PROTOCOL, _Editor())


def from_neutral(neutral: NeutralProperties) -> bytes:
    """The property list of a message that came in by another protocol, where nobody checks a user id."""
    headers = {
        name: _to_field(property_edits.typed(name, value))
        for name, value in neutral.headers.items()
        if len(name.encode(errors="replace")) < 256
    }
    found = BasicProperties(
        delivery_mode=PERSISTENT if neutral.persistent else 1,
        priority=None if neutral.priority is None else max(0, min(255, neutral.priority)),
        timestamp=None if neutral.timestamp_s is None else max(0, neutral.timestamp_s),
    )
    texts = {
        "content_type": neutral.content_type,
        "content_encoding": neutral.content_encoding,
        "correlation_id": _to_text(neutral.correlation_id),
        "reply_to": neutral.reply_to,
        "expiration": None if neutral.expiration_ms is None else str(neutral.expiration_ms),
        "message_id": neutral.message_id,
        "type": neutral.type,
        "app_id": neutral.app_id,
    }
    for name, text in texts.items():
        if text is None:
            continue
        if len(text.encode("utf-8", NAME_ENCODING_ERRORS)) <= 255:
            setattr(found, name, text)
        else:
            headers[RESERVED_HEADER_PREFIX + name.replace("_", "-")] = text
    found.headers = headers or None
    return encode_properties(found)


def raw_of(properties: Properties) -> bytes:
    """The property list to send for a message of any protocol, encoded once."""
    if properties.protocol == PROTOCOL:
        return properties.raw
    raw: bytes | None = properties.wire.get(PROTOCOL)
    if raw is None:
        raw = properties.wire[PROTOCOL] = from_neutral(properties.neutral)
    return raw


@dataclass(slots=True, frozen=True)
class SpecialProperties:
    """Properties that ask the broker for something: `copies` (CC and BCC) are further routing keys, and the reply
    address of the channel is to take the place of `REPLY_TO`.
    """

    properties: Properties
    """As they are to be stored, but for the reply address."""
    copies: tuple[str, ...]
    wants_reply_address: bool


def intern(
    raw: bytes, user: str, impersonates: Callable[[], bool] = lambda: False
) -> Properties | SpecialProperties | AmqpError:
    """The `Properties` for the bytes of a content header, shared by all connections.

    For properties that RabbitMQ refuses (a bad expiration, the name of another user unless the user `impersonates`)
    it is the error to close the channel with. Raises SyntaxFault when the bytes are malformed.
    """
    interned = _interned.get(raw)
    if interned is None:
        facts = facts_of(raw, user)
        if facts is not None:
            # Nothing about it is special: it is decoded when somebody asks what it says.
            properties = Properties(PROTOCOL, raw, persistent=bool(facts & 1), facts=facts)
            if len(raw) <= _INTERNED_BYTES_MAX and not raw[1] & _USER_ID_FLAG:
                _remember(raw, properties)
            return properties
        found = decode_properties(raw)
        if found.expiration is not None and not _is_expiration(found.expiration):
            explanation = f"invalid expiration '{found.expiration}': {_expiration_fault(found.expiration)}"
            return AmqpError("PRECONDITION_FAILED", explanation)
        if found.delivery_mode not in (None, TRANSIENT, PERSISTENT):
            explanation = f"invalid message: {{delivery_mode_unknown,{found.delivery_mode}}}"
            return AmqpError("PRECONDITION_FAILED", explanation)
        if found.user_id is not None and found.user_id != user and not impersonates():
            explanation = f"user_id property set to '{found.user_id}' but authenticated user was '{user}'"
            return AmqpError("PRECONDITION_FAILED", explanation)
        made = _properties_of(raw, found)
        if found.user_id is None and not isinstance(made, AmqpError) and len(raw) <= _INTERNED_BYTES_MAX:
            _remember(raw, made)
        return made
    return interned


def _remember(raw: bytes, made: Properties | SpecialProperties) -> None:
    if len(_interned) >= _INTERNED_MAX:
        _interned.clear()
    _interned[raw] = made


def _properties_of(raw: bytes, found: BasicProperties) -> Properties | SpecialProperties | AmqpError:
    persistent = found.delivery_mode == PERSISTENT
    ttl_ms = None if found.expiration is None else int(found.expiration)
    headers = found.headers or {}
    delay_ms = asked_delay_ms(headers[DELAY_HEADER]) if DELAY_HEADER in headers else 0
    facts = pack(persistent, found.priority or 0, ttl_ms, delay_ms)
    copies: list[str] = []
    for name in COPY_HEADERS:
        keys = headers.get(name, ())
        if not isinstance(keys, (list, tuple)):
            explanation = f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(keys)}}}'
            return AmqpError("PRECONDITION_FAILED", explanation)
        copies += [key for key in keys if isinstance(key, str)]
    stored = property_edits.edit(raw, b"", ["BCC"]) if "BCC" in headers else raw
    properties = Properties(PROTOCOL, stored, persistent=persistent, facts=facts)
    if copies or found.reply_to == REPLY_TO:
        return SpecialProperties(properties, tuple(copies), found.reply_to == REPLY_TO)
    return properties


def facts_of(raw: bytes, user: str) -> int | None:
    """What the engine decides by (`routing.facts`), of properties that need not be decoded for anything else.

    None for those that `intern` refuses, and for those that ask for something special. The list is walked by its
    lengths; only a header table is read.
    """
    flags = raw[:2]
    steps = _steps.get(flags)
    if steps is None:
        if len(_steps) >= _STEPS_MAX:
            _steps.clear()
        steps = _steps[flags] = layout_of(int.from_bytes(flags, "big"))
    pos, facts = 2, 0
    try:
        for step in steps:
            if step is Step.SHORT_STRING:
                pos += raw[pos] + 1
            elif step is Step.DELIVERY_MODE:
                if raw[pos] == PERSISTENT:
                    facts |= 1
                elif raw[pos] != TRANSIENT:
                    return None
                pos += 1
            elif step is Step.PRIORITY:
                facts |= raw[pos] << 1
                pos += 1
            elif step is Step.TIMESTAMP:
                pos += 8
            elif step is Step.HEADERS:
                table, pos = wire.read_table(raw, pos)
                if "CC" in table or "BCC" in table:
                    return None
                if DELAY_HEADER in table:
                    facts |= pack(False, delay_ms=asked_delay_ms(table[DELAY_HEADER]))
            elif step is Step.EXPIRATION:
                stop = pos + 1 + raw[pos]
                digits = raw[pos + 1 : stop]
                if not digits.isdigit() or len(raw) < stop:
                    return None
                ttl_ms = int(digits)
                if ttl_ms > TTL_EXACT_MS_MAX:
                    return None
                facts |= ttl_ms + 1 << 9
                pos = stop
            elif step is Step.REPLY_TO:
                if raw.startswith(_REPLY_TO, pos):
                    return None
                pos += raw[pos] + 1
            elif step is Step.USER_ID:
                text, pos = wire.read_short_string(raw, pos)
                if text != user:
                    return None
            else:
                return None
    except (IndexError, SyntaxFault):
        return None
    return facts if pos == len(raw) else None


def ruled_facts(facts: int, priorities: bytes, digits: list[bytes], delays: list[int]) -> list[int]:
    """See `mixed_runs.RuledFacts`. An expiration has so few digits that it is no greater than
    `TTL_EXACT_MS_MAX`."""
    if delays:
        facts = without_delay(facts)
        if min(delays) < 0 or max(delays) > DELAY_MS_MAX:
            delays = [max(0, min(delay_ms, DELAY_MS_MAX)) for delay_ms in delays]
        if not priorities and not digits:
            return [facts | delay_ms << DELAY_BITS for delay_ms in delays]
        undelayed = ruled_facts(facts, priorities, digits, [])
        return [one | delay_ms << DELAY_BITS for one, delay_ms in zip(undelayed, delays, strict=True)]
    if priorities:
        facts &= ~(PRIORITY_MAX << 1)
    if not digits:
        return [facts | priority << 1 for priority in priorities]
    facts &= ~(TTL_MASK << 9)
    count = len(digits[0])
    if FEW <= count <= LANES_MAX and len(digits) <= DIGITS_MAX and facts < DELAYED_FROM:
        return combined(facts + (1 << 9), 9, digits, 1, priorities)
    levels = priorities or bytes(count)
    return [facts | int(bytes(one)) + 1 << 9 | level << 1 for level, one in zip(levels, zip(*digits), strict=True)]


def _is_expiration(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and 0 <= int(text) <= TTL_MS_MAX


def _expiration_fault(text: str) -> str:
    """What is wrong with an expiration, as RabbitMQ says it."""
    found = _INTEGER.match(text)
    if found is None:
        return "no_integer"
    if found.end() < len(text):
        return f'{{leftover_string,"{text[found.end() :]}"}}'
    return f"{{{'value_negative' if int(text) < 0 else 'value_too_large'},{int(text)}}}"


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", NAME_ENCODING_ERRORS)


def _to_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", NAME_ENCODING_ERRORS)


def _to_field(value: Any) -> Any:
    try:
        wire.table({"": value})
    except (LocalProtocolError, UnicodeEncodeError, RecursionError):
        return str(value).encode("utf-8", "replace").decode()
    return value
