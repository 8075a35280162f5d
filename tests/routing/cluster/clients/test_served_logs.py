"""What other brokers are told of a log that its leader cannot read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from core_log.errors import CorruptBatch
from core_log.files import MemoryFiles
from routing.cluster.clients.served_logs import ServedLogs
from routing.errors import StorageUnavailable
from tests.core_log.helpers import open_log


class Link:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def answer(self, request: int, answer: Any) -> None:
        self.said.append(answer.error)


@pytest.mark.parametrize(
    ("problem", "led", "elsewhere", "told"),
    [
        (CorruptBatch("wrong CRC"), True, False, CorruptBatch),
        (FileNotFoundError("gone"), True, False, CorruptBatch),
        (CorruptBatch("wrong CRC"), True, True, StorageUnavailable),
        (FileNotFoundError("gone"), True, True, StorageUnavailable),
        (CorruptBatch("wrong CRC"), False, False, StorageUnavailable),
        (OSError("not now"), True, False, StorageUnavailable),
    ],
)
def test_only_what_nobody_has_is_damaged(problem: Exception, led: bool, elsewhere: bool, told: type[Exception]) -> None:
    """It may have been handed over since the read began."""
    link, log = Link(), open_log(MemoryFiles())
    log.unreadable, log.may_hand_over, log.is_led = True, lambda: elsewhere, lambda: led
    ServedLogs(cast("Any", None), cast("Any", None), cast("Any", link))._refuse(1, log, problem)
    assert [type(error) for error in link.said] == [told]
