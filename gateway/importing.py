"""The data directory of a single broker is made the first member's of a cluster, before that one starts as any other.

What the engine would do at a start, and at a stop, is done by the engine: it is started alone and stopped again, with
no door open, so that nothing of an earlier crash is left over (`routing/cluster/metadata/importing.py` has the rest).
"""

from __future__ import annotations

import logging

from core_log.errors import LogError
from core_log.files import OsFiles
from core_log.metadata.store import MetadataStore
from gateway.config import Config
from gateway.errors import StartError, first_error
from routing.broker import open_broker
from routing.cluster.metadata.importing import Import
from routing.errors import BrokerError

logger = logging.getLogger(__name__)


async def import_directory(config: Config, store: MetadataStore) -> None:
    """Import the data directory unless that has been done. Raises StartError, ClusterRefused, MetadataUnavailable."""
    cluster = config.cluster

    async def settle() -> None:
        await _settle(config)

    steps = Import(
        store, OsFiles(config.data_dir), cluster=cluster.name, broker_id=cluster.broker_id, settle=settle
    ).steps()
    try:
        async for step in steps:
            logger.info("import into cluster '%s': %s", cluster.name, step)
    except (LogError, OSError, BrokerError) as error:
        raise StartError(f"data directory {config.data_dir}: {error}") from None


async def _settle(config: Config) -> None:
    """Start and stop the engine, as a single broker's. Raises StartError."""
    started, refused = False, ""
    try:
        async with open_broker(OsFiles(config.data_dir), config.engine, config.users) as broker:
            started = True
            broker.topology.catalog.ids.note()
            partitions = [partition for topic in broker.topics.values() for partition in topic.partitions]
            logs = [*broker.storage.stores, *(partition.log for partition in partitions)]
            logs += [partition.log for partition in broker.topology.led]
    except* (LogError, OSError, BrokerError) as group:
        if started:
            raise
        refused = f"data directory {config.data_dir}: {first_error(group)}"
    if refused:
        raise StartError(refused)
    for log in logs:
        if log.error is not None:
            raise StartError(f"data directory {config.data_dir}: {log.directory} cannot be written: {log.error}")
