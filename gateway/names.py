"""Names of hosts, looked up in a thread, once there is one (`core_log/threads.py`)."""

from __future__ import annotations

import socket
from typing import Any

import trio

from core_log.threads import in_thread


class Names(trio.abc.HostnameResolver):
    """For `trio.socket.set_custom_hostname_resolver`; numbers are not asked for."""

    async def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        """See `socket.getaddrinfo`. Raises OSError."""
        return await in_thread(lambda: socket.getaddrinfo(*arguments, **options), abandon_on_cancel=True)

    async def getnameinfo(self, *arguments: Any) -> tuple[str, str]:
        """See `socket.getnameinfo`. Raises OSError."""
        return await in_thread(socket.getnameinfo, *arguments, abandon_on_cancel=True)
