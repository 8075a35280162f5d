"""What it costs to find the records with a key: `find_records` over a topic that has none, and over one that has few.

    python -m benchmarks.native_find [--directory DIR] [--mib N]

1. The topic has batches of 100 records of about 1000 bytes of JSON with different keys of 16 bytes, uncompressed or
   zstd; the log is `--mib` of records before compression.
2. Each figure is the better of two searches for a key that nobody has, and for one of every 50th batch, by
   `BlockingClient` at a broker on this machine, with the log in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from core_log.compression import Compression
from core_log.record_batch import BatchBuilder, encode_headers
from millrace import BlockingClient
from tests.support import broker_process

RECORDS, VALUE_BYTES = 100, 1000
BATCHES, WANTED_EVERY = 200, 50
WANTED = b"0123456789abcdef"


def make_batch(compression: Compression, *, wanted: bool) -> bytes:
    """A batch of records with different keys, of which the first may be the one that is looked for."""
    builder = BatchBuilder(0, -1, 1_700_000_000_000, compression=compression)
    for number in range(RECORDS):
        key = WANTED if wanted and not number else os.urandom(8).hex().encode()
        value = {"id": os.urandom(8).hex(), "name": "a value like others " * 20, "noise": os.urandom(250).hex()}
        builder.add_run(number, key, [json.dumps(value).encode()[:VALUE_BYTES]], encode_headers([]))
    return builder.build()


def measure(client: BlockingClient, name: str, compression: Compression, mib: int) -> None:
    """Fill a topic, and search it."""
    batches = [make_batch(compression, wanted=not number % WANTED_EVERY) for number in range(BATCHES)]
    client.create_topic(name, config={"retention.ms": "-1"})
    count = mib * (1 << 20) // (RECORDS * VALUE_BYTES)
    for start in range(0, count, 50):
        client.produce_batches([(name, 0, batches[at % BATCHES]) for at in range(start, min(start + 50, count))])
    size = client.describe_topic(name).partitions[0].size_bytes / (1 << 30)
    for what, key in (("no record", b"fedcba9876543210"), ("some records", WANTED)):
        took = []
        for _ in range(2):
            began = time.perf_counter()
            found = client.find_records(name, key, limit=1_000_000)
            took.append(time.perf_counter() - began)
        print(
            f"{name:8} {what:12} {len(found):6} found in {size:5.2f} GiB on disk: {min(took):6.2f} s, "
            f"{min(took) / size:6.2f} s/GiB, {min(took) / (mib / 1024):6.2f} s/GiB of records",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=None, help="where the broker keeps its data")
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        broker_process(Path(directory) / "data", doors=["native"]) as broker,
        BlockingClient(f"127.0.0.1:{broker.native_port}") as client,
    ):
        measure(client, "plain", Compression.NONE, options.mib)
        measure(client, "zstd", Compression.ZSTD, options.mib)


if __name__ == "__main__":
    main()
