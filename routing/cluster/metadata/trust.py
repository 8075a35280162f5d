"""Which replicas of a data directory may lack what an earlier process reported of them: `lost-replicas`.

1. A replica is lost when its log was found damaged, when it ends below the high watermark that was saved, when one was
   saved (be it 0) and its directory is gone (or nobody knows of which it was saved, and the metadata have it in sync),
   and, unless its reports were of synced bytes (`fsync = "commit"`), when the machine went down while a broker ran.
2. It stays lost, across restarts, until the metadata names this process in the log's ISR: the second start finds
   nothing wrong with a log any more.
3. Of a directory that is an older copy every replica is lost (`distrust`): see `age.py`.
4. The file is written before this broker says anything to others, and whenever something is lost.
5. When the file is damaged, or gone, nobody knows what it said: every replica is lost. It is there before the age is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from core_log import checkpoint
from core_log.files import Files
from routing.cluster.metadata import age

PATH = "lost-replicas"

logger = logging.getLogger(__name__)


class _Saved(msgspec.Struct, frozen=True):
    boot: str = ""
    """Of the machine, when this was written."""
    clean: bool = True
    """No broker runs on this directory."""
    lost: tuple[str, ...] = ()
    all_lost: bool = False
    """The others as well: what this file said before cannot be read."""


class Trust:
    """See the module. `boot` is another one after each start of the machine."""

    def __init__(self, files: Files, boot: str) -> None:
        """Raises OSError."""
        self._files = files
        self._boot = boot
        try:
            data = checkpoint.read(files, PATH)
            if data is None and files.exists(age.PATH):
                raise ValueError(f"{PATH} is missing")
            saved = _Saved() if data is None else msgspec.msgpack.decode(data, type=_Saved)
        except ValueError:  # those of msgspec among them
            what = "%s is damaged or gone: nobody relies on the replicas here until they are in sync again"
            logger.error(what, PATH)
            saved = _Saved(all_lost=True)
        self._saved = saved
        self._went_down = not saved.clean and saved.boot != boot
        self._all_lost = saved.all_lost
        self._lost = dict.fromkeys(saved.lost)

    @property
    def lost(self) -> tuple[str, ...]:
        """As it was written down last."""
        return self._saved.lost

    def is_lost(self, name: str, *, synced: bool) -> bool:
        """Of a log that is being opened; `synced`: what was reported of it was synced."""
        return name in self._lost or self._all_lost or (self._went_down and not synced)

    def distrust(self) -> None:
        """All replicas here are lost. Raises OSError."""
        self._all_lost = True
        self._save(self._saved.lost, clean=self._saved.clean)

    def begun(self, lost: Iterable[str]) -> None:
        """All logs are open, these are lost; a broker runs from here on. Raises OSError."""
        self._went_down = self._all_lost = False
        self._save(lost, clean=False)

    def note(self, lost: Iterable[str]) -> None:
        """These are lost now. Raises OSError."""
        if set(lost) != set(self._saved.lost):
            self._save(lost, clean=self._saved.clean)

    def ended(self, lost: Iterable[str]) -> None:
        """All logs are closed. Raises OSError."""
        self._save(lost, clean=True)

    def _save(self, lost: Iterable[str], *, clean: bool) -> None:
        # Until `begun` the file says of which start of the machine the last broker was.
        boot = self._saved.boot if self._went_down else self._boot
        saved = _Saved(boot, clean and not self._went_down, tuple(sorted(lost)), self._all_lost)
        if saved != self._saved:
            checkpoint.save(self._files, PATH, msgspec.msgpack.encode(saved))
            self._saved = saved
            self._lost = dict.fromkeys(saved.lost)
