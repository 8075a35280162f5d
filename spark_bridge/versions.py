"""Which PySpark `format("millrace")` needs."""

from __future__ import annotations

import pyspark

PYSPARK_MIN = (4, 3)
"""Before 4.0 there are no data sources in Python, before 4.3 none that limit what a micro-batch of a stream reads."""


def complaint(version: str = pyspark.__version__) -> str | None:
    """What to say of a PySpark that is too old, None of one that is not."""
    if tuple(map(int, version.split(".")[:2])) >= PYSPARK_MIN:
        return None
    return (
        f'format("millrace") needs PySpark {".".join(map(str, PYSPARK_MIN))} or newer, and this is {version}: '
        'update it, or read through the Kafka door with Spark\'s own connector, format("kafka")'
    )
