"""Logging in by SASL, and what administrators do with users' credentials."""

from __future__ import annotations

import hashlib
from struct import pack
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient

from core_log.memory_files import FaultyFiles, MemoryFiles
from gateway.authentication import authenticator
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocols.kafka.messages_users import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from routing.access.grants import EVERYTHING as ALL
from routing.access.scram import MECHANISMS
from routing.access.users import User
from routing.broker import Broker
from tests.protocols.kafka.door import Peer, kafka_broker

FAST = {"scram_iterations": 4096}
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


def stranger(broker: Broker) -> Peer:
    return Peer(broker, address="192.0.2.1:5000", authenticate=authenticator(broker.rights))


async def plain(broker: Broker, user: str, password: str) -> int:
    peer = stranger(broker)
    await peer.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")
    code: int = (await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{user}\0{password}".encode())).error_code
    peer.adapter.connection_lost()
    return code


async def scram(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-256", version: int = 2) -> Any:
    """The last reply. A right one is checked by the client, too."""
    peer, client = stranger(broker), ScramClient(user, password, mechanism)
    assert (await peer.ask(SASL_HANDSHAKE, 1, mechanism=mechanism)).error_code == 0
    first = await peer.ask(SASL_AUTHENTICATE, version, auth_bytes=client.first_message())
    assert first.error_code == 0, first.error_message
    client.process_server_first_message(first.auth_bytes)
    last = await peer.ask(SASL_AUTHENTICATE, version, auth_bytes=client.final_message())
    if last.error_code == 0:
        client.process_server_final_message(last.auth_bytes)
        assert user in [one.user for one in broker.clients]
    else:
        assert peer.adapter.closed
        assert user not in [one.user for one in broker.clients]
    peer.adapter.connection_lost()
    return last


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", range(3))
async def test_scram(mechanism: str, version: int) -> None:
    async with kafka_broker(**FAST) as broker:
        await broker.rights.add_user("anna", "päss".encode())
        await broker.rights.set_permission("/", "anna", ALL)
        assert (await scram(broker, "anna", "päss", mechanism, version)).error_code == 0
        assert (await scram(broker, "u", "p", mechanism, version)).error_code == 0, "a user of the configuration"
        wrong, nobody = await scram(broker, "anna", "pass", mechanism), await scram(broker, "no", "pass", mechanism)
        assert (wrong.error_code, wrong.error_message) == (nobody.error_code, nobody.error_message)
        assert wrong.error_code == FAILED
        assert (await scram(broker, "guest", "guest", mechanism)).error_code == FAILED, "from elsewhere"
        await broker.rights.set_password("anna", b"other")
        assert (await scram(broker, "anna", "päss", mechanism)).error_code == FAILED
        assert (await scram(broker, "anna", "other", mechanism)).error_code == 0


async def test_who_logs_in_again_stays_who_it_was() -> None:
    async with kafka_broker() as broker:
        await broker.rights.add_user("anna", b"p")
        await broker.rights.set_permission("/", "anna", ALL)
        peer = stranger(broker)
        for user, code in (("anna", 0), ("anna", 0), ("u", FAILED)):
            await peer.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")
            told = await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{user}\0p".encode())
            assert told.error_code == code
        assert "Cannot change principals" in told.error_message
        assert peer.adapter.closed
        assert [one.user for one in broker.clients] == ["anna"]


async def challenge(broker: Broker, user: str) -> tuple[bytes, bytes]:
    peer = stranger(broker)
    await peer.ask(SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-512")
    reply = await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=f"n,,n={user},r=abc".encode())
    _, salt, iterations = reply.auth_bytes.split(b",")
    return salt, iterations


async def test_nobody_learns_who_is_there() -> None:
    files = MemoryFiles()
    async with kafka_broker(files, **FAST) as broker:
        await broker.rights.add_user("anna", b"p")
        there, again, nobody, other = [await challenge(broker, one) for one in ("anna", "u", "no", "other")]
        assert {len(there[0]), len(nobody[0])} == {len(again[0])}
        assert {one[1] for one in (there, again, nobody, other)} == {b"i=4096"}
        assert len({there[0], again[0], nobody[0], other[0]}) == 4
        files = files.crash()
    async with kafka_broker(files, **FAST) as broker:
        assert [await challenge(broker, one) for one in ("anna", "u", "no", "other")] == [there, again, nobody, other]


@pytest.mark.parametrize("final", [b"", b"c=biws,r=abc,p=AAAA", b"\xff"])
async def test_what_is_no_proof_ends_the_connection(final: bytes) -> None:
    async with kafka_broker(**FAST) as broker:
        peer = stranger(broker)
        await peer.ask(SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        assert (await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=b"n,,n=u,r=abc")).error_code == 0
        assert (await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=final)).error_code == FAILED
        assert peer.adapter.closed


async def test_tokens_without_requests_around_them() -> None:
    async with kafka_broker(**FAST) as broker:
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            peer, client = stranger(broker), ScramClient("u", "p", "SCRAM-SHA-512")
            assert (await peer.ask(SASL_HANDSHAKE, 0, mechanism=mechanism)).error_code == 0
            tokens = [b"\0u\0p"]
            if mechanism != "PLAIN":
                tokens = [client.first_message()]
            for token in tokens:
                await peer.receive(pack(">i", len(token)) + token)
                answer = bytes(peer.pipe.data)
                peer.pipe.data.clear()
                assert int.from_bytes(answer[:4], "big") == len(answer) - 4
                if mechanism != "PLAIN" and len(tokens) == 1:
                    client.process_server_first_message(answer[4:])
                    tokens.append(client.final_message())
            assert [one.user for one in broker.clients] == ["u"]
            assert (await peer.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")).error_code == 0, "requests go on"
            peer.adapter.connection_lost()
        peer = stranger(broker)
        await peer.ask(SASL_HANDSHAKE, 0, mechanism="PLAIN")
        await peer.receive(pack(">i", 8) + b"\0u\0wrong")
        assert peer.adapter.closed
        assert not peer.pipe.data


async def forget_scram(broker: Broker, name: str) -> None:
    """As if the user was made before there was SCRAM."""
    await broker.rights._change(name, lambda user: user._replace(scram={}))


async def test_users_of_before_are_completed_when_they_log_in() -> None:
    files = FaultyFiles(MemoryFiles())
    async with kafka_broker(files, **FAST) as broker:  # type: ignore[arg-type]
        await broker.rights.add_user("anna", b"p", ["monitoring"])
        await broker.rights.set_permission("/", "anna", ALL)
        await forget_scram(broker, "anna")
        assert (await scram(broker, "anna", "p")).error_code == FAILED
        assert broker.rights.scram_iterations("anna") == {}
        assert await plain(broker, "anna", "wrong") == FAILED
        assert broker.rights.scram_iterations("anna") == {}
        assert await plain(broker, "anna", "p") == 0
        assert broker.rights.scram_iterations("anna") == dict.fromkeys(MECHANISMS, 4096)
        assert (await scram(broker, "anna", "p")).error_code == 0
        user = broker.rights.user("anna")
        assert isinstance(user, User)
        assert user.tags == ("monitoring",)
        await broker.rights.set_tags("anna", [])
        assert (await scram(broker, "anna", "p")).error_code == 0


# Credentials


def upsert(name: str, password: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> Entity:
    kind = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, iterations)
    return Entity(name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)


async def alter(broker: Broker, upserts: list[Entity], deletions: list[tuple[str, int]] = []) -> dict[str, int]:  # noqa: B006
    gone = [Entity(name=name, mechanism=mechanism) for name, mechanism in deletions]
    reply = await Peer(broker).ask(ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=gone, upsertions=upserts)
    return {one.user: one.error_code for one in reply.results}


async def kept(broker: Broker, *names: str) -> dict[str, Any]:
    users = [Entity(name=name) for name in names] or None
    reply = await Peer(broker).ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert reply.error_code == 0
    return {
        one.user: one.error_code or [(info.mechanism, info.iterations) for info in one.credential_infos]
        for one in reply.results
    }


async def test_credentials_are_described() -> None:
    async with kafka_broker(**FAST) as broker:
        await broker.rights.add_user("anna", b"p")
        await broker.rights.add_user("old", b"p")
        await forget_scram(broker, "old")
        both = [(1, 4096), (2, 4096)]
        assert await kept(broker) == {"anna": both, "guest": both, "u": both}
        missing, twice = ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.DUPLICATE_RESOURCE
        assert await kept(broker, "anna", "old", "no", "u", "u") == {
            "anna": both, "old": missing, "no": missing, "u": twice,
        }  # fmt: skip


async def test_a_salted_password_is_the_only_one_at_every_door() -> None:
    async with kafka_broker(**FAST) as broker:
        await broker.rights.add_user("anna", b"old", ["monitoring"])
        await broker.rights.set_permission("/", "anna", ALL)
        assert await alter(broker, [upsert("anna", "new", iterations=5000)]) == {"anna": 0}
        assert await kept(broker, "anna") == {"anna": [(1, 5000)]}
        assert (await scram(broker, "anna", "new")).error_code == 0
        assert (await scram(broker, "anna", "new", "SCRAM-SHA-512")).error_code == FAILED, "not known yet"
        assert await plain(broker, "anna", "old") == FAILED
        assert await plain(broker, "anna", "new") == 0
        assert (await scram(broker, "anna", "new", "SCRAM-SHA-512")).error_code == 0, "made when it was shown"
        user = broker.rights.user("anna")
        assert user is not None
        assert user.tags == ("monitoring",)
        assert await alter(broker, [], [("anna", 1), ("anna", 2)]) == {"anna": 0}
        assert await plain(broker, "anna", "new") == 0
        assert (await scram(broker, "anna", "new")).error_code == FAILED, "what was taken away stays away"


async def test_a_user_is_made_and_can_be_shut_out() -> None:
    async with kafka_broker(**FAST) as broker:
        assert await alter(broker, [upsert("new", "p"), upsert("new", "p", 2)]) == {"new": 0}
        assert await kept(broker, "new") == {"new": [(1, 4096), (2, 4096)]}
        await broker.rights.set_permission("/", "new", ALL)
        assert (await scram(broker, "new", "p", "SCRAM-SHA-512")).error_code == 0
        assert await alter(broker, [], [("new", 1), ("new", 2)]) == {"new": 0}
        assert await plain(broker, "new", "p") == FAILED


async def test_credentials_that_cannot_be() -> None:
    async with kafka_broker(**FAST) as broker:
        bad, twice = ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.DUPLICATE_RESOURCE
        missing, unknown = ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.UNSUPPORTED_SASL_MECHANISM
        short = upsert("e", "p")
        short.salted_password = b"short"
        upserts = [
            upsert("a", "p", iterations=4095), upsert("b", "p", iterations=1_000_001), upsert("c", "p"),
            upsert("c", "p"), upsert("d", "p", 7), short, upsert("f", "p", salt=b""), upsert("\0", "p"),
        ]  # fmt: skip
        found = await alter(broker, upserts, [("no", 1), ("u", 9)])
        assert found == {
            "a": bad, "b": bad, "c": twice, "d": unknown, "e": bad, "f": bad, "\0": bad, "no": missing, "u": unknown,
        }  # fmt: skip
        assert [one.name for one in broker.rights.users] == ["guest", "u"]
        await broker.rights.set_tags("guest", [])
        assert await alter(broker, [upsert("a", "p")]) == {"a": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        reply = await Peer(broker).ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        assert (reply.error_code, reply.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
