"""What `test_deployment.py` submits: reads and writes topics, as tables and as streams."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(server: str, checkpoint: str) -> None:
    """Prints what it found."""
    spark = SparkSession.builder.getOrCreate()
    where = {"millrace.servers": server}
    table = spark.read.format("millrace").options(**where, subscribe="deployed").load()
    counted = list(table.selectExpr("count(*)", "sum(int(string(value)))").first() or ())
    table.select("key", "value").write.format("millrace").options(**where, topic="deployed-table").mode("append").save()
    rows = spark.readStream.format("millrace").options(**where, subscribe="deployed", startingOffsets="earliest").load()
    written = rows.select("key", "value").writeStream.format("millrace").options(**where, topic="deployed-stream")
    query = written.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    context = spark.sparkContext
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # type: ignore[union-attr]
    print(json.dumps({"counted": counted, "executors": executors, "master": context.master}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
