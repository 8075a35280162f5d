"""What commands find in a data directory whose broker is stopped, or in a copy of one: nothing is changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from core_log.read_only import ReadOnlyFiles
    from protocols.native.clients.records import ConsumerRecord
    from routing.stored_topics import StoredPartition, StoredTopic

_CONNECTING = ("server", "user", "password", "tls", "tls_ca", "tls_cert", "tls_key")

data_option = click.option(
    "--data",
    "data_dir",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Without a broker: from the data directory of one that is stopped, or a copy; nothing is changed.",
)


def require_offline(**others: object) -> None:
    """No option was given that says how to reach a broker, nor one of `others`, which want one. Raises UsageError."""
    context = click.get_current_context()
    default = (click.core.ParameterSource.DEFAULT, None)
    given = [name for name in _CONNECTING if context.get_parameter_source(name) not in default]
    given += [name for name, value in others.items() if value is not None]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"--data reads a directory, without a broker: {options} is for who asks one")


@contextmanager
def stopped_data_dir(directory: str) -> Iterator[ReadOnlyFiles]:
    """The files of a data directory on which no broker begins meanwhile. What is wrong with it is a line on standard
    error and exit code 1.
    """
    from core_log.errors import LogError
    from core_log.read_only import ReadOnlyFiles
    from gateway.errors import StartError
    from gateway.lock import unlocked_data_dir

    files = ReadOnlyFiles(directory)
    try:
        with unlocked_data_dir(directory):
            if not files.list("catalog"):
                raise StartError(f"{directory} is no data directory: there is no catalog in it")
            yield files
    except BrokenPipeError:
        raise  # of who reads what is printed
    except (StartError, LogError, OSError, ValueError) as error:
        click.echo(f"millrace: {error}", err=True)
        sys.exit(1)


def print_stored(
    directory: str,
    topics: Sequence[str],
    *,
    partition: int | None,
    offset: int | None,
    most: int | None,
    show: Callable[[ConsumerRecord], bytes],
) -> None:
    """Print the records of topics: those of a partition after those of the one before, at most so many. `offset` is
    where each begins; None: at its first record, below 0: so many before its end.
    """
    from routing.stored_topics import StoredPartition, stored_topics

    out = sys.stdout.buffer
    with stopped_data_dir(directory) as files:
        known = stored_topics(files)
        chosen = [(known[name], index) for name in topics for index in _chosen(known, name, partition)]
        for topic, index in chosen:
            stored = StoredPartition(files, topic, index, wall_clock_ms=lambda: time.time_ns() // 1_000_000)
            if stored.hidden:
                told = f"{stored.hidden} offsets from {stored.end_offset} on are not shown, a transaction is open there"
                click.echo(f"millrace: topic '{topic.name}' partition {index}: {told}", err=True)
            for records in _records(stored, topic.name, index, offset):
                records = records if most is None else records[:most]
                out.writelines(map(show, records))
                most = None if most is None else most - len(records)
                if most == 0:
                    break
            stored.close()
            if most == 0:
                break
        out.flush()


def _chosen(known: dict[str, StoredTopic], name: str, partition: int | None) -> Sequence[int]:
    """Which of a topic's partitions are read. Raises ValueError."""
    if name not in known:
        raise ValueError(f"there is no topic '{name}' in the directory")
    here = known[name].directories
    if partition is None:
        return list(here)
    if partition not in here:
        raise ValueError(f"partition {partition} of topic '{name}' is not in the directory")
    return [partition]


def _records(stored: StoredPartition, topic: str, index: int, offset: int | None) -> Iterator[list[ConsumerRecord]]:
    from protocols.native.clients.records import batch_records

    start = offset if offset is not None else 0
    if start < 0:
        start = stored.end_offset + start
    start = max(start, stored.log_start_offset)
    for batches in stored.batches(start):
        for batch in batches:
            yield batch_records(topic, index, batch, start)
