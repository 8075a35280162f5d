"""A broker of another version of the peer protocol: it does not start, and says why in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from gateway.etcd_process import EtcdProcess
from gateway.peer_tls import PeerTls
from protocols.peer import wire
from protocols.peer.connection import Dialer
from tests.gateway.test_peer_tls import Running, member, refused


async def test_a_broker_of_another_version_does_not_start(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Dialer._send

    def old(self: Dialer, frame: Any) -> bytes:
        if isinstance(frame, wire.Hello):
            frame = msgspec.structs.replace(frame, version_min=1, version_max=1)
        return real(self, frame)

    async with trio.open_nursery() as nursery:
        first = Running(member(etcd, tmp_path, 1, PeerTls(), secret="s"))
        await nursery.start(first.run)
        monkeypatch.setattr(Dialer, "_send", old)
        with capture_logs() as said:
            text = await refused(member(etcd, tmp_path, 2, PeerTls(), secret="s"))
        monkeypatch.undo()
        assert "takes no link: broker 1 speaks version 4 of the peer protocol, broker 2 1 to 1" in text
        assert "\n" not in text
        assert sum("speaks version" in str(line) for line in said) == 1, "and as often at the other one"
        second = Running(member(etcd, tmp_path, 2, PeerTls(), secret="s"))
        await nursery.start(second.run)
        await second.stop()
        await first.stop()
