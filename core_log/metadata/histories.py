"""What etcd says, against what was known of it: it may have gone on, or have been put back and gone on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from core_log.metadata.store import MetadataEntry


class Anchor(NamedTuple):
    """A key that, once made, is there as long as anything is."""

    key: bytes
    id_of: Callable[[bytes], object] = bytes
    """What never changes of its value. Revisions alone do not tell: the first change of an etcd that was empty always
    has the same one.
    """

    def is_lost(self, here: Mapping[bytes, MetadataEntry], changed: Iterable[MetadataEntry]) -> bool:
        """Whether it is among what has changed, as gone or as another one than `here`."""
        known = here.get(self.key)
        return known is not None and any(self._is_another(known, entry) for entry in changed if entry.key == self.key)

    def _is_another(self, known: MetadataEntry, found: MetadataEntry) -> bool:
        if known.value is None or found.value is None or found.create_revision != known.create_revision:
            return True
        return self.id_of(found.value) != self.id_of(known.value)


def is_before(found: Sequence[MetadataEntry], known: MetadataEntry | None) -> bool:
    """Whether `clock` is gone, or not as late as it was known to be: other keys may have moved the revision on."""
    if known is None or not found or found[0].create_revision != known.create_revision:
        return known is not None
    revision, is_same = found[0].mod_revision, found[0].value == known.value
    return revision < known.mod_revision or (revision == known.mod_revision and not is_same)


def difference(
    here: Mapping[bytes, MetadataEntry], there: Mapping[bytes, MetadataEntry], revision: int
) -> list[MetadataEntry]:
    """What makes `there` of `here`: what is gone first, the latest first."""
    gone = [
        entry for key, entry in here.items() if key not in there or there[key].create_revision != entry.create_revision
    ]
    gone.sort(key=lambda entry: -entry.create_revision)
    come = [entry for key, entry in there.items() if here.get(key) != entry]  # a revision may be there twice, put back
    come.sort(key=lambda entry: entry.create_revision)
    return [MetadataEntry(entry.key, None, revision, 0) for entry in gone] + come
