"""What a metadata store is: a map of small values that is changed all or nothing and read from memory.

1. `get` and `items` answer what was *applied*: what the listeners were told of. They never wait.
2. Every change has a revision, which changes that were made together share; revisions rise. Listeners are called on
   the event loop with each revision's entries, in the order of revisions and, within one, in that of the puts.
3. When `change` returns, the change is as durable as the store makes it, and applied here.
4. A guard is what a change relies on. If one does not hold, nothing happens but `Conflict`, and what is so now was
   applied before it is raised: the caller looks again and decides anew.

`EmbeddedStore` keeps it in a log of this directory, for one broker; `EtcdStore` in etcd, for all brokers of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol


class MetadataEntry(NamedTuple):
    """A key with its value; without one it is gone. Revisions: of its last change, and of when it was made anew."""

    key: bytes
    value: bytes | None
    mod_revision: int
    create_revision: int


class Guard(NamedTuple):
    """The revisions that a key must still have, 0 for a key that is not there; None is not looked at."""

    key: bytes
    mod_revision: int | None = None
    create_revision: int | None = None

    def holds(self, entry: MetadataEntry | None) -> bool:
        """Whether it does, the key being so."""
        mod, create = (entry.mod_revision, entry.create_revision) if entry is not None else (0, 0)
        return self.mod_revision in (None, mod) and self.create_revision in (None, create)


Put = tuple[bytes, bytes | None]
"""A key and its new value; None removes it."""

Listener = Callable[[int, Sequence[MetadataEntry]], None]
"""Called with a revision and its entries."""


class MetadataStore(Protocol):
    """See the module."""

    listeners: list[Listener]
    puts_max: int
    """How many keys one change may put, and how many guards it may have."""
    reads_anew: bool
    """What listeners are told of now was found by comparing everything: what is gone was removed, or lost."""

    @property
    def revision(self) -> int:
        """The last one that was applied."""

    def get(self, key: bytes) -> MetadataEntry | None:
        """The entry of a key; None when it is not there."""

    def keys(self, prefix: bytes = b"") -> Sequence[bytes]:
        """All keys that begin with `prefix`."""

    def items(self, prefix: bytes = b"") -> Iterable[tuple[bytes, MetadataEntry]]:
        """All keys that begin with `prefix`, with their entries."""

    async def change(
        self,
        guards: Sequence[Guard],
        puts: Sequence[Put],
        *,
        lease: bool = False,
        check: Callable[[], None] | None = None,
    ) -> int:
        """Make a change, all or nothing, no key twice; the revision. It is not given up half-way when cancelled.

        With `lease` the keys go when this process does. `check` is called as late as the store can take the change
        back: what it raises is raised, and nothing has changed. Raises Conflict, MetadataUnavailable, BatchTooLarge.
        """

    def change_now(self, puts: Sequence[Put]) -> bool:
        """The same without waiting, for what nobody waits for; False: the store cannot, use `change`.

        Raises MetadataUnavailable; then nothing has changed.
        """

    async def caught_up(self, revision: int) -> None:
        """Wait until a revision is applied here. Raises MetadataUnavailable."""

    async def barrier(self) -> None:
        """Wait until all that was changed by anybody before this call is applied here. Raises MetadataUnavailable."""


class LeasedStore(MetadataStore, Protocol):
    """A store that several processes share; each of them has one lease."""

    lease_lost: list[Callable[[], None]]
    """Called when the lease is gone, and with it all that was put under it."""
    refusal: str
    """Why the last change, or lease, was refused, whatever it was; empty when the last one was taken."""

    @property
    def lease_id(self) -> int:
        """0 while there is none."""

    @property
    def lease_deadline(self) -> float:
        """Until when, on trio's clock, the lease is certainly there."""

    async def begin_lease(self) -> None:
        """Get a lease, unless there is one. Raises MetadataUnavailable."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease, one's own or another's; one that is not there is no error. Raises MetadataUnavailable."""
