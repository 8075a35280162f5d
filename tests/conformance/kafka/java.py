"""Java programs out of Kafka's own jars, which Maven has or fetches."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.__main__ import Missing, require

VERSION = "4.3.1"
OLDER_VERSION = "3.9.1"
"""The last whose clients also speak to brokers of before 2.1; Maven has no Kafka Streams examples of it."""
LOG4J_VERSION = "2.25.4"
KAFKA_JARS = ("kafka_2.13", "kafka-tools")
STREAMS_JARS = ("kafka-streams-examples",)
CONNECT_JARS = ("connect-runtime", "connect-file", "connect-json", "connect-mirror")
LOG4J_JARS = ("log4j-slf4j-impl", "log4j-1.2-api")
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>millrace</groupId><artifactId>conformance</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
LOGGING = """status = error
rootLogger.level = ERROR
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""
OPTIONS = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""Programs that live for seconds: what starts quickest."""


class Java:
    """Starts classes; `directory` is where all that belongs to it lies."""

    def __init__(self, directory: Path, version: str, more: Sequence[str] = ()) -> None:
        """With `more` jars of Kafka's. Raises Missing without Java, Maven or a way to the jars."""
        require("java", "mvn")
        self.directory, self.version = directory, version
        jars = [
            *(("org.apache.kafka", name, version) for name in (*KAFKA_JARS, *more)),
            *(("org.apache.kafka", name, version) for name in STREAMS_JARS if version == VERSION),
            *(("org.apache.logging.log4j", name, LOG4J_VERSION) for name in LOG4J_JARS),
        ]
        (directory / "pom.xml").write_text(POM.format("".join(DEPENDENCY.format(*jar) for jar in jars)))
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={directory}/jars", "-DincludeScope=runtime")
        done = subprocess.run(
            ["mvn", "-B", "-q", *goal], cwd=directory, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise Missing(f"Maven has no jars of Kafka {version}: {done.stdout.strip()[:500]}")
        (directory / "log4j2.properties").write_text(LOGGING)

    def command(self, name: str, *arguments: str) -> list[str]:
        """How a class is started."""
        logging = f"-Dlog4j2.configurationFile={self.directory}/log4j2.properties"
        return [str(shutil.which("java")), *OPTIONS, logging, "-cp", f"{self.directory}/jars/*", name, *arguments]

    def run(self, name: str, *arguments: str, said: str = "", timeout_s: float = 120) -> str:
        """What it printed, errors behind it. Raises AssertionError if it fails."""
        done = subprocess.run(
            self.command(name, *arguments), input=said, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        shown = f"{name} {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, shown
        return done.stdout + done.stderr

    @contextmanager
    def started(self, name: str, *arguments: str) -> Iterator[Path]:
        """A class that runs until it is told to stop; the file with what it prints."""
        number = len(list(self.directory.glob("*.out")))
        said = self.directory / f"{number}.out"
        with said.open("wb") as out:
            process = subprocess.Popen(self.command(name, *arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            yield said
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
