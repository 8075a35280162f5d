"""Enhanced authentication by SCRAM, with the client's side of an independent implementation."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient
from paho.mqtt.packettypes import PacketTypes

from gateway.authentication import authenticator
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.reasons import ReasonCode
from routing.access.scram import MECHANISMS
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.test_wire import paho_properties
from tests.protocols.mqtt.wire import PINGREQ, connect, packets
from tests.protocols.mqtt.wire_5 import auth_5, block, connect_5, publish_5

PEER = "192.0.2.1:5000"


def stranger(world: World) -> Client:
    return world.open(peer=PEER, authenticate=authenticator(world.broker.rights))


def told(client: Client) -> tuple[int, int, dict[str, Any]]:
    """First byte, reason and properties of the one packet that was sent."""
    ((first, body),) = packets(client.take())
    kind = {0x20: PacketTypes.CONNACK, 0xE0: PacketTypes.DISCONNECT, 0xF0: PacketTypes.AUTH}[first]
    at = 1 if first == 0x20 else 0
    values, rest = paho_properties(kind, body[at + 1 :])
    assert rest == b""
    return first, body[at], values


def said(method: str, data: bytes) -> bytes:
    return block(authentication_method=method, authentication_data=data)


async def log_in(client: Client, user: str, password: str, method: str = "SCRAM-SHA-256") -> int:
    """The reason in CONNACK. A right server is checked by the client, too."""
    scram = ScramClient(user, password, method)
    await client.send(connect_5("c1", said(method, scram.first_message())))
    first, reason, values = told(client)
    assert (first, reason, values["AuthenticationMethod"]) == (0xF0, ReasonCode.CONTINUE_AUTHENTICATION, method)
    scram.process_server_first_message(values["AuthenticationData"])
    await client.send(auth_5(0x18, said(method, scram.final_message())))
    first, reason, values = told(client)
    assert first == 0x20
    if not reason:
        assert values["AuthenticationMethod"] == method
        scram.process_server_final_message(values["AuthenticationData"])
    return reason


async def again(client: Client, user: str, password: str) -> tuple[int, int]:
    """The first byte and the reason that another login ends with."""
    scram = ScramClient(user, password, "SCRAM-SHA-256")
    await client.send(auth_5(0x19, said("SCRAM-SHA-256", scram.first_message())))
    first, reason, values = told(client)
    assert (first, reason) == (0xF0, ReasonCode.CONTINUE_AUTHENTICATION)
    scram.process_server_first_message(values["AuthenticationData"])
    await client.send(auth_5(0x18, said("SCRAM-SHA-256", scram.final_message())))
    first, reason, values = told(client)
    if first == 0xF0:
        scram.process_server_final_message(values["AuthenticationData"])
    return first, reason


@pytest.mark.parametrize("method", MECHANISMS)
async def test_mqtt_4_12_0_a_right_password(world: World, method: str) -> None:
    client = stranger(world)
    assert await log_in(client, "me", "right", method) == 0
    assert [one.user for one in world.broker.clients] == ["me"]
    await client.send(publish_5("t", b"x", qos=1), PINGREQ)
    assert sorted(client.take()) == sorted(b"\xd0\0\x40\3\0\1\x10")
    assert not client.closed


@pytest.mark.parametrize(("user", "password"), [("me", "wrong"), ("nobody", "right"), ("guest", "guest")])
async def test_who_is_not_welcome_is_told_the_same(world: World, user: str, password: str) -> None:
    """The user guest is right, but may come from this machine only."""
    client = stranger(world)
    assert await log_in(client, user, password) == ReasonCode.NOT_AUTHORIZED
    assert client.closed
    assert not world.broker.clients


async def test_the_log_says_who_was_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An operator looks for the one device with an old password, behind an address that it shares with others."""
    told = "closing the connection of client {!r}: CONNECT of user {!r} refused: {}"
    assert await log_in(stranger(world), "me", "wrong") == ReasonCode.NOT_AUTHORIZED
    assert told.format("c1", "me", "NOT_AUTHORIZED") in caplog.text
    for client_id, user, reason in (
        ("c2", "me", "BAD_USER_NAME_OR_PASSWORD"),
        ("c" * 300, "me", "CLIENT_IDENTIFIER_NOT_VALID"),
        ("c3", "m" * 300, "BAD_USER_NAME_OR_PASSWORD"),
    ):
        client = stranger(world)
        await client.send(connect(client_id, user=user, password=b"wrong"))
        assert client.closed
        assert told.format(client_id[:200], user[:200], reason) in caplog.text
    by_certificate = world.open(
        peer=PEER, authenticate=authenticator(world.broker.rights), peer_certificate_name="gateway-9"
    )
    await by_certificate.send(connect("c4"))
    assert told.format("c4", "gateway-9", "BAD_USER_NAME_OR_PASSWORD") in caplog.text


async def test_mqtt_4_12_0_1_an_unknown_method(world: World) -> None:
    client = stranger(world)
    await client.send(connect_5("c1", said("GS2-KRB5", b"x")))
    assert told(client)[:2] == (0x20, ReasonCode.BAD_AUTHENTICATION_METHOD)
    assert client.closed


async def test_a_first_message_that_is_none(world: World) -> None:
    client = stranger(world)
    await client.send(connect_5("c1", said("SCRAM-SHA-256", b"hello")))
    assert told(client)[:2] == (0x20, ReasonCode.NOT_AUTHORIZED)


async def test_mqtt_3_1_2_30_nothing_but_auth_before_connack(world: World) -> None:
    for early in (PINGREQ, publish_5("t", b"x"), connect_5("c1")):
        client = stranger(world)
        first = said("SCRAM-SHA-256", ScramClient("me", "right", "SCRAM-SHA-256").first_message())
        await client.send(connect_5("c1", first) + early)
        *_, (kind, body) = packets(client.take())
        assert (kind, body[1]) == (0x20, ReasonCode.PROTOCOL_ERROR)
        assert client.closed


async def test_authenticating_again(world: World) -> None:
    client = stranger(world)
    assert await log_in(client, "me", "right") == 0
    assert await again(client, "me", "right") == (0xF0, 0)
    assert not client.closed
    assert await again(client, "me", "right") == (0xF0, 0)
    assert await again(client, "me", "wrong") == (0xE0, ReasonCode.NOT_AUTHORIZED)
    assert client.closed


async def test_who_authenticates_again_stays_who_it_was(world: World) -> None:
    client = world.open(authenticate=authenticator(world.broker.rights))
    assert await log_in(client, "me", "right") == 0
    assert await again(client, "guest", "guest") == (0xE0, ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize("reason", [0x18, 0x19])
async def test_auth_out_of_turn(world: World, reason: int) -> None:
    client = stranger(world)
    if reason == 0x18:
        assert await log_in(client, "me", "right") == 0
    else:
        first = said("SCRAM-SHA-256", ScramClient("me", "right", "SCRAM-SHA-256").first_message())
        await client.send(connect_5("c1", first))
        client.take()
    await client.send(auth_5(reason, said("SCRAM-SHA-256", b"")))
    assert told(client)[:2] == (0xE0 if reason == 0x18 else 0x20, ReasonCode.PROTOCOL_ERROR)
    assert client.closed


async def test_mqtt_3_1_2_24_a_challenge_that_is_larger_than_the_client_takes(world: World) -> None:
    client, scram = stranger(world), ScramClient("me", "right", "SCRAM-SHA-256")
    properties = said("SCRAM-SHA-256", scram.first_message()) + block(packet_bytes_max=60)
    await client.send(connect_5("c1", properties))
    assert told(client)[:2] == (0x20, ReasonCode.PACKET_TOO_LARGE)
    assert client.closed


@pytest.mark.parametrize("fits", ["challenge", "nothing"])
async def test_mqtt_3_1_2_24_one_that_authenticates_again(world: World, fits: str) -> None:
    client = stranger(world)
    assert await log_in(client, "me", "right") == 0
    client.adapter.connect.packet_bytes_max = 60 if fits == "nothing" else 400
    scram = ScramClient("me", "right", "SCRAM-SHA-256")
    await client.send(auth_5(0x19, said("SCRAM-SHA-256", scram.first_message())))
    if fits == "challenge":
        _, _, values = told(client)
        scram.process_server_first_message(values["AuthenticationData"])
        client.adapter.connect.packet_bytes_max = 60
        await client.send(auth_5(0x18, said("SCRAM-SHA-256", scram.final_message())))
    assert told(client)[:2] == (0xE0, ReasonCode.PACKET_TOO_LARGE)
    assert client.closed


async def test_who_is_not_let_in_yet_cannot_send_as_much_as_who_is(world: World) -> None:
    config = MqttConfig(connect_bytes_max=1024)
    client = world.open(peer=PEER, config=config, authenticate=authenticator(world.broker.rights))
    await client.send(connect("c1", password=b"x" * 1024, user="me")[:5])
    assert client.adapter.closed, "it was known from the length, before there was anything to keep"
    client = world.open(peer=PEER, config=config, authenticate=authenticator(world.broker.rights))
    scram = ScramClient("me", "right", "SCRAM-SHA-256")
    await client.send(connect_5("c1", said("SCRAM-SHA-256", scram.first_message())))
    assert told(client)[:2] == (0xF0, ReasonCode.CONTINUE_AUTHENTICATION)
    await client.send(auth_5(0x18, said("SCRAM-SHA-256", b"x" * 1024))[:5])
    assert told(client)[:2] == (0x20, ReasonCode.PACKET_TOO_LARGE)
    client = world.open(peer=PEER, config=config, authenticate=authenticator(world.broker.rights))
    assert await log_in(client, "me", "right") == 0
    await client.send(publish_5("t", b"x" * 1024, qos=1))
    assert [first for first, _ in packets(client.take())] == [0x40]
