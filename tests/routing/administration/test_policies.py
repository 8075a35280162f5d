"""Who may ask for policies."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from routing.access.grants import Permission
from routing.administration import administer
from routing.broker import Broker, open_broker
from routing.errors import AccessRefused, NoPermission


async def asked(broker: Broker, user: str, what: str, **arguments: Any) -> Any:
    return await administer(broker, user, f"policies.{what}", arguments)


async def test_a_policymaker_makes_those_of_virtual_hosts_that_he_may_enter() -> None:
    async with open_broker(MemoryFiles(), users={"guest": "guest"}) as broker:
        for vhost in ("a", "b"):
            await broker.set_vhost(vhost)
            await asked(broker, "guest", "set", name="p", pattern="", definition={"max-length": 1}, vhost=vhost)
        await broker.rights.add_user("pam", b"x", ["policymaker"])
        await broker.rights.add_user("mo", b"x", ["monitoring"])
        await broker.rights.set_permission("a", "pam", Permission("", "", ""))
        away: dict[str, Any] = {"name": "p", "pattern": "", "definition": {"dead-letter-exchange": "x"}, "vhost": "b"}
        for name, arguments in (("set", away), ("delete", {"name": "p", "vhost": "b"}), ("list", {"vhost": "b"})):
            with pytest.raises(NoPermission, match="access to vhost 'b' refused for user 'pam'"):
                await asked(broker, "pam", name, **arguments)
        with pytest.raises(AccessRefused):
            await asked(broker, "pam", "set", **away | {"vhost": "a", "operator": True})
        await asked(broker, "pam", "set", **away | {"vhost": "a"})
        assert [row[0] for row in (await asked(broker, "pam", "list"))["rows"]] == ["a"]
        assert [row[0] for row in (await asked(broker, "mo", "list"))["rows"]] == ["a", "b"]
        await asked(broker, "pam", "delete", name="p", vhost="a")
