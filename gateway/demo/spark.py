"""The Spark part: stream the whole topic with `format("millrace")` and compute mean delays by carrier and month.

Spark's own output goes to a file, since it would tear the progress bars; the file is shown when the part fails.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from typing import Any

from gateway.demo.crew import Report
from gateway.demo.flights import Means

FLIGHT_SCHEMA = "carrier string, month int, dep_delay int, arr_delay int"


def missing() -> str | None:
    """What Spark needs and is not here, as the end of a sentence; None when it can run."""
    absent = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    from spark_bridge.java import JavaNotFound, ensure_java

    try:
        ensure_java()
    except JavaNotFound as error:
        return str(error)
    return None


def compute(report: Report, server: str, topic: str, directory: str) -> None:
    """The part of the job. Reports one dict of `Means` by (carrier, month); writes only into `directory`."""
    output = os.open(os.path.join(directory, "spark.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("ignore", FutureWarning)
    session = _session(directory)
    try:
        report(_means(session, server, topic))
    finally:
        session.stop()


def _session(directory: str) -> Any:
    from spark_bridge.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # What is compiled runs for seconds: better soon than well.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": os.path.join(directory, "warehouse"),
        "spark.local.dir": os.path.join(directory, "spark"),
    }
    builder = SparkSession.builder.appName("millrace demo").master("local[2,4]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _means(session: Any, server: str, topic: str) -> dict[tuple[str, int], Means]:
    from pyspark.sql import functions as f

    records = session.readStream.format("millrace").option("millrace.servers", server).option("subscribe", topic)
    records = records.option("startingOffsets", "earliest").load()
    flight = f.from_json(f.col("value").cast("string"), FLIGHT_SCHEMA)
    table = (
        records.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier", "month")
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("dep"), f.avg("arr_delay").alias("arr"))
    )
    query = table.writeStream.format("memory").queryName("means").outputMode("complete").trigger(availableNow=True)
    query.start().awaitTermination()
    rows = session.table("means").collect()
    return {(row.carrier, row.month): Means(row.flights, row.dep, row.arr) for row in rows}
