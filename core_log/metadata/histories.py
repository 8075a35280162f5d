"""What etcd says, against what was known of it: it may have gone on, or have been put back and gone on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core_log.metadata.store import MetadataEntry


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
