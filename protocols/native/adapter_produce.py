"""A produce request while the log works on it: an object that the log calls back, not a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delay.timer_service import Timer
from protocols.native import wire
from protocols.native.adapter_errors import engine_error
from protocols.native.errors import ErrorCode, WireError, wire_error
from routing import errors

if TYPE_CHECKING:
    from protocols.native.adapter import NativeAdapter


class PendingProduce:
    """A produce request until each of its entries is committed or refused."""

    __slots__ = ("_adapter", "_remaining", "_request", "_results", "timer")

    def __init__(self, adapter: NativeAdapter, request: wire.Produce) -> None:
        self._adapter = adapter
        self._request = request
        self._results: list[tuple[WireError | None, int] | None] = [None] * len(request.entries)
        self._remaining = len(request.entries)
        self.timer: Timer | None = None

    def settle(self, index: int, base_offset: int, error: WireError | None) -> None:
        """Entry `index` is done; answers when it was the last."""
        if self._results[index] is not None:
            return
        self._results[index] = (error, base_offset)
        if error is not None:
            self._adapter.refused(self._request.entries[index], error)
        self._remaining -= 1
        if not self._remaining:
            self._adapter.produced(self, self._request, self._results)

    def committed(self, index: int, base_offset: int, error: errors.StorageUnavailable | None) -> None:
        """The log says that entry `index` is safe, or failed."""
        self.settle(index, base_offset, None if error is None else engine_error(error))

    def timed_out(self) -> None:
        """Whatever is not committed by now is answered as such."""
        for index in range(len(self._results)):
            self.settle(index, -1, wire_error(ErrorCode.REQUEST_TIMED_OUT))

    @property
    def waiting(self) -> bool:
        """Not answered yet."""
        return self._remaining > 0
