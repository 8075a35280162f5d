"""Operations on topics: how they are configured, and what is deleted from their beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_log.errors import OffsetOutOfRange
from routing.access.grants import Access
from routing.administration.operations import LOOKS, operation, table
from routing.errors import AccessRefused, InvalidArgument, NotFound
from routing.topics.deletion import EVERYTHING
from routing.topics.deletion import delete_records as deleted
from routing.topics.leases import lease_clock_ms
from routing.topics.topic_config import require_known

if TYPE_CHECKING:
    from routing.broker import Broker

SETTINGS = ("name", "value", "source", "type", "documentation")
READERS = ("topic", "partition", "reader", "offset", "lag", "ends_in_ms", "ends_soon")
_TIMEOUT_MS_MAX = 30_000
_PARTITION_DIGITS_MAX = 9
"""More is no partition's number, and thousands are none that Python takes."""


@operation("topics.settings", tags=None)
async def list_settings(broker: Broker, user: str, name: str, start: int = 0, *, topics_vhost: str) -> dict[str, Any]:
    """All settings of a topic, and who has said so: the topic, the broker's configuration, or nobody."""
    _require(broker, user, topics_vhost, name, ("configure", "read", "write"))
    described = broker.topic_control.described(broker.topology.topic(name))
    rows = ((one.name, one.value, one.source, one.kind, one.documentation) for one in described)
    return table(SETTINGS, rows, start)


@operation("topics.alter", tags=None)
async def alter(
    broker: Broker,
    user: str,
    name: str,
    config: dict[str, str] = {},  # noqa: B006
    unset: list[str] = [],  # noqa: B006
    dry_run: bool = False,
    *,
    topics_vhost: str,
) -> None:
    """Configure a topic otherwise: these settings, and those of `unset` as if nobody had said anything."""

    _require(broker, user, topics_vhost, name, ("configure",))

    def change(before: dict[str, str]) -> dict[str, str]:
        for one in unset:
            require_known(one, before)
        return {one: value for one, value in before.items() if one not in unset} | config

    if dry_run:
        broker.topic_control.check_altered(name, change)
    else:
        await broker.topic_control.alter_topic(name, change)


@operation("topics.delete_records", tags=None)
async def delete_records(
    broker: Broker,
    user: str,
    name: str,
    partition: int,
    before: int = EVERYTHING,
    timeout_ms: int = 10_000,
    *,
    topics_vhost: str,
) -> int:
    """Delete what lies before an offset of a partition that this broker leads, or everything; where it begins then."""
    _require(broker, user, topics_vhost, name, ("configure",))
    partitions = broker.topology.topic(name).partitions
    if not 0 <= partition < len(partitions):
        raise NotFound(f"topic '{name}' has no partition {partition}, but {len(partitions)}")
    try:
        return await deleted(partitions[partition], before, timeout_ms=min(max(timeout_ms, 0), _TIMEOUT_MS_MAX))
    except OffsetOutOfRange as error:
        raise InvalidArgument(str(error)) from None


@operation("topics.lease", tags=None)
async def lease(
    broker: Broker,
    user: str,
    name: str,
    reader: str,
    offsets: dict[str, int],
    lease_ms: int,
    holder: str = "",
    *,
    topics_vhost: str,
) -> None:
    """Keep what a reader has not read, by partition from an offset on, for so long or the broker's limit; 0: no longer.

    Of partitions that this broker leads. Several holders may have one reader's name.
    """
    _require(broker, user, topics_vhost, name, ("read",))
    partitions = broker.topology.topic(name).partitions
    now_ms = lease_clock_ms()
    until_ms = now_ms + min(max(lease_ms, 0), broker.config.reader_lease_ms_max)
    chosen = {}
    for number, offset in offsets.items():
        is_number = number.isascii() and number.isdigit() and len(number) <= _PARTITION_DIGITS_MAX
        if not is_number or int(number) >= len(partitions):
            raise NotFound(f"topic '{name}' has no partition {number}, but {len(partitions)}")
        leadership = partitions[int(number)].leadership
        refused = None if leadership is None else leadership.refusal()
        if refused is not None:
            raise refused
        chosen[int(number)] = offset
    for index, offset in chosen.items():
        if until_ms > now_ms:
            partitions[index].leases.renew(reader, offset, until_ms, now_ms, holder)
            broker.leased.add(partitions[index])
        else:
            partitions[index].leases.give_back(reader)


@operation("topics.readers", tags=LOOKS)
async def list_readers(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """Readers for whom the partitions that this broker leads keep what they have not read, and for how long they do
    when nothing is heard of them.
    """
    now_ms = lease_clock_ms()
    rows = (
        (one.topic_name, one.index, reader, held.offset, max(one.log.high_watermark - held.offset, 0),
         max(held.until_ms - now_ms, 0), held.warn_ms <= now_ms)
        for one in sorted(broker.leased, key=lambda one: (one.topic_name, one.index))
        for reader, held in sorted(one.leases)
    )  # fmt: skip
    return table(READERS, rows, start)


def _require(broker: Broker, user: str, vhost: str, name: str, accesses: tuple[Access, ...]) -> None:
    """Raises AccessRefused unless the user may do one of these with the topic."""
    grants = broker.rights.grants(user, vhost)
    if not any(grants.allows(access, name) for access in accesses):
        raise AccessRefused(f"access to topic '{name}' refused for user '{user}'")
