"""Brokers of one process, by one clock, and leases that outlast a machine that stands still for some seconds."""

from __future__ import annotations

import pytest

from core_log.metadata.etcd_store import EtcdStore
from tests.support.steady_clock import pytest_itemcollected as pytest_itemcollected

LEASE_TTL_S = 6


@pytest.fixture(autouse=True)
def patient_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real etcd's clock goes on meanwhile: it is to forget nobody who only stood still."""
    monkeypatch.setitem(EtcdStore.__init__.__kwdefaults__, "lease_ttl_s", LEASE_TTL_S)
