"""Kafka's own command line tools, in the order in which they would be used, and the word count of Kafka Streams."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.kafka.checks import BEGAN_MS, PATIENCE_S, until
from tests.conformance.kafka.java import VERSION, Java
from tests.support import broker_process

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOOLS = "org.apache.kafka.tools"
STREAMS = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
COUNT = 20_000
"""Records of each codec."""
DUMP = f"{TOOLS}.DumpLogSegments"
DUMP_FAULTS = re.compile(
    "Mismatches in|mismatch in|out of order|not found in|invalid bytes|^ +[0-9]+ is followed", re.MULTILINE
)
"""That "-1 is followed by" the first offset 4.3 says of each file that does not begin with 0."""
OLDER_PLACES = {
    "ConsoleProducer": "kafka.tools.ConsoleProducer", "AclCommand": "kafka.admin.AclCommand",
    DUMP: "kafka.tools.DumpLogSegments",
}  # fmt: skip
OLDER_WORDS = {"--reader-property": "--property", "--formatter-property": "--property"}
"""How tools and options were called before 4."""


class Tools:
    """The tools against one broker; what they make is called `name-...`."""

    def __init__(self, java: Java, server: str) -> None:
        self.java, self.server = java, server
        self.name = f"java-{java.version.replace('.', '-')}-{BEGAN_MS}"

    def __call__(self, tool: str, *arguments: str, said: str = "") -> str:
        if self.java.version != VERSION:
            return self._older(tool, [OLDER_WORDS.get(word, word) for word in arguments], said)
        return self.java.run(f"{TOOLS}.{tool}", "--bootstrap-server", self.server, *arguments, said=said)

    def _older(self, tool: str, arguments: list[str], said: str) -> str:
        where = ["--bootstrap-server", self.server]
        if tool == "ConsumerPerformance":
            arguments[arguments.index("--num-records")] = "--messages"
        elif tool == "ProducerPerformance":
            properties = arguments.index("--command-property") if "--command-property" in arguments else len(arguments)
            own = ["--producer-props", f"bootstrap.servers={self.server}", *arguments[properties + 1 :]]
            where, arguments = arguments[:properties], own
        return self.java.run(OLDER_PLACES.get(tool, f"{TOOLS}.{tool}"), *where, *arguments, said=said)

    def config(self, *arguments: str) -> str:
        """kafka-configs."""
        return self.java.run("kafka.admin.ConfigCommand", "--bootstrap-server", self.server, *arguments)

    def end(self, topic: str, time: str = "-1") -> dict[int, int]:
        """kafka-get-offsets: the offset of each partition at a time."""
        lines = self("GetOffsetShell", "--topic", topic, "--time", time).splitlines()
        found = (line.rsplit(":", 2) for line in lines if line.startswith(topic))
        return {int(partition): int(offset) for _, partition, offset in found if offset}

    def file(self, name: str, content: Any) -> str:
        """A file of JSON."""
        path = self.java.directory / name
        path.write_text(json.dumps(content))
        return str(path)


def check_topics(tools: Tools) -> None:
    """kafka-topics, kafka-configs, kafka-log-dirs, kafka-leader-election."""
    topic = f"{tools.name}-topics"
    tools("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=12345678")
    tools("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    described = tools("TopicCommand", "--describe", "--topic", topic)
    for told in ("PartitionCount: 3", "retention.ms=12345678"):
        assert told in described, described
    assert topic in tools("TopicCommand", "--list").split()
    one = ("--entity-type", "topics", "--entity-name", topic)
    tools.config("--alter", *one, "--add-config", "max.message.bytes=20000,cleanup.policy=[compact,delete]")
    tools.config("--alter", *one, "--delete-config", "retention.ms")
    found = tools.config("--describe", *one)
    for told in ("max.message.bytes=20000", "cleanup.policy=compact,delete"):
        assert told in found, found
    assert "retention.ms" not in found, found
    assert "segment.bytes=" in tools.config("--describe", "--all", *one)
    assert "num.partitions=" in tools.config("--describe", "--all", "--entity-type", "brokers", "--entity-name", "0")
    for kind in ("groups", "client-metrics") if tools.java.version == VERSION else ("client-metrics",):
        tools.config("--describe", "--entity-type", kind)
    tools("ClientMetricsCommand", "--list")
    assert topic in tools("LogDirsCommand", "--describe", "--topic-list", topic)
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in tools("LeaderElectionCommand", *election)
    tools("TopicCommand", "--delete", "--topic", topic)
    until(lambda: topic not in tools("TopicCommand", "--list").split())


def check_records(tools: Tools) -> None:
    """Producer and consumer of the performance tests and of the console, kafka-get-offsets, kafka-delete-records."""
    topic = f"{tools.name}-records"
    tools("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    for codec in CODECS:
        size = ("--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1")
        properties = ("--command-property", f"compression.type={codec}", "linger.ms=5")
        assert f"{COUNT} records sent" in tools("ProducerPerformance", "--topic", topic, *size, *properties), codec
    total = COUNT * len(CODECS)
    assert tools.end(topic) == {0: total}
    read = tools("ConsumerPerformance", "--topic", topic, "--num-records", str(total), "--timeout", "30000")
    assert f", {total}, " in read, read
    where = {"partitions": [{"topic": topic, "partition": 0, "offset": total}], "version": 1}
    assert f"low_watermark: {total}" in tools("DeleteRecordsCommand", "--offset-json-file", tools.file("d", where))
    assert tools.end(topic, "earliest") == {0: total}
    options = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
    given = [word for option in options for word in ("--reader-property", option)]
    said = "a:1,b:2\tkey\tvalue\nNULL\tNULL\tvalue\nc:3\tkey\tNULL\n"
    tools("ConsoleProducer", "--topic", topic, *given, said=said)
    shown = [
        word
        for what in ("key", "value", "headers", "offset")
        for word in ("--formatter-property", f"print.{what}=true")
    ]
    place = ("--partition", "0", "--offset", str(total), "--max-messages", "3")
    found = tools("consumer.ConsoleConsumer", "--topic", topic, *place, *shown).splitlines()
    assert found[:3] == [
        f"Offset:{total}\ta:1,b:2\tkey\tvalue",
        f"Offset:{total + 1}\tNO_HEADERS\tnull\tvalue",
        f"Offset:{total + 2}\tc:3\tkey\tnull",
    ], found
    assert tools.end(topic, str(BEGAN_MS)) == {0: total}
    assert tools.end(topic, "max-timestamp")[0] >= total


def check_groups(tools: Tools) -> None:
    """kafka-consumer-groups; members of groups of both kinds that come and go."""
    topic = f"{tools.name}-shared"
    tools("TopicCommand", "--create", "--topic", topic, "--partitions", "4")
    tools("VerifiableProducer", "--topic", topic, "--max-messages", "400")
    for protocol in ("classic", "consumer"):
        check_members(tools, topic, f"{tools.name}-{protocol}", protocol)
        check_offsets(tools, f"{tools.name}-{protocol}", topic)


def check_members(tools: Tools, topic: str, group: str, protocol: str) -> None:
    """A member has all partitions, then half of them, then all again."""
    consumer = f"{TOOLS}.VerifiableConsumer"
    names = ["--bootstrap-server", tools.server, "--topic", topic, "--group-id", group, "--group-protocol", protocol]
    with tools.java.started(consumer, *names, "--reset-policy", "earliest") as one:
        until(lambda: (read(one), assigned(one)) == (400, 4), lambda: one.read_text()[-3000:])
        with tools.java.started(consumer, *names) as two:
            until(lambda: assigned(one) == assigned(two) == 2, lambda: one.read_text()[-2000:] + two.read_text())
            described = tools("consumer.group.ConsumerGroupCommand", "--describe", "--members", "--group", group)
            assert len(re.findall(rf"^{group} ", described, re.MULTILINE)) == 2, described
        until(lambda: assigned(one) == 4, lambda: one.read_text()[-3000:])


def check_offsets(tools: Tools, group: str, topic: str) -> None:
    """A group without members is listed, described, put elsewhere and deleted."""

    def command(*arguments: str) -> str:
        return tools("consumer.group.ConsumerGroupCommand", *arguments)

    assert group in command("--list").split()
    until(lambda: "Empty" in command("--describe", "--state", "--group", group))
    lines = [line.split() for line in command("--describe", "--group", group).splitlines() if line.startswith(group)]
    assert sum(int(line[3]) for line in lines) == 400, lines
    reset = ("--reset-offsets", "--execute", "--group", group, "--topic", topic)
    for to, total in (("--to-earliest", 0), ("--to-latest", 400), ("--to-datetime=2020-01-01T00:00:00.000", 0)):
        said = command(*reset, *to.split("="))  # before 4 all in one line
        found = [int(offset) for offset in re.findall(rf"\b{group}\s+{topic}\s+\d+\s+(\d+)", said)]
        assert (len(found), sum(found)) == (4, total), said
    assert "successful" in command("--delete", "--group", group)
    assert group not in command("--list").split()


def events(said: Path) -> list[Any]:
    """What a verifiable consumer tells, a line of JSON each."""
    return [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def read(said: Path) -> int:
    """How many records it read."""
    return sum(event["count"] for event in events(said) if event["name"] == "records_consumed")


def assigned(said: Path) -> int:
    """How many partitions it has."""
    signs = {"partitions_assigned": 1, "partitions_revoked": -1}
    return sum(signs.get(event["name"], 0) * len(event.get("partitions", ())) for event in events(said))


def check_rights(tools: Tools) -> None:
    """kafka-configs for users, kafka-acls."""
    user, topic = f"{tools.name}-user", f"{tools.name}-rights"
    entity = ("--entity-type", "users", "--entity-name", user)
    tools.config("--alter", *entity, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    assert "SCRAM-SHA-256=iterations=" in tools.config("--describe", *entity)
    principal = ("--allow-principal", f"User:{user}", "--operation", "Read", "--topic", topic)
    tools("AclCommand", "--add", *principal)
    mine = ("--list", "--principal", f"User:{user}")
    listed = tools("AclCommand", *mine)
    for told in (f"name={topic}", "operation=READ"):
        assert told in listed, listed
    tools("AclCommand", "--remove", "--force", *principal)
    assert "operation=READ," not in tools("AclCommand", *mine)


def check_transactions(tools: Tools) -> None:
    """Records in transactions, others copied in some of which half are aborted, kafka-transactions."""
    source, copy = f"{tools.name}-source", f"{tools.name}-copy"
    for topic in (source, copy):
        tools("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    size = ("--num-records", "1000", "--throughput", "-1", "--payload-monotonic")
    transactions = ("--transactional-id", tools.name, "--transaction-duration-ms", "20")
    assert "1000 records sent" in tools("ProducerPerformance", "--topic", source, *size, *transactions)
    listed = tools("TransactionsCommand", "list")
    assert re.search(rf"^{tools.name}\s.*CompleteCommit", listed, re.MULTILINE), listed
    if tools.java.version == VERSION:
        listed = tools("TransactionsCommand", "list", "--transactional-id-pattern", f"{tools.name[:-1]}.")
        assert re.search(rf"^{tools.name}\s.*CompleteCommit", listed, re.MULTILINE), listed
        listed = tools("TransactionsCommand", "list", "--transactional-id-pattern", tools.name[:-1])
        assert tools.name not in listed, listed
    described = tools("TransactionsCommand", "describe", "--transactional-id", tools.name)
    assert "CompleteCommit" in described, described
    tools.java.run(
        f"{TOOLS}.TransactionalMessageCopier", "--broker-list", tools.server, "--input-topic", source,
        "--input-partition", "0", "--output-topic", copy, "--consumer-group", f"{tools.name}-copier",
        "--transactional-id", f"{tools.name}-copier", "--transaction-size", "50", "--max-messages", "1000",
        "--enable-random-aborts", "--use-group-metadata",
    )  # fmt: skip
    found = tools(
        "consumer.ConsoleConsumer", "--topic", copy, "--from-beginning", "--isolation-level", "read_committed",
        "--max-messages", "1000", "--timeout-ms", "20000",
    ).split("\n")  # fmt: skip
    numbers = [int(line) for line in found if line.isdigit()]
    assert sorted(set(numbers)) == list(range(1000)), len(numbers)
    assert len(numbers) == 1000


def check_streams(tools: Tools) -> None:
    """The word count of Kafka Streams, with its changelog and repartition topics; it goes on after a stop."""
    source, target = "streams-plaintext-input", "streams-wordcount-output"
    for topic in (source, target):
        tools("TopicCommand", "--create", "--if-not-exists", "--topic", topic, "--partitions", "1")
    application = f"{tools.name}-words"
    settings = tools.java.directory / "streams.properties"
    settings.write_text(
        f"bootstrap.servers={tools.server}\napplication.id={application}\nstate.dir={tools.java.directory}/state\n"
        "commit.interval.ms=200\nprocessing.guarantee=exactly_once_v2\n"
    )
    word = f"w{BEGAN_MS}"
    deserializer = "org.apache.kafka.common.serialization.LongDeserializer"
    options = ["--topic", target, "--from-beginning", "--isolation-level", "read_committed"]
    options += ["--formatter-property", "print.key=true", "--formatter-property", "print.value=true"]
    options += ["--formatter-property", f"value.deserializer={deserializer}"]
    with tools.java.started(f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", tools.server, *options) as said:

        def counted(text: str) -> bool:
            return text in said.read_text().splitlines()

        for lines, total in ((["{0} a {0}", "b {0}"], 3), (["{0}"], 4)):
            with tools.java.started(STREAMS, str(settings)) as log:
                tools("ConsoleProducer", "--topic", source, said="".join(f"{one.format(word)}\n" for one in lines))
                until(
                    lambda: counted(f"{word}\t{total}"), lambda: said.read_text()[-2000:] + log.read_text()[-4000:],  # noqa: B023
                    2 * PATIENCE_S,
                )  # fmt: skip
    topics = [one for one in tools("TopicCommand", "--list").split() if one.startswith(application)]
    assert sorted(one.rsplit("-", 1)[1] for one in topics) == ["changelog", "repartition"], topics
    described = tools("TopicCommand", "--describe", "--topic", next(one for one in topics if one.endswith("changelog")))
    assert "cleanup.policy=compact" in described, described


def check_dump(tools: Tools) -> None:
    """kafka-dump-log, of what a broker of its own has written: batches, and each entry of their indexes."""
    data = tools.java.directory / "data"
    with broker_process(data, doors=("kafka",)) as broker:
        own = Tools(tools.java, f"127.0.0.1:{broker.ports['kafka']}")
        topic = f"{own.name}-dumped"
        segments = ("--config", "segment.bytes=1048576", "--config", "index.interval.bytes=20000")
        own("TopicCommand", "--create", "--topic", topic, "--partitions", "1", *segments)
        size = ("--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1")
        for codec in CODECS:
            properties = ("--command-property", f"compression.type={codec}", "linger.ms=5")
            own("ProducerPerformance", "--topic", topic, *size, *properties)
        transactions = ("--transactional-id", own.name, "--transaction-duration-ms", "20")
        own("ProducerPerformance", "--topic", topic, *size, *transactions)
        broker.terminate()
    found = sorted((data / "topics" / f"{topic}-0").glob("0*"))
    logs = [file for file in found if file.suffix == ".log"]
    indexes = [file for file in found if file.suffix in (".index", ".timeindex")]
    assert len(logs) > 3, found
    if all(file.stem != logs[-1].stem for file in indexes):
        logs.pop()  # so short that nothing of it is in an index yet
    assert len(indexes) == 2 * len(logs), found
    said = dumped(tools, logs, "--deep-iteration")
    assert said.count("lastOffset: ") > 100, said[-2000:]
    said = dumped(tools, indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes), said
    assert dumped(tools, indexes).count("position: ") > 100
    dumped(tools, indexes, "--verify-index-only")


def dumped(tools: Tools, files: list[Path], *options: str) -> str:
    """What it says of files. Raises AssertionError if it finds a fault."""
    name = DUMP if tools.java.version == VERSION else OLDER_PLACES[DUMP]
    said = tools.java.run(name, "--files", ",".join(map(str, files)), *options)
    assert not DUMP_FAULTS.search(said), said[-3000:]
    return said


CHECKS: tuple[Callable[[Tools], None], ...] = (
    check_topics, check_records, check_groups, check_rights, check_transactions, check_dump,
)  # fmt: skip


def run(directory: Path, server: str, version: str) -> str:
    """What was done with the programs of a version. Raises AssertionError, or Missing."""
    tools = Tools(Java(directory, version), server)
    done = []
    for one in (*CHECKS, check_streams) if version == VERSION else CHECKS:
        what = one.__name__.removeprefix("check_")
        try:
            one(tools)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        done.append(what)
    return f"{', '.join(done)}; codecs {' '.join(CODECS)}"
