"""fdatasync done by the kernel: no thread of ours, and no hand-over of the interpreter's lock.

Linux's native asynchronous I/O (io_submit(2), `IOCB_CMD_FDSYNC`, since Linux 4.18) takes the order in one system call
and tells the end of it through an eventfd, which an event loop can wait for. A thread that calls fdatasync costs two
futex wake-ups and two waits for the interpreter's lock on top: writing and syncing 1,400 bytes took 350 to 420 us and
210 to 270 us of CPU that way, 220 to 310 us and 70 us this way, where 200 to 260 us are what a program takes that does
nothing else (`python -m benchmarks.sync_hop`). No kept library offers it, so it is made of four calls with ctypes.

Where it is not to be had (other systems, other processors, a container that forbids it) `KernelSync.open` returns None
and threads do it.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
from time import perf_counter
from typing import Any

_NUMBERS = {
    "x86_64": {"setup": 206, "destroy": 207, "getevents": 208, "submit": 209},
    "aarch64": {"setup": 0, "destroy": 1, "submit": 2, "getevents": 4},
}
"""Of the system calls."""
_FDSYNC = 3
_TELL_EVENTFD = 1


class _Order(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSync:
    """Orders to sync files, and what became of them. Used by one thread at a time."""

    def __init__(self, call: Any, numbers: dict[str, int], context: ctypes.c_ulong, under_way_max: int) -> None:
        self._call = call
        self._numbers = numbers
        self._context = context
        self.eventfd = -1
        """Readable when something has ended."""
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._order = _Order(opcode=_FDSYNC, flags=_TELL_EVENTFD, eventfd=self.eventfd)
        orders = (ctypes.c_void_p * 1)(ctypes.addressof(self._order))
        self._submit = (ctypes.c_long(numbers["submit"]), context, ctypes.c_long(1), orders)
        self._events = (_Event * under_way_max)()
        most, nothing = ctypes.c_long(under_way_max), ctypes.c_void_p(None)
        self._look, self._wait = (
            (ctypes.c_long(numbers["getevents"]), context, ctypes.c_long(least), most, self._events, nothing)
            for least in (0, 1)
        )
        self._under_way_max = under_way_max
        self._last = 0
        self._under_way: dict[int, tuple[Any, float]] = {}

    @classmethod
    def open(cls, under_way_max: int = 128) -> KernelSync | None:
        """One that takes up to `under_way_max` orders at a time; None where the kernel does not offer it."""
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or sys.platform != "linux" or sys.byteorder != "little":
            return None
        call = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if call(ctypes.c_long(numbers["setup"]), ctypes.c_long(under_way_max), ctypes.byref(context)) != 0:
            return None
        return cls(call, numbers, context, under_way_max)

    def __bool__(self) -> bool:
        """Whether something is under way."""
        return bool(self._under_way)

    def waits_since(self) -> float:
        """When the oldest order that is under way was given, by `perf_counter`; infinity if there is none."""
        return next(iter(self._under_way.values()))[1] if self._under_way else math.inf

    def submit(self, descriptor: int, token: object) -> bool:
        """Have a file synced; `take` returns the token. False: not now, or not this kind of file."""
        if len(self._under_way) >= self._under_way_max:
            return False
        self._last += 1
        order = self._order
        order.data, order.descriptor = self._last, descriptor
        if self._call(*self._submit) != 1:
            return False
        self._under_way[self._last] = token, perf_counter()
        return True

    def take(self, *, wait: bool = False) -> list[tuple[Any, OSError | None]]:
        """What has ended since, with the error if there was one. With `wait` blocks until there is something."""
        try:
            os.read(self.eventfd, 8)
        except BlockingIOError:
            pass
        count = self._call(*(self._wait if wait and self._under_way else self._look))
        found: list[tuple[Any, OSError | None]] = []
        for at in range(count):
            event = self._events[at]
            result = event.result
            error = None if result >= 0 else OSError(-result, os.strerror(-result))
            found.append((self._under_way.pop(event.data)[0], error))
        return found

    def close(self) -> None:
        """Waits for what is under way."""
        eventfd, self.eventfd = self.eventfd, -1
        if eventfd >= 0:
            self._call(ctypes.c_long(self._numbers["destroy"]), self._context)
            os.close(eventfd)

    def __del__(self) -> None:
        self.close()
