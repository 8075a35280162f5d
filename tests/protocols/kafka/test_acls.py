"""The table of rights through Kafka's requests about access control lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from routing.access.grants import Permission
from routing.broker import Broker
from tests.protocols.kafka.door import Peer, kafka_broker

ANY, TOPIC, GROUP, CLUSTER, TRANSACTION = 1, 2, 3, 4, 5
MATCH, LITERAL, PREFIXED = 2, 3, 4
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 2, 3, 4, 5, 6, 7, 8, 10, 11
CONFIGURE = (CREATE, DELETE, ALTER, ALTER_CONFIGS)
LOOKS = (DESCRIBE, DESCRIBE_CONFIGS)
DENY, ALLOW = 2, 3


@asynccontextmanager
async def broker_with_anna() -> AsyncIterator[Broker]:
    async with kafka_broker() as broker:
        await broker.rights.add_user("anna", b"p")
        yield broker


async def described(broker: Broker, user: str | None = "anna", version: int = 3, **more: Any) -> set[Any]:
    said: dict[str, Any] = {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "host_filter": None,
        "principal_filter": None if user is None else f"User:{user}", "operation": ANY, "permission_type": ANY,
    }  # fmt: skip
    reply = await Peer(broker).ask(DESCRIBE_ACLS, version, **(said | more))
    assert reply.error_code == 0
    return {
        (one.resource_type, one.pattern_type, one.resource_name, acl.operation)
        for one in reply.resources
        for acl in one.acls
        if (acl.host, acl.permission_type) == ("*", ALLOW)
    }


def acl(
    name: str, operation: int, *, kind: int = TOPIC, pattern: int = LITERAL, who: str = "User:anna", host: str = "*",
    permission: int = ALLOW,
) -> Entity:  # fmt: skip
    return Entity(
        resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal=who, host=host,
        operation=operation, permission_type=permission,
    )  # fmt: skip


async def create(broker: Broker, *asked: Entity, version: int = 3) -> list[int]:
    reply = await Peer(broker).ask(CREATE_ACLS, version, creations=list(asked))
    return [one.error_code for one in reply.results]


async def delete(broker: Broker, **more: Any) -> tuple[set[Any], set[Any]]:
    """What is gone, and what was meant and stays."""
    said: dict[str, Any] = {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "host_filter": None,
        "principal_filter": "User:anna", "operation": ANY, "permission_type": ANY,
    }  # fmt: skip
    reply = await Peer(broker).ask(DELETE_ACLS, 3, filters=[Entity(**(said | more))])
    (found,) = reply.filter_results
    assert found.error_code == 0
    gone: set[Any] = set()
    stays: set[Any] = set()
    for one in found.matching_acls:
        (stays if one.error_code else gone).add((one.resource_type, one.pattern_type, one.resource_name, one.operation))
    return gone, stays


def permission_of(broker: Broker, user: str = "anna") -> Permission | None:
    return {name: permission for vhost, name, permission in broker.rights.permissions() if vhost == "/"}.get(user)


def on(name: str, *operations: int, pattern: int = LITERAL) -> set[Any]:
    return {(TOPIC, pattern, name, operation) for operation in operations}


async def test_the_table_is_shown() -> None:
    async with broker_with_anna() as broker:
        assert await described(broker) == set()
        rules = Permission(r"^mine\.", r"^orders$|^mine\.", r"^orders$|^mine\.|^a[0-9]$|.*")
        await broker.rights.set_permission("/", "anna", rules)
        assert await described(broker) == (
            on("orders", READ, WRITE, *LOOKS)
            | on("mine.", ALL, READ, WRITE, *CONFIGURE, *LOOKS, pattern=PREFIXED)
            | on("regex:^a[0-9]$", READ, *LOOKS)
            | on("*", READ, *LOOKS)
        )
        await broker.rights.set_tags("anna", ["monitoring"])
        assert await described(broker, resource_type_filter=CLUSTER) == {
            (CLUSTER, LITERAL, "kafka-cluster", DESCRIBE_CONFIGS)
        }
        everything = on("*", ALL, READ, WRITE, *CONFIGURE, *LOOKS) | {(CLUSTER, LITERAL, "kafka-cluster", ALL)}
        assert await described(broker, "guest") == everything, "a user of the configuration"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"operation": READ}, on("orders", READ) | on("mine.", READ, pattern=PREFIXED) | on("*", READ)),
        ({"operation": ALL}, on("mine.", ALL, pattern=PREFIXED)),
        ({"operation": WRITE, "pattern_type_filter": LITERAL}, on("orders", WRITE)),
        ({"operation": WRITE, "pattern_type_filter": PREFIXED}, on("mine.", WRITE, pattern=PREFIXED)),
        ({"operation": READ, "resource_name_filter": "orders"}, on("orders", READ)),
        ({"operation": READ, "resource_name_filter": "orders", "pattern_type_filter": MATCH},
         on("orders", READ) | on("*", READ)),
        ({"operation": READ, "resource_name_filter": "mine.x", "pattern_type_filter": MATCH},
         on("mine.", READ, pattern=PREFIXED) | on("*", READ)),
        ({"operation": READ, "resource_name_filter": "mine.x"}, set()),
        ({"resource_type_filter": GROUP}, set()),
        ({"permission_type": DENY}, set()),
        ({"host_filter": "192.0.2.1"}, set()),
        ({"principal_filter": "User:nobody"}, set()),
    ],
)  # fmt: skip
async def test_filters(said: dict[str, Any], found: set[Any]) -> None:
    async with broker_with_anna() as broker:
        rules = Permission(r"^mine\.", r"^orders$|^mine\.", r"^orders$|^mine\.|.*")
        await broker.rights.set_permission("/", "anna", rules)
        assert await described(broker, **said) == found


@pytest.mark.parametrize("version", range(4))
async def test_rights_are_given(version: int) -> None:
    async with broker_with_anna() as broker:
        asked = [acl("orders", READ), acl("or-d.ers", WRITE), acl("orders", DESCRIBE), acl("orders", READ)]
        assert await create(broker, *asked, version=version) == [0, 0, 0, 0]
        assert permission_of(broker) == Permission("", r"^or\-d\.ers$", "^orders$")
        grants = broker.rights.grants("anna")
        assert grants.allows("read", "orders")
        assert not grants.allows("read", "orders2")
        if version:
            prefixed = [acl("logs.", ALL, pattern=PREFIXED)]
            assert await create(broker, *prefixed, version=version) == [0]
            assert grants.allows("configure", "logs.x"), "at once"
        everything = [acl("*", one) for one in CONFIGURE]
        assert await create(broker, *everything, version=version) == [0] * 4
        assert grants.allows("configure", "whatever")
        assert on("or-d.ers", WRITE, *LOOKS) <= await described(broker)


async def test_what_others_include_may_come_before_them() -> None:
    """As of kafka-acls with two --operation, which sends a set."""
    async with broker_with_anna() as broker:
        cluster = [acl("kafka-cluster", one, kind=CLUSTER) for one in (ALTER, ALL)]
        assert await create(broker, acl("orders", DESCRIBE), acl("orders", READ), *cluster) == [0] * 4
        assert await described(broker, resource_type_filter=TOPIC) == on("orders", READ, *LOOKS)
        assert await create(broker, acl("other", DESCRIBE), acl("other", WRITE, host="192.0.2.1")) == [42, 42]
        said: dict[str, Any] = {"resource_type_filter": TOPIC, "resource_name_filter": "orders"}
        said |= {"pattern_type_filter": LITERAL, "principal_filter": "User:anna", "host_filter": "*"}
        filters = [Entity(**said, operation=one, permission_type=ALLOW) for one in (DESCRIBE, READ)]
        reply = await Peer(broker).ask(DELETE_ACLS, 3, filters=filters)
        found = [[(one.operation, one.error_code) for one in each.matching_acls] for each in reply.filter_results]
        assert found == [[], [(READ, 0), (DESCRIBE, 0), (DESCRIBE_CONFIGS, 0)]]


@pytest.mark.parametrize(
    "asked",
    [
        acl("orders", CREATE),
        acl("orders", DESCRIBE),
        acl("orders", 12),
        acl("orders", ANY),
        acl("", READ),
        acl("regex:a", READ),
        acl("orders", READ, pattern=MATCH),
        acl("orders", READ, who="User:nobody"),
        acl("orders", READ, who="User:*"),
        acl("orders", READ, who="Group:anna"),
        acl("orders", READ, host="192.0.2.1"),
        acl("orders", READ, permission=DENY),
        acl("orders", WRITE, kind=TRANSACTION),
        acl("kafka-cluster", CREATE, kind=CLUSTER),
        acl("other", ALL, kind=CLUSTER),
        acl("x" * 20_000, READ),
    ],
)
async def test_what_the_table_cannot_say_is_refused(asked: Entity) -> None:
    async with broker_with_anna() as broker:
        reply = await Peer(broker).ask(CREATE_ACLS, 3, creations=[asked, acl("fine", READ)])
        refused, fine = reply.results
        assert (refused.error_code, bool(refused.error_message)) == (ErrorCode.INVALID_REQUEST, True)
        assert fine.error_code == 0
        assert permission_of(broker) == Permission("", "", "^fine$")


async def test_nothing_is_added_to_an_expression_that_would_change_it() -> None:
    async with broker_with_anna() as broker:
        rules = Permission("", "", "(?i)^orders$")
        await broker.rights.set_permission("/", "anna", rules)
        assert await create(broker, acl("fine", READ)) == [ErrorCode.INVALID_REQUEST]
        assert permission_of(broker) == rules


async def test_rights_on_groups_and_the_cluster() -> None:
    async with broker_with_anna() as broker:
        assert await create(broker, acl("g", READ, kind=GROUP)) == [0], "groups are open"
        cluster = {"kind": CLUSTER, "name": "kafka-cluster"}
        assert await create(broker, acl(operation=12, **cluster), acl(operation=DESCRIBE, **cluster)) == [0, 0]  # type: ignore[arg-type]
        assert await create(broker, acl(operation=DESCRIBE_CONFIGS, **cluster)) == [0]  # type: ignore[arg-type]
        assert await create(broker, acl(operation=ALL, **cluster)) == [0]  # type: ignore[arg-type]
        assert await create(broker, acl(operation=ALTER, **cluster)) == [0]  # type: ignore[arg-type]
        user = broker.rights.user("anna")
        assert user is not None
        assert user.tags == ("monitoring", "administrator")
        gone, _ = await delete(broker, resource_type_filter=CLUSTER, operation=ALL)
        assert gone == {(CLUSTER, LITERAL, "kafka-cluster", ALL)}
        user = broker.rights.user("anna")
        assert user is not None
        assert user.tags == ("monitoring",)


async def test_rights_are_taken_away() -> None:
    async with broker_with_anna() as broker:
        rules = Permission(r"^mine\.|^orders$", r"^orders$|^mine\.", r"^orders$|^mine\.|^a[0-9]$|.*")
        await broker.rights.set_permission("/", "anna", rules)
        gone, stays = await delete(broker, resource_name_filter="orders", operation=READ)
        assert (gone, stays) == (on("orders", READ, ALL), set())
        gone, stays = await delete(broker, resource_name_filter="orders", operation=DESCRIBE)
        assert (gone, stays) == (set(), on("orders", DESCRIBE))
        gone, stays = await delete(broker, resource_name_filter="orders", operation=ALTER)
        assert (gone, stays) == (on("orders", *CONFIGURE), set())
        gone, stays = await delete(broker, resource_name_filter="regex:^a[0-9]$")
        assert (gone, stays) == (on("regex:^a[0-9]$", READ, *LOOKS), set())
        assert permission_of(broker) == Permission(r"^mine\.", r"^orders$|^mine\.", r"^mine\.|.*")
        gone, stays = await delete(broker, pattern_type_filter=PREFIXED)
        assert (gone, stays) == (on("mine.", ALL, READ, WRITE, *CONFIGURE, *LOOKS, pattern=PREFIXED), set())
        gone, stays = await delete(broker)
        assert (gone, stays) == (on("orders", WRITE, *LOOKS) | on("*", READ, *LOOKS), set())
        assert permission_of(broker) == Permission("", "", "")
        assert await delete(broker) == (set(), set())


async def test_who_takes_everything_away_stays_an_administrator() -> None:
    async with broker_with_anna() as broker:
        await broker.rights.set_tags("anna", ["administrator"])
        everybody = {"principal_filter": None, "resource_type_filter": CLUSTER}
        own = {(CLUSTER, LITERAL, "kafka-cluster", ALL)}
        assert await delete(broker, **everybody) == (own, own), "anna's is gone"
        assert [user.name for user in broker.rights.users if user.tags] == ["guest"]
        assert await delete(broker, **everybody | {"principal_filter": "User:guest"}) == (own, set())


async def test_who_is_no_administrator_sees_and_changes_nothing() -> None:
    async with broker_with_anna() as broker:
        await broker.rights.set_tags("guest", [])
        peer, refused = Peer(broker), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        said: dict[str, Any] = {
            "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "operation": ANY,
            "principal_filter": None, "host_filter": None, "permission_type": ANY,
        }  # fmt: skip
        reply = await peer.ask(DESCRIBE_ACLS, 3, **said)
        assert (reply.error_code, reply.resources) == (refused, [])
        assert await create(broker, acl("orders", READ)) == [refused]
        reply = await peer.ask(DELETE_ACLS, 3, filters=[Entity(**said)])
        assert [one.error_code for one in reply.filter_results] == [refused]
        assert permission_of(broker, "guest") == Permission(".*", ".*", ".*")
