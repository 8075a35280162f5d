"""What a producer and a consumer over `BlockingClient` have in common: everything happens in the caller's thread.

They look every `metadata_max_age_ms` how many partitions topics have: records with a key go by the new number then,
and a topic that was assigned as a whole is read as a whole, its new partitions from their beginning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Self

from protocols.native.clients.blocking import BlockingClient, KnownTopic
from protocols.native.errors import MillraceError


class ClientUser:
    """A client of its own, closed at the end of the block."""

    def __init__(
        self,
        server: str | Sequence[str],
        timeout_s: float,
        metadata_max_age_ms: int,
        credentials: tuple[str, str] | None,
        tls: SSLContext | None,
        patience_s: float = 0,
    ) -> None:
        self.client = BlockingClient(
            server, timeout_s=timeout_s, credentials=credentials, tls=tls, patience_s=patience_s
        )
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._looked_s = time.monotonic()

    def _looked_up(self, topics: Iterable[str], within_s: float = math.inf) -> dict[str, KnownTopic]:
        """Those of these that there are, as they are now, where it is time to look and they can be asked about."""
        now_s = time.monotonic()
        if now_s - self._looked_s < min(self._metadata_max_age_s, within_s):
            return {}
        self._looked_s = now_s
        try:
            return self.client.topics_found(list(topics))
        except MillraceError:
            return {}  # whoever needs them finds out what is wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
