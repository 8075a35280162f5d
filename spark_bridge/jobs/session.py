"""The Spark session of a job, and the sentence in what went wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from spark_bridge.java import ensure_java

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_OURS = r"(?:protocols\.native|core_log)\.errors\.\w+"
_SENTENCE = re.compile(rf"^(?:{_OURS}|[\w.]*\b(?:DataLoss|\w+Error)): (.+)$", re.M)
_OF_JAVA = re.compile(r"^: [\w.$]+: (.+)$", re.M)


class JobError(RuntimeError):
    """A job cannot be done as it was asked for; the text says why."""


def session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> Any:
    """The session that is there (as under `spark-submit`), else a new one on `master`. Raises `JavaNotFound`,
    and JobError if Spark does not start.
    """
    ensure_java()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    chosen = dict(_SETTINGS)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _LOCAL
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:  # what Java wrote about it has been seen
        where = f"with master {master}" if master is not None else "as it is set up"
        raise JobError(f"Spark does not start {where}: {sentence_of(error)}") from None


def sentence_of(error: BaseException) -> str:
    """What a user can act on, out of Spark's report of an error in a Python process, or in Java."""
    found = _SENTENCE.findall(str(error)) or _OF_JAVA.findall(str(error))
    return str(found[-1]) if found else str(error).partition("\n")[0]
