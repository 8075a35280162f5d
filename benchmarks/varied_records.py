"""What it costs to read records that differ in everything: `python -m benchmarks.varied_records`.

Microseconds of CPU a record, the best of many rounds: as fields (`decode_fields`), as columns (`decode_columns`: with
decoded headers and times), as runs (`decode_runs`), the keys that compaction looks at (`read_keys`), and as the slabs
that AMQP and MQTT consumers get (`StreamReader`); slabs with the property list that AMQP sends, and with the property
block of MQTT 5 (before 5 it sends none). In the last line are messages of a home partition, with keys and properties of
AMQP that differ, as a queue reads them back from disk (`SlabReader`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from core_log.batch_header import parse_header
from core_log.compaction.records import payload, read_keys
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.record_batch import BatchBuilder, Compression, decode_columns, decode_runs
from core_log.record_fields import decode_fields
from protocols.amqp.adapter_properties import PROTOCOL
from protocols.amqp.adapter_streams import stream_raws
from protocols.amqp.properties import BasicProperties, encode_properties
from protocols.mqtt.adapter_properties import blocks_of
from routing.message import Properties, Slab
from routing.queues.homes.home_records import RecordWriter, SlabReader
from routing.topics.stream_records import StreamReader

_TIME_MS = 1_700_000_000_000
_FRAME_BYTES = 131_072


def best_us(work: Callable[[], object], records: int) -> float:
    """The best of a few rounds, in microseconds of CPU a record."""
    best = float("inf")
    for _ in range(max(5, min(100, 100_000 // records))):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best * 1e6 / records


def batch_of(
    count: int, low: int, high: int, *, keys: bool = True, headers: int = 0, gaps: bool = False, zstd: bool = False
) -> bytes:
    """Records of so many random bytes, each with a time of its own and so many headers (-2: none, one or two); with
    `gaps` every third has gone.
    """
    dice = random.Random(1)
    builder = BatchBuilder(0, 0, _TIME_MS, compression=Compression.ZSTD if zstd else Compression.NONE)
    for number in range(count):
        key = b"ab-%d" % dice.randrange(10**6) if keys else None
        some = range(headers if headers >= 0 else dice.randrange(1 - headers))
        pairs = [(f"h{(number + at) % 7}", b"v%d" % dice.randrange(10**6)) for at in some]
        offset = number * 3 // 2 if gaps else number
        builder.add(offset, key, dice.randbytes(dice.randrange(low, high)), pairs, _TIME_MS + offset)
    return builder.build()


def home_batch(count: int) -> bytes:
    """Messages of a home partition as AMQP publishes them."""
    dice = random.Random(1)
    raws = []
    for number in range(count):
        headers = {f"h{number % 7}": f"v{dice.randrange(10**6)}"}
        identifier = f"id-{dice.randrange(10**6)}"
        raws.append(encode_properties(BasicProperties(delivery_mode=2, message_id=identifier, headers=headers)))
    keys = [f"ab-{dice.randrange(10**6)}" for _ in range(count)]
    bodies = [dice.randbytes(dice.randrange(100, 300)) for _ in range(count)]
    common = Properties(PROTOCOL, b"", persistent=True)
    run = RecordWriter(7).run(1, Slab("events", keys[0], common, bodies, keys=keys, raws=raws))
    builder = BatchBuilder(0, 0, _TIME_MS)
    builder.add(0, None, b"directory")
    run.add_to(builder)
    return builder.build()


def _keys(batch: bytes) -> None:
    header = parse_header(batch)
    read_keys(*payload(batch, header, DECOMPRESSED_BYTES_MAX), header)


def main() -> None:
    """See the module."""
    cases = {
        "1,000 of 100 to 300 bytes": batch_of(1000, 100, 300),
        "without keys": batch_of(1000, 100, 300, keys=False),
        "with a header each": batch_of(1000, 100, 300, headers=1),
        "with two headers each": batch_of(1000, 100, 300, headers=2),
        "with none, one or two": batch_of(1000, 100, 300, headers=-2),
        "every third gone": batch_of(1000, 100, 300, gaps=True),
        "8,000 of 90 to 110 bytes": batch_of(8000, 90, 110),
        "8,000 of 100 bytes": batch_of(8000, 100, 101),
        "1,000, zstd": batch_of(1000, 100, 300, zstd=True),
        "a header each, zstd": batch_of(1000, 100, 300, headers=1, zstd=True),
        "10": batch_of(10, 90, 110),
        "1": batch_of(1, 90, 110),
    }
    reader, queue = StreamReader(), SlabReader()
    for name, batch in cases.items():
        reads: dict[str, Callable[[bytes], object]] = {
            "fields": decode_fields,
            "columns": decode_columns,
            "runs": decode_runs,
            "keys": _keys,
            "slabs": lambda batch: reader.read([batch]),
            "AMQP": lambda batch: [stream_raws(slab, _FRAME_BYTES) for slab in reader.read([batch])[0]],
            "MQTT 5": lambda batch: [blocks_of(slab, 0, len(slab)) for slab in reader.read([batch])[0]],
        }
        count = parse_header(batch).record_count
        figures = (f"  {what} {best_us(lambda: read(batch), count):5.2f}" for what, read in reads.items())  # noqa: B023
        print(f"{name:26}" + "".join(figures))
    home = home_batch(1000)
    print(f"{'queue, 1,000 from disk':26}  slabs {best_us(lambda: queue.read(home), 1000):5.2f}")


if __name__ == "__main__":
    main()
