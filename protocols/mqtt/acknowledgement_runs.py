"""Runs of PUBACK, PUBREC, PUBREL or PUBCOMP in a piece of input.

All four are a packet id, in MQTT 5 then a reason and properties, which may be absent. Three forms are found in C by
their columns, windows growing by four: nothing but the id; a reason, too; and an empty property block after that. Any
other is read by itself and belongs to the run. One whose id is 0, which no publish has, ends a run: it is found again
as the first packet of what follows, so that what came before it counts.
"""

from __future__ import annotations

from protocols.mqtt.events import AcknowledgementKind, Acknowledgements
from protocols.mqtt.packets import frame, packet_id_ranges
from protocols.mqtt.properties import IN_ACKNOWLEDGEMENT, read_properties
from protocols.mqtt.reasons import ACKNOWLEDGEMENT_REASONS, MqttProtocolError, ReasonCode

_ID_0 = b"\0\0"
_WINDOW = 16
_FAILURE = 0x80
_CLAUSES = {
    AcknowledgementKind.PUBACK: "MQTT-3.4.1",
    AcknowledgementKind.PUBREC: "MQTT-3.5.1",
    AcknowledgementKind.PUBREL: "MQTT-3.6.1",
    AcknowledgementKind.PUBCOMP: "MQTT-3.7.1",
}
_REASON_CLAUSES = {
    AcknowledgementKind.PUBACK: "MQTT-3.4.2-1",
    AcknowledgementKind.PUBREC: "MQTT-3.5.2-1",
    AcknowledgementKind.PUBREL: "MQTT-3.6.2-1",
    AcknowledgementKind.PUBCOMP: "MQTT-3.7.2-1",
}


def take_acknowledgements(
    data: bytes, position: int, stop: int, kind: AcknowledgementKind
) -> tuple[Acknowledgements, int]:
    """The run of this kind that begins with the complete packet [position, stop) of 3.1 or 3.1.1, and where it ends."""
    if stop - position != 4:
        raise MqttProtocolError(f"{kind.name} of another length than 2", _CLAUSES[kind])
    packet_id = data[stop - 2] << 8 | data[stop - 1]
    if not packet_id:
        raise _packet_id_0(kind)
    if stop == len(data):  # nothing follows
        return Acknowledgements([(packet_id, packet_id)], kind), stop
    packet_ids, start = bytearray(), position
    position = _take_columns(data, position, 4, data[position], packet_ids)  # in 3.1 PUBREL may have DUP
    if _ID_0 in packet_ids and (good := _count_before_id_0(packet_ids)) * 2 < len(packet_ids):
        return take_acknowledgements(data[: start + 4 * good], start, stop, kind)
    return Acknowledgements(packet_id_ranges(packet_ids), kind), position


def take_acknowledgements_5(
    data: bytes, position: int, stop: int, kind: AcknowledgementKind, packet_bytes_max: int
) -> tuple[Acknowledgements, int]:
    """The same for MQTT 5."""
    start, end = position, len(data)
    if stop == end and stop - position == 4:  # nothing follows
        packet_id = data[stop - 2] << 8 | data[stop - 1]
        if not packet_id:
            raise _packet_id_0(kind)
        return Acknowledgements([(packet_id, packet_id)], kind), stop
    first_stop = stop
    packet_ids = bytearray()
    failed: list[tuple[int, int]] = []
    while True:
        length = data[position + 1]
        if length == 2:
            position = _take_columns(data, position, 4, kind, packet_ids)
        elif length == 3 or (length == 4 and not data[position + 5]):
            begin, known = position, len(packet_ids)
            position = _take_columns(data, position, length + 2, kind, packet_ids)
            reasons = data[begin + 4 : position : length + 2]
            good = _count_good(kind, reasons)
            if max(reasons) >= _FAILURE:
                ids = zip(packet_ids[known::2], packet_ids[known + 1 :: 2])
                failed += [
                    (high << 8 | low, reason) for (high, low), reason in zip(ids, reasons[:good]) if reason >= _FAILURE
                ]
            if good < len(reasons):
                if not known + good:
                    raise _wrong_reason(kind, reasons[0])
                del packet_ids[known + 2 * good :]
                position = begin + (length + 2) * good
                break
        else:
            try:
                packet_id, reason = _read_one(kind, data[position:stop])
            except MqttProtocolError:
                if not packet_ids:
                    raise
                break
            packet_ids += packet_id.to_bytes(2, "big")
            if reason >= _FAILURE:
                failed.append((packet_id, reason))
            position = stop
        if end - position < 4 or data[position] != kind:
            break
        try:
            _, stop = frame(data, position, end, packet_bytes_max)
        except MqttProtocolError:
            break  # raised again as the first packet of what follows: this run counts
        if stop > end:
            break
    if _ID_0 in packet_ids and (good := _count_before_id_0(packet_ids)) * 2 < len(packet_ids):
        if not good:
            raise _packet_id_0(kind)
        end = start
        for _ in range(good):
            end = frame(data, end, len(data), packet_bytes_max)[1]
        return take_acknowledgements_5(data[:end], start, first_stop, kind, packet_bytes_max)
    return Acknowledgements(packet_id_ranges(packet_ids), kind, failed), position


def _count_before_id_0(packet_ids: bytearray) -> int:
    """How many packet ids stand before the first that is 0."""
    at = packet_ids.find(_ID_0)
    while at >= 0 and at & 1:
        at = packet_ids.find(_ID_0, at + 1)
    return (at if at >= 0 else len(packet_ids)) // 2


def _packet_id_0(kind: AcknowledgementKind) -> MqttProtocolError:
    return MqttProtocolError(f"{kind.name} with packet identifier 0", "MQTT-2.3.1-6", ReasonCode.PROTOCOL_ERROR)


def _take_columns(data: bytes, position: int, size: int, kind: int, packet_ids: bytearray) -> int:
    """Add the ids of packets of `size` bytes from `position` on, of which the first is one; returns where they end."""
    first, length = bytes((kind,)), bytes((size - 2,))
    total, count, window = (len(data) - position) // size, 1, _WINDOW
    while count < total and data.startswith(first + length, position + size * count):
        some = min(window, total - count)
        start = position + size * count
        end = start + size * some
        rest = max(len(data[start:end:size].lstrip(first)), len(data[start + 1 : end : size].lstrip(length)))
        if size == 6:
            rest = max(rest, len(data[start + 5 : end : size].lstrip(b"\0")))
        count += some - rest
        if rest:
            break
        window *= 4
    stop = position + size * count
    ids = bytearray(2 * count)
    ids[::2] = data[position + 2 : stop : size]
    ids[1::2] = data[position + 3 : stop : size]
    packet_ids += ids
    return stop


def _count_good(kind: AcknowledgementKind, reasons: bytes) -> int:
    """How many reasons stand before the first that an acknowledgement of this kind may not have."""
    wrong = set(reasons) - ACKNOWLEDGEMENT_REASONS[kind]
    return min(map(reasons.index, wrong)) if wrong else len(reasons)


def _wrong_reason(kind: AcknowledgementKind, reason: int) -> MqttProtocolError:
    return MqttProtocolError(f"{kind.name} with reason {reason:#04x}", _REASON_CLAUSES[kind], ReasonCode.PROTOCOL_ERROR)


def _read_one(kind: AcknowledgementKind, packet: bytes) -> tuple[int, int]:
    """The packet id and the reason of a packet in any form."""
    body, _ = frame(packet, 0, len(packet), len(packet))
    if len(packet) - body < 2:
        raise MqttProtocolError(f"truncated {kind.name}", _CLAUSES[kind])
    packet_id = packet[body] << 8 | packet[body + 1]
    if len(packet) == body + 2:
        return packet_id, 0
    reason = packet[body + 2]
    if reason not in ACKNOWLEDGEMENT_REASONS[kind]:
        raise _wrong_reason(kind, reason)
    if len(packet) > body + 3:
        _, position = read_properties(packet, body + 3, IN_ACKNOWLEDGEMENT, kind.name)
        if position != len(packet):
            raise MqttProtocolError(f"bytes after the properties of {kind.name}", _CLAUSES[kind])
    return packet_id, reason
