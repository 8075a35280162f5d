"""What probes are told: whether clients are served, publishers wait, certificates end, and others need this broker."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from gateway.certificate_lifetime import Lifetime
from gateway.errors import Refused
from gateway.health import HealthChecks
from tests.routing.harness import engine
from tests.support.home_cluster import mesh, until

DAY_S = 86400.0


def trouble(checks: HealthChecks, check: str = "") -> str | None:
    """Why the answer is 503; None if it is 200."""
    try:
        status, _, body = checks.page(f"/healthz{check}")
    except Refused as refused:
        return f"{refused.status} {refused.reason}"
    assert (status, body) == (200, b"ok\n")
    return None


def terms_until(file: str, days: float) -> Any:
    now = time.time()
    return SimpleNamespace(certificate_file=file, lifetime=Lifetime(now - 365 * DAY_S, now + days * DAY_S))


async def test_a_broker_alone_is_well_until_publishers_have_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(MemoryFiles()) as one:
        checks = HealthChecks(one.broker, [terms_until("a.pem", 60), SimpleNamespace(lifetime=None)])
        for check in ("", "/alarms", "/certificates", "/quorum-critical"):
            assert trouble(checks, check) is None
        monkeypatch.setattr(one.broker.alarms, "blocked", "low on disk")
        assert trouble(checks, "/alarms") == "503 publishers are blocked: low on disk"
        assert trouble(checks) is None, "consumers are served"
        assert "/healthz/other" not in checks


async def test_certificates_that_end_soon_are_counted_once_a_file() -> None:
    async with engine(MemoryFiles()) as one:
        terms = [terms_until("a.pem", 60), terms_until("b.pem", 29), terms_until("b.pem", 29), terms_until("c.pem", -1)]
        checks = HealthChecks(one.broker, terms)
        assert trouble(checks, "/certificates") == "503 certificates that have expired or soon will: 2"


async def test_a_member_without_which_too_few_would_be_in_sync_is_critical() -> None:
    async with mesh() as brokers:
        checks = [HealthChecks(member.broker, []) for member in brokers.members.values()]
        await until(lambda: not any(trouble(one, "/quorum-critical") for one in checks))
        await brokers.kill(3)
        await until(lambda: all(trouble(one, "/quorum-critical") for one in checks[:-1]))
        said = trouble(checks[0], "/quorum-critical")
        assert said is not None
        assert said.startswith("503 partitions that take nothing any more without this broker: ")
        assert trouble(checks[0]) is None
