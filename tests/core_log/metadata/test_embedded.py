"""What only the store of a single broker does."""

from __future__ import annotations

import pytest

from core_log.errors import Conflict
from core_log.files import MemoryFiles
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.metadata import embedded
from core_log.metadata.embedded import EmbeddedStore
from core_log.metadata.store import Guard, MetadataEntry
from tests.core_log.helpers import open_log


async def test_who_relies_on_a_revision_that_is_forgotten_is_told_of_a_conflict(
    flusher: LogFlusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_REVISIONS_MAX", 3)
    store = EmbeddedStore(KeyedStore(open_log(MemoryFiles(), flusher=flusher)))

    def there(key: bytes) -> MetadataEntry:
        entry = store.get(key)
        assert entry is not None
        return entry

    await store.change((), [(b"a", b"1")])
    before = there(b"a")
    for key in (b"b", b"c", b"d"):
        await store.change([Guard(b"a", before.mod_revision, before.create_revision)], [(key, b"")])
    with pytest.raises(Conflict):
        await store.change([Guard(b"a", before.mod_revision)], [(b"e", b"")])
    now = there(b"a")
    assert (now.value, now.mod_revision) == (b"1", store.revision)
    await store.change([Guard(b"a", now.mod_revision, now.create_revision)], [(b"a", b"2")])
    assert (there(b"a").value, there(b"a").mod_revision) == (b"2", store.revision)
