"""Users and what they may do: the rules, what changes live, and what outlives a restart."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
import trio
from argon2 import PasswordHasher
from trio.testing import wait_all_tasks_blocked

from core_log.files import Files, MemoryFiles
from core_log.memory_files import FaultyFiles
from routing.access import passwords as access_passwords
from routing.access import scram
from routing.access.grants import EVERYTHING, REMEMBERED_MAX, Grants, Permission, TopicPermission
from routing.access.passwords import Passwords
from routing.access.rights import Rights
from routing.access.users import NO_PASSWORD
from routing.broker import open_broker
from routing.errors import (
    AccessRefused,
    BrokerError,
    InvalidArgument,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    StorageUnavailable,
)

CONFIGURED = {"guest": "guest", "carl": "secret"}


@asynccontextmanager
async def open_rights(files: Files | None = None) -> AsyncIterator[Rights]:
    async with open_broker(files or MemoryFiles(), users=CONFIGURED) as broker:
        yield broker.rights


def refused(grants: Grants, access: str, name: str) -> str:
    with pytest.raises(AccessRefused) as error:
        grants.require(access, "queue", name)  # type: ignore[arg-type]
    return str(error.value)


# --- passwords ---------------------------------------------------------------------------


async def test_passwords_are_kept_as_salted_hashes() -> None:
    passwords = Passwords()
    first, second = await passwords.hash(b"pass"), await passwords.hash(b"pass")
    assert first.startswith("$argon2id$")
    assert first != second
    assert await passwords.verify(first, b"pass")
    assert await passwords.verify(second, b"pass")
    assert not await passwords.verify(first, b"Pass")
    assert not await passwords.verify(first, b"")
    assert not await passwords.verify(None, b"pass")
    assert not await passwords.verify("no hash at all", b"pass")


async def test_ten_thousand_who_come_back_at_once_are_one_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords()
    encoded = await passwords.hash(b"pass")
    started: list[object] = []
    run_sync = trio.to_thread.run_sync

    async def counted(*arguments: object, **options: object) -> object:
        started.append(arguments)
        return await run_sync(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    welcome: list[bool] = []

    async def come() -> None:
        welcome.append(await passwords.verify(encoded, b"pass"))

    async with trio.open_nursery() as nursery:
        for _ in range(10_000):
            nursery.start_soon(come)
    assert welcome == [True] * 10_000
    assert len(started) == 1
    assert not await passwords.verify(encoded, b"wrong")
    assert not await passwords.verify(encoded, b"wrong")
    assert len(started) == 3, "what is wrong is not remembered"
    assert not await passwords.verify(None, b"wrong")
    assert len(started) == 4, "a user who is not there costs the same"


async def test_who_waits_for_an_answer_that_somebody_else_asked_for_gets_it_though_he_gives_up() -> None:
    """As a request for metrics does whose time is up while all threads are busy."""
    passwords, welcome, busy_no_more = Passwords(), list[bool](), threading.Event()
    encoded = await passwords.hash(b"pass")

    async def come() -> None:
        welcome.append(await passwords.verify(encoded, b"pass"))

    async with trio.open_nursery() as nursery, trio.open_nursery() as gives_up:
        for _ in range(2):
            nursery.start_soon(passwords.work_out, busy_no_more.wait, 20)
        await wait_all_tasks_blocked()
        gives_up.start_soon(come)
        await wait_all_tasks_blocked()
        for _ in range(2):
            nursery.start_soon(come)
        await wait_all_tasks_blocked()
        gives_up.cancel_scope.cancel()
        busy_no_more.set()
    assert welcome == [True, True]


async def test_who_has_no_hash_costs_as_much_as_who_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    class Counted(PasswordHasher):
        def verify(self, encoded: str | bytes, password: str | bytes) -> Literal[True]:
            compared.append(str(encoded))
            return super().verify(encoded, password)

    monkeypatch.setattr(access_passwords, "_hasher", Counted(time_cost=1, memory_cost=8, parallelism=1))
    salted = scram.as_hash("SCRAM-SHA-256", scram.credential("SCRAM-SHA-256", b"pass", b"salt", 4096))
    passwords = Passwords()
    assert not await passwords.verify(None, b"wrong")
    (of_nobody,) = compared
    for encoded in (salted, NO_PASSWORD):
        compared.clear()
        assert not await passwords.verify(encoded, b"wrong")
        assert of_nobody in compared
    assert await passwords.verify(salted, b"pass")


async def test_changes_of_a_user_that_come_together_are_all_made() -> None:
    async with open_rights() as rights:
        await rights.add_user("ada", b"old", ["administrator"])
        for name, password in (("ada", b"new"), ("guest", b"other")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rights.set_password, name, password)
                nursery.start_soon(rights.set_tags, name, ["monitoring"])
                nursery.start_soon(rights.set_scram, name, {"SCRAM-SHA-512": None})
            user = rights.user(name)
            assert user is not None
            assert user.tags == ("monitoring",)
            assert await rights.authenticate(name, password)


async def test_logging_in() -> None:
    async with open_rights() as rights:
        assert await rights.authenticate("guest", b"guest")
        assert not await rights.authenticate("guest", b"Guest")
        assert not await rights.authenticate("nobody", b"guest")
        await rights.add_user("ada", "löwe".encode(), ["monitoring"])
        assert await rights.authenticate("ada", "löwe".encode())
        assert not await rights.authenticate("ada", b"guest")
        await rights.set_password("ada", b"other")
        assert not await rights.authenticate("ada", "löwe".encode())
        assert await rights.authenticate("ada", b"other")
        await rights.delete_user("ada")
        assert not await rights.authenticate("ada", b"other")
        assert not await rights.authenticate("guest", b"x" * 5000)


# --- rules -------------------------------------------------------------------------------


async def test_permissions_are_expressions_that_match_somewhere_in_a_name() -> None:
    async with open_rights() as rights:
        await rights.add_user("ada", b"x")
        with pytest.raises(NotAllowed, match="access to vhost '/' refused for user 'ada'"):
            rights.grants("ada")
        with pytest.raises(BrokerError, match="vhost nowhere not found"):
            rights.grants("guest", "nowhere")
        await rights.set_permission("/", "ada", Permission("^ada-", "ada|amq\\.default", ""))
        grants = rights.grants("ada")
        grants.require("configure", "queue", "ada-1")
        assert refused(grants, "configure", "x-ada-1") == (
            "access to queue 'x-ada-1' in vhost '/' refused for user 'ada'"
        )
        grants.require("write", "queue", "x-ada-1")
        grants.require("write", "exchange", "")
        assert refused(grants, "read", "ada-1")
        assert grants.allows("read", ""), "an empty expression matches the empty name alone"
        with pytest.raises(AccessRefused, match=r"access to exchange 'amq\.default' in vhost '/' refused"):
            grants.require("read", "exchange", "")


async def test_publishing_is_asked_once() -> None:
    async with open_rights() as rights:
        grants = rights.grants("guest")
        assert "amq.direct" not in grants.publishable
        grants.require_publish("amq.direct", ["k"])
        assert "amq.direct" in grants.publishable
        assert rights.grants("guest") is grants, "connections share what was found out"
        for number in range(REMEMBERED_MAX * 2):
            grants.require_publish(f"e{number}", ["k"])
            grants.require("read", "queue", f"q{number}")
        assert len(grants.publishable) <= REMEMBERED_MAX


async def test_what_changes_counts_at_once() -> None:
    async with open_rights() as rights:
        await rights.add_user("ada", b"x")
        await rights.set_permission("/", "ada", EVERYTHING)
        grants = rights.grants("ada")
        mine = rights.grants("ada", client_id="device")
        grants.require_publish("amq.direct", ["k"])
        mine.require("read", "queue", "q")
        await rights.set_permission("/", "ada", Permission("", "^only$", ""))
        assert "amq.direct" not in grants.publishable
        with pytest.raises(
            AccessRefused, match=r"access to exchange 'amq\.direct' in vhost '/' refused for user 'ada'"
        ):
            grants.require_publish("amq.direct", ["k"])
        assert refused(mine, "read", "q")
        await rights.clear_permission("/", "ada")
        assert refused(grants, "write", "only")
        with pytest.raises(NotAllowed):
            rights.grants("ada")
        gone: list[str] = []
        rights.user_deleted = gone.append
        await rights.set_permission("/", "ada", EVERYTHING)
        grants = rights.grants("ada")
        await rights.delete_user("ada")
        assert gone == ["ada"]
        assert refused(grants, "read", "q")


async def test_keys_of_topic_exchanges() -> None:
    async with open_rights() as rights:
        await rights.add_user("ada", b"x")
        await rights.set_permission("/", "ada", EVERYTHING)
        limited = TopicPermission("^{username}\\.", "^{username}\\.|^{client_id}$")
        await rights.set_topic_permission("/", "ada", "amq.topic", limited)
        await rights.set_topic_permission("/", "ada", "amq.direct", TopicPermission("^no$", "^no$"))
        grants = rights.grants("ada", client_id="dev.7")
        grants.require_publish("amq.topic", ["ada.1", "ada.2"])
        assert "amq.topic" not in grants.publishable
        with pytest.raises(AccessRefused) as error:
            grants.require_publish("amq.topic", ["ada.1", "bob.1"])
        assert str(error.value) == (
            "access to topic 'bob.1' in exchange 'amq.topic' in vhost '/' refused for user 'ada'"
        )
        grants.require_publish("amq.direct", ["any"])  # keys of other exchanges are not limited
        grants.require_keys("read", "amq.topic", ["dev/7"])  # the topic dev.7
        for key in ("dev.7", "devx7"):
            with pytest.raises(AccessRefused):
                grants.require_keys("read", "amq.topic", [key])
        with pytest.raises(AccessRefused):
            rights.grants("ada").require_keys("read", "amq.topic", ["dev/7"])
        await rights.clear_topic_permissions("/", "ada", "amq.topic")
        grants.require_publish("amq.topic", ["bob.1"])
        assert [row[2] for row in rights.topic_permissions()] == ["amq.direct"]


async def test_a_user_whose_name_has_a_dot_has_the_same_topics_by_either_protocol() -> None:
    """The topic ada@example.com/1 of MQTT, and the key ada@example.com.1 of AMQP."""
    async with open_rights() as rights:
        name = "ada@example.com"
        await rights.add_user(name, b"x")
        await rights.set_permission("/", name, EVERYTHING)
        await rights.set_topic_permission("/", name, "amq.topic", TopicPermission(r"^{username}\.", ""))
        keys = ["ada@example/com.1", "ada@example.com.1"]
        for client_id, allowed in (("dev", [True, False]), (None, [False, True])):
            grants = rights.grants(name, client_id=client_id)
            assert [grants.allows_key("write", "amq.topic", key) for key in keys] == allowed


@pytest.mark.parametrize("name", ["+", "#", "+/+", "dev#"])
async def test_a_client_that_is_called_by_a_wildcard_has_no_rights_by_its_name(name: str) -> None:
    async with open_rights() as rights:
        await rights.add_user(name, b"x")
        await rights.set_permission("/", name, EVERYTHING)
        limited = TopicPermission(r"^{client_id}\.|^news\.", r"^{username}\.|^news\.")
        await rights.set_topic_permission("/", name, "amq.topic", limited)
        key = name.replace("/", ".") + ".temp"
        client = rights.grants(name, client_id=name)
        assert not client.allows_key("write", "amq.topic", key)
        assert not client.allows_key("read", "amq.topic", key)
        assert not client.allows_key("read", "amq.topic", "news.today"), "nothing by a rule that mentions it"
        assert rights.grants(name, client_id="dev").allows_key("write", "amq.topic", "news.today")
        assert rights.grants(name).allows_key("read", "amq.topic", f"{name}.temp"), "a word like any other in AMQP"


# --- what cannot be, and what stays ------------------------------------------------------


async def test_what_cannot_be_set() -> None:
    async with open_rights() as rights:
        for name in ("", "x" * 256, "a\nb"):
            with pytest.raises(InvalidArgument, match="user name"):
                await rights.add_user(name, b"x")
        with pytest.raises(PreconditionFailed, match="user 'guest' exists"):
            await rights.add_user("guest", b"x")
        with pytest.raises(InvalidArgument, match="there is no tag 'boss'"):
            await rights.add_user("ada", b"x", ["boss"])
        with pytest.raises(InvalidArgument, match="a password has 1 to 1024 bytes"):
            await rights.add_user("ada", b"")
        with pytest.raises(NotFound, match="no user 'ada'"):
            await rights.set_permission("/", "ada", EVERYTHING)
        with pytest.raises(InvalidArgument, match=r"'\[' is no regular expression"):
            await rights.set_permission("/", "guest", Permission("[", "", ""))
        with pytest.raises(NotFound, match="vhost nowhere not found"):
            await rights.set_permission("nowhere", "guest", EVERYTHING)
        with pytest.raises(NotFound, match="no user 'nobody'"):
            await rights.delete_user("nobody")
        with pytest.raises(NotFound, match="no user 'nobody'"):
            await rights.clear_topic_permissions("/", "nobody")
        assert [user.name for user in rights.users] == ["carl", "guest"]


async def test_everything_outlives_a_restart() -> None:
    files = MemoryFiles()
    async with open_rights(files) as rights:
        await rights.add_user("ada", b"x", ["administrator", "monitoring"])
        await rights.set_permission("/", "ada", Permission("a", "b", "c"))
        await rights.set_topic_permission("/", "ada", "amq.topic", TopicPermission("w", "r"))
        await rights.add_user("bob", b"y")
        await rights.set_permission("/", "bob", EVERYTHING)
        await rights.delete_user("bob")
        await rights.set_password("carl", b"new")
    async with open_rights(files) as rights:
        assert [(user.name, user.tags) for user in rights.users] == [
            ("ada", ("administrator", "monitoring")),
            ("carl", ("administrator",)),
            ("guest", ("administrator",)),
        ]
        assert await rights.authenticate("ada", b"x")
        assert await rights.authenticate("carl", b"new")
        assert not await rights.authenticate("carl", b"secret")
        assert rights.permissions() == [
            ("/", "ada", Permission("a", "b", "c")), ("/", "carl", EVERYTHING), ("/", "guest", EVERYTHING),
        ]  # fmt: skip
        assert rights.topic_permissions() == [("/", "ada", "amq.topic", TopicPermission("w", "r"))]


async def test_users_of_the_configuration_can_be_changed_and_deleted_for_good() -> None:
    files = MemoryFiles()
    async with open_rights(files) as rights:
        await rights.set_tags("carl", ["monitoring"])
        assert await rights.authenticate("carl", b"secret")
        await rights.clear_permission("/", "carl")
        await rights.delete_user("guest")
        assert not await rights.authenticate("guest", b"guest")
    async with open_rights(files) as rights:
        assert rights.user("carl").tags == ("monitoring",)
        with pytest.raises(NotAllowed):
            rights.grants("carl")
        assert rights.user("guest") is None
        await rights.add_user("guest", b"mine")
        with pytest.raises(NotAllowed):
            rights.grants("guest")  # somebody else of the same name
    async with open_rights(files) as rights:
        assert await rights.authenticate("guest", b"mine")
        assert rights.permissions() == []


async def test_what_could_not_be_written_has_changed_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    async with open_rights(files) as rights:
        files.failing["sync"] = errno.ENOSPC
        with pytest.raises(StorageUnavailable):
            await rights.add_user("ada", b"x")
        assert rights.user("ada") is None
        files.failing.clear()
    async with open_rights(files) as rights:
        assert rights.user("ada") is None
