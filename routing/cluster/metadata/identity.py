"""What a data directory knows of the cluster it belongs to: `cluster.json`, which a broker of its own refuses.

It is written before the directory is named anywhere else, then without a cluster id, and with each new lease, so that a
start can end the lease of the process before it: the lock on the directory proves that it is gone.
"""

from __future__ import annotations

import msgspec

from core_log.files import Files
from routing.cluster.metadata import age

PATH = "cluster.json"


class Identity(msgspec.Struct, frozen=True):
    """See the module."""

    cluster: str
    cluster_id: str
    """Empty until the directory is a member."""
    broker_id: int
    directory_id: str
    lease_id: int = 0
    importing: bool = False
    """It is that of a single broker, and being made a member: see `importing.py`."""


def load_identity(files: Files) -> Identity | None:
    """The one that was saved last, None if the directory is in no cluster. Raises ValueError, OSError."""
    if not files.exists(PATH):
        if files.exists(age.PATH):
            raise ValueError(f"{PATH} is missing in what is the directory of a cluster's member: bring it back")
        return None
    file = files.open(PATH, create=False)
    try:
        data = file.pread(files.size(PATH), 0)
    finally:
        file.close()
    try:
        return msgspec.json.decode(data, type=Identity)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{PATH} is damaged: {error}") from None


def save_identity(files: Files, identity: Identity) -> None:
    """Replace it, durably. Raises OSError."""
    temporary = PATH + ".new"
    file = files.open(temporary)
    try:
        file.truncate(0)
        file.pwritev([msgspec.json.format(msgspec.json.encode(identity)) + b"\n"], 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, PATH)
    files.sync_directory("")
