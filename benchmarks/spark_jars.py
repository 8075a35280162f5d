"""Spark's own Kafka connector, by Maven: `python -m benchmarks.spark_jars`.

1. The newest connector that is to be had; its helper for tokens in a version of its own, since registries have been
   seen that lack it.
2. The jars lie in $SPARK_KAFKA_JARS, or in a directory of the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONNECTORS = ("4.3.0", "4.2.1", "4.2.0")
HELPERS = ("4.3.0", "4.2.1", "4.2.0", "4.0.0")
TIMEOUT_S = 300
# What Spark has itself is left out, and the repository that Spark's POM names is switched off: it need not be there.
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>millrace</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
<repositories><repository><id>gcs-maven-central-mirror</id><url>file:none</url>
<releases><enabled>false</enabled></releases><snapshots><enabled>false</enabled></snapshots></repository></repositories>
<dependencies><dependency><groupId>org.apache.spark</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version><exclusions>{exclusions}</exclusions></dependency></dependencies></project>
"""
_EXCLUDED = "<exclusion><groupId>{}</groupId><artifactId>*</artifactId></exclusion>"
_PROVIDED = ("hadoop-client", "scala-library", "scala-parallel", "slf4j-api", "jsr305", "snappy-java", "spark-tags")


def directory() -> Path:
    """Where the jars are, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("SPARK_KAFKA_JARS", cache / "millrace" / "spark-kafka"))


def jars() -> list[str]:
    """The jars that are there; nothing when they were not fetched."""
    found = sorted(str(path) for path in directory().glob("*.jar"))
    return found if any("spark-sql-kafka" in path for path in found) else []


def fetch() -> list[str]:
    """Get them if they are not there. Raises RuntimeError with what Maven said."""
    if not jars():
        target = directory()
        target.mkdir(parents=True, exist_ok=True)
        _first(target, "spark-sql-kafka-0-10_2.13", CONNECTORS, _EXCLUDED.format("org.apache.spark"))
        _first(target, "spark-token-provider-kafka-0-10_2.13", HELPERS, _EXCLUDED.format("*"))
        for path in target.glob("*.jar"):
            if path.name.startswith(_PROVIDED):
                path.unlink()
    return jars()


def _first(target: Path, artifact: str, versions: tuple[str, ...], exclusions: str) -> None:
    """The first version of it that there is."""
    if shutil.which("mvn") is None:
        raise RuntimeError("Maven (mvn) is not installed")
    said = ""
    for version in versions:
        pom = target / "pom.xml"
        pom.write_text(_POM.format(artifact=artifact, version=version, exclusions=exclusions))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(pom), *goal], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        pom.unlink()
        if done.returncode == 0:
            return
        said = done.stdout[-400:]
    raise RuntimeError(f"{artifact} cannot be had: {said}")


if __name__ == "__main__":
    try:
        print("\n".join(fetch()))
    except RuntimeError as error:
        sys.exit(str(error))
