"""The will of a client: kept by the engine (`routing/kept/wills.py`) from before CONNACK until the client has gone.

1. It is durable before the client is told that it is connected; connects that come together share the write.
2. DISCONNECT with reason 0 erases it. Any other end sends it: after its delay, or with the end of the session if that
   is sooner (MQTT 5, 3.1.3.2.2); a client that comes back to its session before is not gone. That includes takeover.
3. It is its client's own: it has the client's mark (`raw.py`), as nobody knows yet who will ask for that.
4. A broker that stops sends those without a delay; the others wait on disk for the next start, as do all wills of
   clients whose broker was killed: after `will_grace_ms`, or their delay, who has not come back is gone.
5. Where other brokers of a cluster took this one for gone, which only stood still or was cut off, and published the
   will, the connection ends: others were told so, and a client that went on would have no will any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.convert import topic_to_routing_key
from protocols.mqtt import events
from protocols.mqtt.adapter_dollar import check_will
from protocols.mqtt.adapter_sessions import granted_expiry_s
from protocols.mqtt.raw import GIVEN, RETAIN, head_of, mark_of, with_flags
from protocols.mqtt.reasons import ReasonCode
from protocols.mqtt.topics import Rewriting
from routing.errors import InvalidName
from routing.facts import TTL_MS_MAX
from routing.kept.wills import Will
from routing.message import Properties

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter

EXCHANGE = "amq.topic"


class WillOfClient:
    """The will of one connection; see the module."""

    __slots__ = ("_adapter", "_kept", "_name", "_safe", "_vhost", "_wills")

    def __init__(self, adapter: MqttAdapter) -> None:
        self._adapter = adapter
        self._wills = adapter.broker.wills
        self._vhost = adapter.config.virtual_host
        self._name = adapter.connect.client_id
        self._kept = self._safe = False

    async def keep(self) -> None:
        """The client connects: what waits of an earlier connection is void, or sent; its will is kept. Raises
        StorageUnavailable.
        """
        connect = self._adapter.connect
        self._wills.returned(self._vhost, self._name, afresh=connect.clean_start)
        if connect.will is not None:
            self._kept = True
            user, expiry_s = self._adapter.grants.user, granted_expiry_s(connect.session_expiry_s)
            will = to_kept(connect.will, user, self._name, expiry_s)
            await self._wills.keep(self._vhost, self._name, will, self._lost)
            self._safe = not self._adapter.closed

    def _lost(self) -> None:
        """See the module's rule 5."""
        reason = "its will was published, as this broker was taken for gone"
        self._adapter.end(reason, code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)

    def leave(self) -> None:
        """The connection is over; `connect.will` is None if the client has taken leave."""
        if not self._kept:
            return
        connect, self._kept = self._adapter.connect, False
        if connect.will is None or not self._safe:
            self._wills.erase(self._vhost, self._name)
            return
        delay_s = min(connect.will.delay_s, granted_expiry_s(connect.session_expiry_s))
        self._wills.send(self._vhost, self._name, delay_s * 1000)


def prepare_will(will: events.Will | None, rewriting: Rewriting, adapter: MqttAdapter) -> None:
    """Give a will the topic that it will be published to. Raises BrokerError: it could not be published."""
    if will is None:
        return
    adapter.broker.require_size((will.payload,))
    excess = adapter.config.over_limit(will.topic)
    if excess:
        raise InvalidName(excess)
    will.topic = rewriting.name(will.topic)
    check_will(will.topic)


def to_kept(will: events.Will, user: str, client_id: str, expiry_s: int) -> Will:
    """A will as the engine keeps it, of a client whose session lasts for `expiry_s`."""
    raw = head_of(will.qos, retain=will.retain, mark=mark_of(client_id)) + will.properties
    return Will(
        user=user,
        exchange=EXCHANGE,
        routing_key=topic_to_routing_key(will.topic),
        tag=_tag(raw, will.qos),
        retained_tag=_tag(with_flags(raw, RETAIN | GIVEN), will.qos) if will.retain else None,
        body=will.payload,
        ttl_ms=None if will.expiry_s is None else min(will.expiry_s * 1000, TTL_MS_MAX),
        delay_ms=min(will.delay_s, expiry_s) * 1000,
    )


def _tag(raw: bytes, qos: int) -> bytes:
    return Properties("mqtt", raw, persistent=qos > 0).log_tag
