"""Who may log in."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from gateway.authentication import authenticator
from protocols.peers import is_loopback
from routing.broker import open_broker

LOCAL, REMOTE = "127.0.0.1:5000", "192.0.2.7:5000"


@pytest.mark.parametrize(
    ("user", "password", "peer", "welcome"),
    [
        ("guest", b"guest", LOCAL, True),
        ("guest", b"guest", "[::1]:5000", True),
        ("guest", b"guest", REMOTE, False),
        ("guest", b"Guest", LOCAL, False),
        ("guest", b"", LOCAL, False),
        ("ada", b"l\xc3\xb6we", REMOTE, True),
        ("ada", b"guest", LOCAL, False),
        ("nobody", b"", LOCAL, False),
        ("", b"", LOCAL, False),
        ("ada", None, REMOTE, True),
        ("guest", None, REMOTE, False),
        ("nobody", None, LOCAL, False),
    ],
)
async def test_users(user: str, password: bytes | None, peer: str, welcome: bool) -> None:
    async with open_broker(MemoryFiles(), users={"guest": "guest", "ada": "löwe"}) as broker:
        assert await authenticator(broker.rights)(user, password, peer) is welcome


@pytest.mark.parametrize(
    ("peer", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("[::ffff:192.0.2.1]:1", False),
        ("192.0.2.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost:1", False),
        ("", False),
    ],
)
def test_loopback(peer: str, loopback: bool) -> None:
    assert is_loopback(peer) is loopback
