from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gateway import free_ports as module
from gateway.free_ports import free_ports


@pytest.fixture(autouse=True)
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the system says of the ports of connections."""
    path = tmp_path / "range"
    monkeypatch.setattr(module, "_DYNAMIC_RANGE", path)
    monkeypatch.setattr(module, "_LOWEST_PORT", 20_000)
    module._unassigned_ports.cache_clear()
    yield path
    module._unassigned_ports.cache_clear()


def test_ports_are_not_those_that_connections_are_given(told: Path) -> None:
    told.write_text("20008\t60999\n")
    first, second = free_ports(3), free_ports(3)
    assert len({*first, *second}) == 6
    assert all(20_000 <= port < 20_008 for port in first + second)


def test_what_is_listened_on_is_passed_over(told: Path) -> None:
    told.write_text("20004 60999")
    with ExitStack() as stack:
        taken = stack.enter_context(closing(socket.socket()))
        taken.bind(("127.0.0.1", 20_002))
        found = free_ports(4)
    assert {port for port in found if port < 20_004} == {20_000, 20_001, 20_003}
    assert len(set(found)) == 4, "the system chose one more"


@pytest.mark.parametrize("text", ["1024 65535", "?", "", None])
def test_without_a_range_of_its_own_there_are_ports_all_the_same(told: Path, text: str | None) -> None:
    if text is not None:
        told.write_text(text)
    assert len(set(free_ports(2))) == 2
