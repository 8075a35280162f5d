"""Batches as transactional producers write them."""

from __future__ import annotations

from crc32c import crc32c

from core_log.batch_header import CRC_START, HEADER, HEADER_BYTES, TRANSACTIONAL_BIT, parse_header


def transactional(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int = 0) -> bytes:
    """The same batch, of a producer's transaction."""
    header = parse_header(batch)._replace(
        attributes=parse_header(batch).attributes | TRANSACTIONAL_BIT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    unchecked = HEADER.pack(*header) + batch[HEADER_BYTES:]
    return HEADER.pack(*header._replace(crc=crc32c(unchecked[CRC_START:]))) + batch[HEADER_BYTES:]
