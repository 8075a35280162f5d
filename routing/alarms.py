"""When publishers have to wait: the disk or the memory runs short, or the data directory is gone.

1. There is one state, `blocked`: why publishers wait, in RabbitMQ's words, or None. Whoever reads from publishers looks
   at it, or is told by a listener when it changes. Consumers never wait: they are what makes room.
2. Disk: what is free, less what is appended and not written yet, falls below the watermark. What is on its way when
   publishers are stopped so still finds room.
3. Memory: the resident bytes of the process, looked at once a second. Caches may hold a quarter of the limit, which
   counts where that is small, half as much each time that the process has more than seven eighths of it, and as little
   as they can beyond it: what is in none is read from the files, and without that publishers would wait for memory that
   nobody gives back.
4. An alarm ends an eighth above the watermark of the disk, or below that of the memory, so that it does not flutter.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from core_log.disk_space import DiskSpace
from core_log.log_flusher import LogFlusher
from routing.config import BrokerConfig

logger = logging.getLogger(__name__)

LOW_ON_DISK = "low on disk"
LOW_ON_MEMORY = "low on memory"
MISPLACED = "the data directory is not where it was"
_DISK_FREE_BYTES = 50_000_000
"""RabbitMQ's default."""
_DISK_FREE_SHARE = 10
"""Of a small disk no more than this part is kept free by default."""
_MEMORY_BYTES, _MEMORY_SHARE = 128 << 20, 0.75
"""The default is no less than that, which is twice what the process needs for itself, as far as this part allows it."""
_HALVED_MAX = 5
_NO_LIMIT = 1 << 62
_STATM_BYTES = 256
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class Alarms:
    """See the module."""

    def __init__(self, config: BrokerConfig, space: DiskSpace, flusher: LogFlusher) -> None:
        self.space = space
        self.blocked: str | None = None
        self.listeners: dict[Callable[[str | None], None], None] = {}
        self.room_bytes = _NO_LIMIT
        """`check` is worth its while when more than this is unflushed."""
        self.memory_bytes = 0
        self.memory_bytes_max = config.memory_bytes_max
        if self.memory_bytes_max is None:
            self.memory_bytes_max = _memory_limit(config)
        self.halve_caches: Callable[[int], None] = lambda times: None
        """Have all caches hold half as much as is configured, so many times over."""
        self._halved_min = self.caches_halved = self._halved_at_least(config)
        self.disk_free_bytes_min = _watermark(config, space.total_bytes)
        self._flusher = flusher
        self.disk_low = False
        """The disk is below its watermark."""

    def check(self) -> None:
        """Look whether publishers have to wait, or no longer; on the event loop."""
        watermark, unflushed = self.disk_free_bytes_min, self._flusher.unflushed_bytes
        free_bytes = self.space.free_bytes
        if not self.space.total_bytes:
            self.disk_low = False
        elif self.disk_low:
            self.disk_low = free_bytes - unflushed < watermark + watermark // 8
        else:
            self.disk_low = free_bytes - unflushed < watermark
        self._flusher.writes_here = not self.space.misplaced
        reasons = [MISPLACED] if self.space.misplaced else [LOW_ON_DISK] if self.disk_low else []
        if self.memory_bytes_max and self.memory_bytes > self.memory_bytes_max:
            reasons.append(LOW_ON_MEMORY)
        self.room_bytes = free_bytes - watermark if self.space.total_bytes and not reasons else _NO_LIMIT
        self._say(" and ".join(reasons) or None)

    def measure_memory(self) -> None:
        """Ask the system how much memory the process has; what can be given back is, while there is too much of it."""
        self.memory_bytes, most = resident_bytes(), self.memory_bytes_max
        if not most:
            return
        halved, much = self.caches_halved, most - most // 8
        if self.memory_bytes > most:
            halved = _HALVED_MAX
        elif self.memory_bytes > much:
            halved = min(halved + 1, _HALVED_MAX)
        elif self.memory_bytes < most - most // 4:
            halved = max(halved - 1, self._halved_min)
        if halved or self.caches_halved:
            self.halve_caches(halved)
            self.caches_halved = halved
        if self.memory_bytes > much:
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            self.memory_bytes = resident_bytes()

    def _halved_at_least(self, config: BrokerConfig) -> int:
        messages = config.stripes * config.stripe_cache_bytes + config.transient_memory_bytes
        cache_bytes, most = config.tails_bytes_max + config.stream_cache_bytes + messages, self.memory_bytes_max
        times = 0
        while most and times < _HALVED_MAX and cache_bytes >> times > most // 4:
            times += 1
        return times

    def _say(self, reason: str | None) -> None:
        if reason == self.blocked:
            return
        self.blocked = reason
        if reason is None:
            logger.warning("publishers go on: %d bytes are free on the disk", max(self.space.free_bytes, 0))
        else:
            logger.warning(
                "publishers are blocked, %s: %d bytes are free on the disk (watermark %d), the process has %d (%d)",
                reason,
                max(self.space.free_bytes, 0),  # what the reserve lacks is taken off
                self.disk_free_bytes_min,
                self.memory_bytes,
                self.memory_bytes_max or 0,
            )
        for listener in tuple(self.listeners):
            listener(reason)


def _memory_limit(config: BrokerConfig) -> int:
    memory_bytes = memory_of_machine()
    least = min(_MEMORY_BYTES, int(memory_bytes * _MEMORY_SHARE))
    return config.memory_percent_max and max(memory_bytes * config.memory_percent_max // 100, least)


def _watermark(config: BrokerConfig, total_bytes: int) -> int:
    default = min(_DISK_FREE_BYTES, total_bytes // _DISK_FREE_SHARE)
    free_bytes = default if config.disk_free_bytes_min is None else config.disk_free_bytes_min
    return max(free_bytes, total_bytes * config.disk_free_percent_min // 100)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        return int(os.pread(_statm(), _STATM_BYTES, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _statm() -> int:
    """What tells it stays open: it has to be known as well when there are no descriptors left. Raises OSError."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def memory_of_machine() -> int:
    """What this process could have at most: memory of the machine or of its control group; 0 where nobody tells."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
    for limit in _memory_limits():
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found = min(found, int(limit.read_text()))
    return found


def _memory_limits() -> list[Path]:
    """Where its control group has a limit, in both versions, seen from within a container or from outside."""
    limits = [_GROUPS / "memory.max", _GROUPS / "memory/memory.limit_in_bytes"]
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                limits.append(_GROUPS / path.strip("/") / "memory.max")
            elif "memory" in controllers.split(","):
                limits.append(_GROUPS / "memory" / path.strip("/") / "memory.limit_in_bytes")
    return limits
