"""Spark's executors in processes of their own: `local-cluster`, by `spark-submit`, with the package as a wheel.

The interpreter that Spark runs has what the package needs and not the package itself: that comes as the wheel, to the
driver on its path and to the executors by `--py-files`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from millrace import BlockingClient, BlockingProducer
from spark_bridge.java import supplied_java_home
from tests.spark_bridge.conftest import CHECKOUT
from tests.spark_bridge.test_sink import numbers
from tests.support import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # starts three Javas

TIMEOUT_S = 300


def wheel(directory: Path) -> Path:
    """The package as `pip` builds it."""
    parts = ("pyproject.toml", "README.md", "LICENSE")
    source = directory / "source"
    source.mkdir()
    for name in parts:
        shutil.copy(CHECKOUT / name, source)
    for package in CHECKOUT.glob("*/__init__.py"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package.parent, source / package.parent.name, ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory, source]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = directory.glob("*.whl")
    return found


def interpreter(directory: Path) -> Path:
    """One that has the third-party packages of this one alone."""
    venv.create(directory)
    there = sysconfig.get_path("purelib", vars={"base": str(directory)})
    # What is on the path by such a file is no place where installations in place are looked for.
    others = [path for path in sys.path if path.endswith("site-packages")]
    Path(there, "others.pth").write_text("\n".join(others) + "\n")
    return directory / "bin" / "python"


def spark_home(directory: Path) -> Path:
    """The distribution that came with PySpark, where executors may write."""
    import pyspark

    directory.mkdir()
    for name in ("bin", "jars"):
        (directory / name).symlink_to(Path(pyspark.__file__).with_name(name))
    return directory


def test_a_job_runs_on_executors_of_their_own(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        for topic in ("deployed", "deployed-table", "deployed-stream"):
            client.create_topic(topic, partitions=3)
    with BlockingProducer(server) as producer:
        for number in range(3000):
            producer.send("deployed", b"%d" % number, b"k%d" % (number % 7))
    package, python, home = wheel(tmp_path), interpreter(tmp_path / "python"), spark_home(tmp_path / "spark")
    asked = [python, "-c", "import pyspark; import spark_bridge"]
    known = subprocess.run(asked, cwd=tmp_path, capture_output=True, check=False)
    assert b"No module named 'spark_bridge'" in known.stderr
    environment = dict(os.environ, SPARK_HOME=str(home), PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python))
    environment |= {"PYTHONPATH": str(package), "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(supplied_java_home())}
    settings = {
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false", "spark.log.level": "ERROR",
        "spark.local.dir": str(tmp_path / "local"), "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.executorEnv.PYTHONPATH": "", "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,512]", "--py-files", str(package)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    job = Path(__file__).with_name("cluster_job.py")
    done = subprocess.run(
        [*command, str(job), server, str(tmp_path / "checkpoint")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"counted": [3000, sum(range(3000))], "executors": 2, "master": "local-cluster[2,1,512]"}
    assert numbers(server, "deployed-table") == list(range(3000))
    assert numbers(server, "deployed-stream") == list(range(3000))
