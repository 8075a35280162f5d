"""Limits of the MQTT door. Everything a client can make the broker hold or do is bounded here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from core_log.setting_ranges import BytesOrZero, Count, CountOrZero, Seconds, SecondsOrZero
from protocols.mqtt.events import NEVER_S
from protocols.mqtt.topics import AutoSubscription, TopicRewrite, checked


class MqttConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and rights of MQTT connections; the units are in the names."""

    packet_bytes_max: Annotated[int, Meta(ge=1024, le=256 << 20)] = 1 << 20
    """Largest control packet, fixed header included. A larger one closes the connection before it is read."""

    connect_bytes_max: Annotated[int, Meta(ge=1024, le=256 << 20)] = 128 << 10
    """The same of CONNECT, and of AUTH until the client is let in. A larger `packet_bytes_max` does not count then."""

    topic_bytes_max: Annotated[int, Meta(ge=1, le=255)] = 255
    """Longest topic name or filter in UTF-8. At most 255: a longer name is no AMQP routing key."""

    topic_levels_max: Annotated[int, Meta(ge=1, le=128)] = 32
    """Most `/`-separated levels of a topic name or filter."""

    subscriptions_max: Count = 1000
    """Most topic filters of a client, and in one SUBSCRIBE; those that are too many are answered with 0x80."""

    inflight_messages_max: Annotated[int, Meta(ge=1, le=65_535)] = 8192
    """Most messages at QoS 1 and 2 sent to a client and not yet acknowledged by it; in a session that lasts 32,767."""

    bridge_inflight_messages_max: Annotated[int, Meta(ge=1, le=65_535)] = 20
    """The same for Mosquitto's bridges of MQTT 3.1 and 3.1.1, which cannot say how many they take, and close the
    connection over more than their `max_inflight_messages`, by default 20."""

    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 65_535
    """Most messages at QoS 1 and 2 that a client of MQTT 5 may have published and not yet seen the end of."""

    keep_alive_max_s: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Longest keep-alive of a client of MQTT 5, which is told so; 0: as the client wishes."""

    lasting_client_ids: str = ""
    """A regular expression (RE2) for whole client identifiers. Such a client of MQTT 5 that connects without a clean
    start and asks for no session expiry, so that its session would end with the connection, has `lasting_expiry_s`
    and is told so (MQTT 5, 3.2.2.3.2). Bridges of Mosquitto 2.0 are such clients. "": nobody is."""

    lasting_expiry_s: Annotated[int, Meta(ge=1, le=NEVER_S)] = 604_800
    """For how long sessions of `lasting_client_ids` are kept while the client is away; 4,294,967,295: for ever."""

    offline_qos_0: bool = False
    """Whether sessions that last keep messages at QoS 0 for clients that are not connected."""

    queued_messages_max: CountOrZero = 0
    """Most messages that wait for one client, connected or not; the oldest give way, are counted, and go to a dead
    letter exchange if a policy names one. 0: as many as the disk takes."""

    queued_bytes_max: BytesOrZero = 0
    """The same in bytes of payload; 0: no limit."""

    share_strategy: Literal["round-robin", "least-inflight", "sticky", "hash-topic", "hash-client"] = "round-robin"
    """Which member of a group of shared subscriptions gets a message; policies may say otherwise for single groups."""

    share_expiry_s: Annotated[int, Meta(ge=0, le=4_294_967)] = 86_400
    """A group is kept for so long after its last member has gone; 0: for ever. Longer for sessions that last longer."""

    share_messages_max: CountOrZero = 0
    """Most messages a group keeps; the oldest give way. 0: as many as the disk takes."""

    share_remove_unsubscribed: bool = False
    """A group goes at once, with its messages, when its last member unsubscribes."""

    client_id_bytes_max: Annotated[int, Meta(ge=23, le=200)] = 200
    """Longest client identifier; a longer one is refused with CONNACK 0x02. (It is part of a queue name.)"""

    topic_rewrites: tuple[TopicRewrite, ...] = ()
    """What becomes of topics and filters that clients name: the first rule that matches."""

    auto_subscriptions: tuple[AutoSubscription, ...] = ()
    """What every client is subscribed to when it connects."""

    topic_alias_max: Annotated[int, Meta(ge=0, le=65_535)] = 256
    """Highest topic alias that a client of MQTT 5 may use; 0: none."""

    client_topic_alias_max: Annotated[int, Meta(ge=0, le=65_535)] = 32
    """Most topics that have an alias towards a client of MQTT 5, if it takes as many; 0: none."""

    sys_interval_s: SecondsOrZero = 10.0
    """How often the values of the `$SYS` tree are worked out; 0: there is none."""

    connect_timeout_s: Seconds = 10.0
    """Time from the opening of the transport to a complete CONNECT."""

    virtual_host: str = "/"
    """Where the exchange is that MQTT's topics are the routing keys of."""

    anonymous: Literal["loopback", "always", "never"] = "loopback"
    """Who may connect without a user name: peers on a loopback address, all, or nobody."""

    certificate_login: bool = True
    """A client with a verified certificate and without a user name is the user whose name the certificate has."""

    anonymous_user: str = "guest"
    """Who they are: the user whose rights count for clients without a user name. One that is not there: nobody."""

    not_authorized_told: bool = True
    """Whether a publish or a filter that the user has no right to is refused with 0x87 (not authorized). False: with
    0x80, as by a server that does not wish to reveal the reason."""

    def __post_init__(self) -> None:
        if self.lasting_client_ids:
            checked("lasting_client_ids", self.lasting_client_ids)

    def over_limit(self, topic: str) -> str | None:
        """What limit a topic name or filter breaks, as a phrase; None when it breaks none."""
        if len(topic) > self.topic_bytes_max or len(topic.encode()) > self.topic_bytes_max:
            return f"topic longer than {self.topic_bytes_max} bytes"
        if topic.count("/") >= self.topic_levels_max:
            return f"topic of more than {self.topic_levels_max} levels"
        return None
