"""A channel of a connection of its own, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika


@contextmanager
def pika_channel(host: str, port: int, **options: Any) -> Iterator[Any]:
    """With confirms; `options` are pika's of a connection."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, **options))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()
