"""Fixtures all test folders may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import BrokerProcess, broker_process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test's own, with all doors open; it may be killed and restarted."""
    with broker_process(tmp_path / "data") as process:
        yield process


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that need nothing special: use names of your own and do not end it."""
    with broker_process(tmp_path_factory.mktemp("shared") / "data") as process:
        yield process
