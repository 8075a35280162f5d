"""`millrace consume`: the records of topics on standard output."""

from __future__ import annotations

import base64
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import COUNT, DISTANCE, NUMBER, TIMEOUT_S, Name, Terms, output_bytes, with_terms
from gateway.stored_records import data_option, print_stored, require_offline

if TYPE_CHECKING:
    from protocols.native.clients.consumer import Consumer
    from protocols.native.clients.records import ConsumerRecord

_POLL_MS = 200
_COMMIT_EVERY_MS = 5000
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}
_ESCAPED = re.compile(r"\\[nt0\\]")


def _json_field(name: str, data: bytes | None) -> dict[str, Any]:
    """As text where it is text, else in base64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _name(name: str) -> bytes:
    """A header's, as it is in the log."""
    return name.encode("utf-8", "surrogateescape")


def _as_json(record: ConsumerRecord) -> bytes:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_json_field("key", record.key),
        **_json_field("value", record.value),
        "headers": [
            {**_json_field("name", _name(name)), **_json_field("value", value)} for name, value in record.headers
        ],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class _Format:
    """`%t` topic, `%p` partition, `%o` offset, `%T` time in ms, `%k` key, `%v` value, `%h` headers, `%%`."""

    def __init__(self, text: str) -> None:
        text = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)
        self._pieces: list[bytes | str] = []
        at = 0
        while (found := text.find("%", at)) >= 0:
            letter = text[found + 1 : found + 2]
            if not letter or letter not in "tpoTkvh%":
                raise click.BadParameter(f"%{letter} means nothing", param_hint="--format")
            self._pieces += (text[at:found].encode(), letter)
            at = found + 2
        self._pieces.append(text[at:].encode())

    def __call__(self, record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else self._field(piece, record) for piece in self._pieces)

    @staticmethod
    def _field(letter: str, record: ConsumerRecord) -> bytes:
        if letter == "k":
            return record.key or b""
        if letter == "v":
            return record.value or b""
        if letter == "h":
            return b",".join(_name(name) + b"=" + (value or b"") for name, value in record.headers)
        plain = {"t": record.topic, "p": record.partition, "o": record.offset, "T": record.timestamp_ms, "%": "%"}
        return str(plain[letter]).encode()


@click.command()
@click.argument("topics", type=Name(), nargs=-1, required=True)
@click.option(
    "--group",
    type=Name(),
    help="Be a member of this group, which divides the topics and keeps how far it has come.",
)
@click.option("--from-beginning", is_flag=True, help="Begin at the first record, where the group has not come yet.")
@click.option("--offset", type=DISTANCE, metavar="N", help="Begin at this offset; below 0: so many before the end.")
@click.option("--partition", type=NUMBER, help="Read only this one.")
@click.option("--max-messages", type=COUNT, metavar="N", help="End after so many.")
@click.option("--timeout-ms", type=NUMBER, metavar="MS", help="End when nothing comes for so long.")
@click.option("--format", "form", metavar="TEXT", help="Such as '%t %p %o %T %k %v %h\\n'. Default: the value.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each record, one a line.")
@data_option
@with_terms
def consume(
    terms: Terms,
    topics: tuple[str, ...],
    group: str | None,
    from_beginning: bool,
    offset: int | None,
    partition: int | None,
    max_messages: int | None,
    timeout_ms: int | None,
    form: str | None,
    as_json: bool,
    data_dir: str | None,
) -> None:
    """Print the records of TOPICS as they come, until interrupted.

    With --group, what was printed is committed. With --data all records that are there are printed, or those from
    --offset on, partition by partition.
    """
    if group is not None and (offset is not None or partition is not None):
        raise click.UsageError(
            "a group has its own offsets and partitions: --offset and --partition are for who reads alone"
        )
    if from_beginning and offset is not None:
        raise click.UsageError("either --from-beginning or --offset")
    if as_json and form is not None:
        raise click.UsageError("either --json or --format")
    output_bytes()  # it is there
    show = _as_json if as_json else _Format(form if form is not None else "%v\\n")
    if data_dir is not None:
        require_offline(group=group, timeout_ms=timeout_ms)
        print_stored(data_dir, topics, partition=partition, offset=offset, most=max_messages, show=show)
        return

    import trio

    from protocols.native.clients.consumer import Consumer
    from protocols.native.clients.link import LinkConfig

    async def run() -> None:
        link = LinkConfig(
            client_name="millrace", credentials=terms.credentials, tls=terms.tls, request_timeout_ms=TIMEOUT_S * 1000
        )
        consumer = Consumer(
            terms.server,
            group,
            auto_offset_reset="earliest" if from_beginning else "latest",
            topics=topics if group is not None else (),
            auto_commit_interval_ms=None if group is None else _COMMIT_EVERY_MS,
            link=link,
        )
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            reading = trio.CancelScope()
            nursery.start_soon(_until_told, reading)
            try:
                async with consumer:
                    with reading:
                        if group is None:
                            await _begin(consumer, topics, partition, offset)
                        await _print(consumer, show, max_messages, timeout_ms, group is not None)
            except Exception as error:  # as it is, not in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    trio.run(run)


async def _until_told(scope: Any) -> None:
    """A signal ends the reading, not the committing."""
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _begin(consumer: Consumer, topics: tuple[str, ...], partition: int | None, offset: int | None) -> None:
    await consumer.assign(list(topics) if partition is None else [(topic, partition) for topic in topics])
    if offset is None:
        return
    if offset < 0:
        await consumer.seek_to_end()
        offsets = {key: max(0, consumer.position(*key) + offset) for key in consumer.assignment}
        await consumer.seek_to_beginning()
        offsets = {key: max(start, consumer.position(*key)) for key, start in offsets.items()}
    else:
        offsets = dict.fromkeys(consumer.assignment, offset)
    for key, start in offsets.items():
        await consumer.seek(*key, start)


async def _print(consumer: Consumer, show: Any, most: int | None, timeout_ms: int | None, is_member: bool) -> None:
    import trio

    out = output_bytes()
    left = most
    began_at = last_at = trio.current_time()
    while left is None or left > 0:
        wait_ms = _POLL_MS if timeout_ms is None else min(_POLL_MS, timeout_ms)
        records = await consumer.poll(wait_ms, 500 if left is None else min(500, left))
        for record in records:
            out.write(show(record))
        if records:
            out.flush()
            last_at = trio.current_time()
            left = None if left is None else left - len(records)
        elif is_member and consumer.group_metadata().generation < 0 and trio.current_time() < began_at + TIMEOUT_S:
            last_at = trio.current_time()  # a group that has not begun yet gives nothing
        elif timeout_ms is not None and (trio.current_time() - last_at) * 1000 >= timeout_ms:
            return
