"""What an MQTT connection tells of the packets it has read, in the terms of all protocol versions.

1. A packet of 3.1 or 3.1.1 fills what its version has; the rest stands as its defaults say, so that whoever handles an
   event does not ask for the version.
2. Property blocks travel as bytes: what the standard calls "Properties", without the length in front. Of a publish's
   block the topic alias is taken out, the rest stays as the client wrote it; all zero bytes means none.
3. Runs: consecutive publishes of one QoS and RETAIN flag, and consecutive acknowledgements of one kind, are one event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

NEVER_S = 0xFFFFFFFF
"""A session expiry that means: never (MQTT 5, 3.1.2.11.2)."""


class AcknowledgementKind(IntEnum):
    """The four packets that consist of a packet id and a reason; values are their first bytes."""

    PUBACK = 0x40
    PUBREC = 0x50
    PUBREL = 0x62
    PUBCOMP = 0x70


PUBACK, PUBREC, PUBREL, PUBCOMP = AcknowledgementKind
"""By names of their own: what is looked up in the class of an enumeration takes long."""


@dataclass(slots=True)
class Will:
    """What to publish when the connection ends without a DISCONNECT; `properties` are those to publish it with."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""
    delay_s: int = 0
    expiry_s: int | None = None


@dataclass(slots=True)
class Connect:
    """CONNECT; `user_name` and `password` are None when absent, `keep_alive_s` 0 means no limit.

    `session_expiry_s` of 3.1 and 3.1.1 is 0 for a clean session, else NEVER_S.
    """

    protocol_level: int
    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    session_expiry_s: int = 0
    receive_maximum: int = 65_535
    packet_bytes_max: int | None = None
    topic_alias_max: int = 0
    authentication_method: str | None = None
    authentication_data: bytes = b""
    session_expiry_given: bool = False
    """The broker has chosen `session_expiry_s`."""
    is_bridge: bool = False
    """Of 3.1 and 3.1.1: it wants nothing that it has published itself, and the RETAIN flag of what comes."""

    def takes(self, size: int) -> bool:
        """Whether a packet of so many bytes may be sent to the client (Maximum Packet Size, MQTT-3.1.2-24)."""
        return self.packet_bytes_max is None or size <= self.packet_bytes_max


class PublishRun(msgspec.Struct, gc=False):
    """Consecutive PUBLISH packets with one QoS (0, 1, 2) and one RETAIN flag.

    `topics` are the topics of the messages where they differ (`topic` is the first then), None where they do not;
    `raw` and `raws` are the property blocks in the same way. `expiries_s` are the message expiry intervals, one a
    message, None when no message has one. `packet_ids` are the ids of a QoS 1 or 2 run, two bytes each. `wire` is the
    packets' own bytes when a subscriber at QoS 0 that speaks the publisher's version (all before 5 are one) can be sent
    them as they are (QoS 0, not retained, no alias, no expiry), else None. `heads` are what is before
    the payload of each as such a subscriber is sent it, where an alias is all that forbids that: fixed headers, and
    topics with property blocks.
    """

    topic: str
    qos: int
    retain: bool
    payloads: list[bytes]
    packet_ids: bytes
    wire: bytes | None
    topics: list[str] | None = None
    raw: bytes = b""
    raws: list[bytes] | None = None
    expiries_s: list[int | None] | None = None
    heads: tuple[list[bytes], list[bytes]] | None = None


class Acknowledgements(msgspec.Struct, gc=False):
    """Consecutive acknowledgements of one kind, as inclusive ranges of packet ids in order of arrival.

    `failed` are those among them whose reason code is 0x80 or more, with the reason.
    """

    ranges: list[tuple[int, int]]
    kind: AcknowledgementKind = AcknowledgementKind.PUBACK
    failed: list[tuple[int, int]] = []


@dataclass(slots=True)
class SubscriptionRequest:
    """One filter of a SUBSCRIBE. `retain_handling` 0: send retained messages; 1: if it is new; 2: do not."""

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE; the filters in order, well-formed. `subscription_id` 0 is none."""

    packet_id: int
    requests: list[SubscriptionRequest]
    subscription_id: int = 0


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE; the filters in order, well-formed."""

    packet_id: int
    filters: list[str]


@dataclass(slots=True)
class PingRequest:
    """PINGREQ."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT. Reason 0: the client leaves in good order, its will is void; 4: the will is to be published."""

    reason: int = 0
    session_expiry_s: int | None = None


@dataclass(slots=True)
class Authenticate:
    """AUTH (MQTT 5, 3.15): 0x18 go on, 0x19 authenticate anew."""

    reason: int
    method: str | None = None
    data: bytes = b""


Event = Connect | PublishRun | Acknowledgements | Subscribe | Unsubscribe | PingRequest | Disconnect | Authenticate
