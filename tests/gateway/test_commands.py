"""The commands of an operator against a running broker: what they print, and that it is so afterwards."""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from gateway.cli import main
from tests.support import BrokerProcess, broker_process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("commands") / "data") as process:
        yield process


class Commands:
    """`millrace ARGUMENTS --server ...`."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.server = f"127.0.0.1:{broker.native_port}"

    def run(self, *arguments: str, text: str = "") -> Result:
        return CliRunner().invoke(main, [*arguments, "--server", self.server], input=text)

    def __call__(self, *arguments: str, text: str = "") -> str:
        done = self.run(*arguments, text=text)
        assert done.exit_code == 0, done.output
        return done.output

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        found = json.loads(self(*arguments, "--json"))
        assert isinstance(found, list)
        return found

    def refused(self, *arguments: str, text: str = "") -> str:
        done = self.run(*arguments, text=text)
        assert done.exit_code == 1, done.output
        assert done.stderr.startswith("millrace: ")
        return done.stderr.removeprefix("millrace: ").rstrip()


@pytest.fixture
def millrace(broker: BrokerProcess) -> Commands:
    return Commands(broker)


def connect(
    broker: BrokerProcess, user: str = "guest", password: str = "guest", vhost: str = "/"
) -> BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials))


def publish(broker: BrokerProcess, queue: str, count: int, **properties: Any) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2, **properties))
        channel.queue_declare(queue, passive=True)


def test_users_and_permissions(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("users", "add", "ada", "--tag", "monitoring", text="secret\n")
    assert millrace("users", "list") == (
        "user   tags           from\n"
        "ada    monitoring     catalog\n"
        "guest  administrator  configuration\n"
    )  # fmt: skip
    assert millrace.refused("users", "add", "ada", text="x\n") == "user 'ada' exists"
    millrace("permissions", "set", "ada", "^a", "", ".*")
    millrace("topic-permissions", "set", "ada", "amq.topic", "^a", "^b")
    ada = {"vhost": "/", "user": "ada"}
    assert millrace.rows("permissions", "list")[0] == {**ada, "configure": "^a", "write": "", "read": ".*"}
    assert millrace.rows("topic-permissions", "list") == [{**ada, "exchange": "amq.topic", "write": "^a", "read": "^b"}]
    connect(broker, "ada", "secret").close()
    millrace("users", "password", "ada", text="other\n")
    connect(broker, "ada", "other").close()
    login = ("--user", "ada", "--password", "other")
    assert millrace.rows("queues", "list", *login) == []
    assert millrace.refused("users", "list", *login).endswith("it needs the tag administrator")
    assert millrace.refused("queues", "list", "--user", "ada", "--password", "x").startswith(
        "user or password are wrong"
    )
    millrace("users", "tags", "ada")
    assert millrace.refused("queues", "list", *login).endswith("it needs the tag administrator or monitoring")
    millrace("topic-permissions", "clear", "ada")
    millrace("permissions", "clear", "ada")
    assert [row["user"] for row in millrace.rows("permissions", "list")] == ["guest"]
    for what in ("permissions", "topic-permissions"):
        assert millrace.refused(what, "list", "--vhost", "v") == "vhost v not found"
    millrace("users", "tags", "ada", "administrator")
    millrace("permissions", "set", "ada", "", "", "")
    millrace("users", "delete", "ada", *login)
    assert [row["user"] for row in millrace.rows("users", "list")] == ["guest"]
    assert millrace.refused("users", "delete", "ada") == "no user 'ada'"


def test_virtual_hosts(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("vhosts", "add", "staging", "--description", "for trying")
    millrace("vhosts", "limits", "staging", "--max-connections", "1")
    row = millrace.rows("vhosts", "list")[1]
    assert (row["name"], row["description"], row["limits"]) == ("staging", "for trying", {"max-connections": 1})
    connection = connect(broker, vhost="staging")
    assert millrace.rows("connections", "list", "--vhost", "staging")[0]["user"] == "guest"
    millrace("vhosts", "delete", "staging")
    with pytest.raises(ConnectionClosedByBroker, match="vhost 'staging' is deleted"):
        connection.process_data_events(10)
    assert millrace.refused("vhosts", "delete", "staging") == "vhost staging not found"


def test_a_full_virtual_host_keeps_no_operator_out(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("vhosts", "limits", "/", "--max-connections", "0")
    with pytest.raises(AMQPConnectionError, match=r"connection limit \(0\) is reached"):
        connect(broker)
    assert millrace.rows("connections", "list")[0]["protocol"] == "native"
    assert "connection limit (0) is reached" in millrace.refused("topics", "create", "t")
    millrace("vhosts", "limits", "/", "--max-connections", "-1")
    connect(broker).close()


def test_exchanges_and_bindings(millrace: Commands) -> None:
    millrace("queues", "add", "bound")
    millrace("exchanges", "add", "events", "--type", "topic")
    millrace("bindings", "add", "events", "bound", "--key", "a.#", "--arguments", '{"x": 1}')
    assert millrace.rows("bindings", "list") == [
        {
            "vhost": "/", "source": "events", "destination": "bound", "destination_kind": "queue",
            "routing_key": "a.#", "arguments": {"x": 1},
        }
    ]  # fmt: skip
    (found,) = (row for row in millrace.rows("exchanges", "list", "--vhost", "/") if row["name"] == "events")
    assert (found["type"], found["durable"], found["bindings"]) == ("topic", True, 1)
    assert millrace.refused("bindings", "delete", "events", "bound", "--key", "b").startswith("no binding 'b'")
    millrace("bindings", "delete", "events", "bound", "--key", "a.#", "--arguments", '{"x": 1}')
    assert millrace.rows("bindings", "list") == []
    millrace("exchanges", "delete", "events")
    assert millrace.refused("exchanges", "delete", "events") == "no exchange 'events' in vhost '/'"
    millrace("queues", "delete", "bound")


def test_queues_are_listed_moved_purged_and_deleted(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "source")
    millrace("queues", "add", "target", "--arguments", '{"x-max-priority": 3}')
    publish(broker, "source", 12_500, content_type="text/plain", priority=2)
    assert millrace("queues", "move", "source", "target", "--limit", "3") == "3 messages moved\n"
    assert millrace("queues", "move", "source", "target") == "12,497 messages moved\n"
    rows = {row["name"]: row for row in millrace.rows("queues", "list")}
    assert (rows["source"]["ready"], rows["target"]["ready"]) == (0, 12_500)
    assert rows["target"]["arguments"] == {"x-max-priority": 3}
    with connect(broker) as connection:
        channel = connection.channel()
        for number in range(5):
            method, properties, body = channel.basic_get("target", auto_ack=True)
            assert (method.routing_key, body, properties.content_type) == ("target", b"%d" % number, "text/plain")
            assert not method.redelivered
    assert millrace("queues", "purge", "target") == "12,495 messages dropped\n"
    assert millrace.refused("queues", "move", "source", "nowhere") == "no queue 'nowhere' in vhost '/'"
    publish(broker, "source", 9)
    assert json.loads(millrace("queues", "move", "source", "target", "--limit", "4", "--json")) == {"moved": 4}
    assert json.loads(millrace("queues", "purge", "target", "--json")) == {"dropped": 4}
    assert json.loads(millrace("queues", "delete", "source", "--json")) == {"deleted": 5}
    assert millrace("queues", "delete", "target") == "0 messages deleted\n"
    assert millrace.refused("queues", "delete", "target") == "no queue 'target' in vhost '/'"


def test_a_queue_is_described(broker: BrokerProcess, millrace: Commands) -> None:
    def described(name: str) -> Any:
        return json.loads(millrace("queues", "describe", name, "--json"))

    millrace("queues", "create", "told", "--arguments", '{"x-max-priority": 5}')
    assert (described("told")["ready"], described("told")["oldest_s"]) == (0, None)
    publish(broker, "told", 1)
    time.sleep(0.2)
    publish(broker, "told", 2, priority=3)
    found = described("told")
    listed = next(row for row in millrace.rows("queues", "list") if row["name"] == "told")
    assert found == {**listed, "oldest_s": found["oldest_s"]}
    assert listed["ready"] == 3
    assert 0.2 <= found["oldest_s"] < 20
    assert "oldest s" in millrace("queues", "describe", "told")
    millrace("queues", "create", "read", "--arguments", '{"x-queue-type": "stream"}')
    assert described("read")["oldest_s"] is None
    assert "no queue 'nowhere'" in millrace.refused("queues", "describe", "nowhere")
    for name in ("told", "read"):
        millrace("queues", "delete", name)


def test_a_message_is_where_it_was_if_its_destination_takes_none(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "here")
    millrace("queues", "add", "full", "--arguments", '{"x-max-length": 2, "x-overflow": "reject-publish"}')
    publish(broker, "here", 10)
    assert "were not taken by the destination" in millrace.refused("queues", "move", "here", "full")
    rows = {row["name"]: row for row in millrace.rows("queues", "list")}
    assert (rows["here"]["unacknowledged"], rows["full"]["ready"]) == (0, 2)
    assert rows["here"]["ready"] in (8, 10), "those that were taken may be in both"
    for queue in ("here", "full"):
        millrace("queues", "delete", queue)


def test_delayed_messages(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "later", "--arguments", '{"x-delayed": true}')
    for delay_ms in (3_600_000, 60_000, 7_200_000):
        publish(broker, "later", 1, headers={"x-delay": delay_ms})
    assert millrace.rows("delayed", "count") == [{"vhost": "/", "queue": "later", "delayed": 3}]
    rows = millrace.rows("delayed", "list", "later")
    assert [row["due_at_ms"] for row in rows] == sorted(row["due_at_ms"] for row in rows)
    assert len(rows) == 3
    assert millrace("delayed", "list", "later", "--limit", "1").splitlines()[0].split() == ["id", "due", "failures"]
    millrace("delayed", "cancel", "later", str(rows[1]["id"]))
    assert [row["id"] for row in millrace.rows("delayed", "list", "later")] == [rows[0]["id"], rows[2]["id"]]
    assert millrace.refused("delayed", "cancel", "later", str(rows[1]["id"])).startswith("no delayed message")
    for delay in ('"60000"', "6e4"):
        millrace("messages", "publish", "x", "--key", "later", "--headers", f'{{"x-delay": {delay}}}')
    assert len(millrace.rows("delayed", "list", "later")) == 4, "whatever way a client may say it"
    millrace("queues", "delete", "later")


def test_a_message_is_published_and_looked_at(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "single")
    terms = ("--properties", '{"content_type": "text/plain", "priority": 2}', "--headers", '{"a": 1}')
    assert millrace("messages", "publish", "hello", "--key", "single", *terms) == "published\n"
    (row,) = millrace.rows("queues", "peek", "single")
    assert (row["body"], row["headers"]) == ({"text": "hello"}, {"a": 1})
    assert "hello" in millrace("queues", "peek", "single")
    with connect(broker) as connection:
        _, properties, body = connection.channel().basic_get("single", auto_ack=True)
    assert (body, properties.content_type, properties.priority) == (b"hello", "text/plain", 2)
    assert (properties.headers, properties.delivery_mode) == ({"a": 1}, 2)
    assert millrace("queues", "peek", "single").split() == ["exchange", "key", "body"]
    given = ("messages", "publish", "--mqtt-topic", "a/b", "--retain")
    assert millrace(*given, text="kept") == "published, but routed to nobody\n"
    assert json.loads(millrace("retained", "get", "a.b", "--json"))["body"] == {"text": "kept"}
    assert millrace.rows("retained", "list", "a/+", "--mqtt")[0]["topic"] == "a/b"
    assert json.loads(millrace("retained", "get", "a/b", "--mqtt", "--json"))["topic"] == "a/b"
    assert millrace("retained", "clear", "a/#", "--mqtt") == "1 retained messages cleared\n"
    millrace(*given)
    assert millrace.refused("retained", "get", "a.b").startswith("nothing is retained")
    millrace("queues", "delete", "single")


def test_who_is_kept_out(millrace: Commands) -> None:
    assert not millrace("bans", "add", "address", "10.0.0.0/24", "--reason", "noise")
    millrace("bans", "add", "client_id", "sensor", "--for", "60")
    first, second = millrace.rows("bans", "list")
    assert (first["kind"], first["value"], first["ends_at_ms"]) == ("address", "10.0.0.0/24", 0)
    assert (first["reason"], first["by"]) == ("noise", "guest")
    assert second["ends_at_ms"] == pytest.approx((time.time() + 60) * 1000, abs=30_000)
    assert "never" in millrace("bans", "list")
    assert millrace.refused("bans", "add", "address", "127.0.0.1/8").startswith("this would ban you")
    assert millrace("bans", "add", "address", "10.2.3.4/16") == "address 10.2.0.0/16 is banned\n"
    millrace("bans", "delete", "address", "10.2.3.4/16")
    assert millrace.run("bans", "add", "user", "x", "--for", "1", "--until", "2099-01-01").exit_code == 2
    millrace("bans", "delete", "address", "10.0.0.0/24")
    millrace("bans", "delete", "client_id", "sensor")
    millrace("bans", "add", "user", "x", "--until", "2099-12-31T00:00:00.500Z")
    assert [one["ends_at_ms"] for one in millrace.rows("bans", "list")] == [4102358400500]
    millrace("bans", "delete", "user", "x")
    assert millrace.refused("bans", "delete", "user", "x") == "user x is not banned"


def test_connections_and_consumers(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "read")
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("read", lambda *_: None, consumer_tag="me")
    (consumer,) = millrace.rows("consumers", "list")
    assert (consumer["queue"], consumer["tag"], consumer["prefetch"], consumer["acknowledges"]) == (
        "read",
        "me",
        7,
        True,
    )
    (row,) = (row for row in millrace.rows("connections", "list") if row["protocol"] == "amqp")
    assert (row["user"], row["channels"], row["peer"]) == ("guest", 1, consumer["peer"])
    assert millrace("connections", "close", row["peer"], "--reason", "enough") == "1 connections closed\n"
    with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - enough"):
        connection.process_data_events(10)
    assert millrace.refused("connections", "close", row["peer"]) == f"no connection of {row['peer']}"
    assert millrace.run("connections", "close").exit_code == 2
    millrace("queues", "delete", "read")


def test_a_list_has_as_many_pages_as_it_needs(broker: BrokerProcess, millrace: Commands) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        for number in range(2001):
            channel.queue_declare(f"many.{number}", auto_delete=True, exclusive=True)
        names = [row["name"] for row in millrace.rows("queues", "list")]
        assert millrace.rows("topics", "list") == []
        assert names == [f"many.{number}" for number in range(2001)]


def test_topics_are_configured_and_emptied(millrace: Commands) -> None:
    millrace("topics", "create", "told", "--partitions", "2", "--config", "segment.ms=5000")
    millrace("topics", "alter", "told", "--config", "retention.ms=1000", "--unset", "segment.ms", "--partitions", "3")
    described = json.loads(millrace("topics", "describe", "told", "--json"))
    assert described["config"] == {"retention.ms": "1000"}
    assert [one["single_copy"] for one in described["partitions"]] == [True] * 3
    assert "proves no more than one): partitions 0, 1, 2\n" in millrace("topics", "describe", "told")
    settings = {row["name"]: row for row in millrace.rows("topics", "describe", "told", "--settings")}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["source"]) == ("1000", "topic")
    assert settings["segment.ms"]["source"] == "default"
    assert "retention.ms" in millrace("topics", "describe", "told", "--settings")
    assert "is not a whole number" in millrace.refused("topics", "alter", "told", "--config", "retention.ms=soon")
    assert "unknown topic config" in millrace.refused("topics", "alter", "told", "--config", "no.such=1")
    assert millrace.run("topics", "alter", "told").exit_code == 2
    for number in range(3):
        millrace("produce", "told", "--partition", "1", text=f"{number}\n")
    assert millrace("topics", "delete-records", "told", "--partition", "1", "--before", "2") == "told 1 begins at 2\n"
    assert "offset 9 is not in [2, 3]" in millrace.refused(
        "topics", "delete-records", "told", "--partition", "1", "--before", "9"
    )
    assert millrace("topics", "delete-records", "told", "--all").splitlines() == [
        "told 0 begins at 0", "told 1 begins at 3", "told 2 begins at 0",
    ]  # fmt: skip
    assert millrace.rows("topics", "delete-records", "told", "--partition", "1", "--before", "3") == [
        {"topic": "told", "partition": 1, "log_start_offset": 3}
    ]
    assert "no topic 'none'" in millrace.refused("topics", "alter", "none", "--config", "retention.ms=1")
    for wrong in (("told",), ("told", "--before", "1"), ("told", "--all", "--before", "1")):
        assert millrace.run("topics", "delete-records", *wrong).exit_code == 2
    millrace("topics", "delete", "told")


def test_names_cannot_move_the_cursor(broker: BrokerProcess, millrace: Commands) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare("a\x1b[2Jb\tc", exclusive=True)
        assert "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c" in millrace("queues", "list")


def test_arguments_may_be_of_any_type(broker: BrokerProcess, millrace: Commands) -> None:
    with socket.create_connection(("127.0.0.1", broker.amqp_port), 10) as sock:
        sock.sendall(b"AMQP\0\0\x09\1")

        def take() -> bytes:
            head = sock.recv(7, socket.MSG_WAITALL)
            return sock.recv(int.from_bytes(head[3:], "big") + 1, socket.MSG_WAITALL)

        def send(channel: int, method: pika.amqp_object.Method) -> None:
            sock.sendall(pika.frame.Method(channel, method).marshal())

        take()
        send(0, pika.spec.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        take()
        send(0, pika.spec.Connection.TuneOk(0, 131072, 0))
        send(0, pika.spec.Connection.Open("/"))
        take()
        send(1, pika.spec.Channel.Open())
        take()
        table = b"\x01xD\2" + (314).to_bytes(4, "big") + b"\1tT\0\0\0\0\0\0\0\1" + b"\1sS\0\0\0\1\xff"
        table += b"\1nd" + struct.pack(">d", math.nan) + b"\1bx\0\0\0\1\xff"
        declare = b"\0\x32\0\x0a\0\0" + b"\x03a\xc3\xbc" + b"\x04" + len(table).to_bytes(4, "big") + table
        sock.sendall(b"\1\0\1" + len(declare).to_bytes(4, "big") + declare + b"\xce")
        assert take()[:4] == b"\0\x32\0\x0b"
        (row,) = millrace.rows("queues", "list")
        assert row["name"] == "aü"
        assert row["arguments"] == {"x": 3.14, "t": 1, "s": "?", "n": "nan", "b": "\N{REPLACEMENT CHARACTER}"}
        assert json.loads(millrace("queues", "describe", "aü", "--json"))["arguments"] == row["arguments"]
        assert "3.14" in millrace("queues", "describe", "aü")


HUGE, LOW = str(10**30), str(-(10**30))
NONSENSE = [
    *[("topics", "create", "n", "--partitions", wrong) for wrong in (HUGE, "0", "-1", "1.5", "2147483647")],
    *[("topics", "delete-records", "n", "--partition", wrong, "--before", "1") for wrong in (HUGE, "-1")],
    *[("topics", "delete-records", "n", "--partition", "0", "--before", wrong) for wrong in (HUGE, "-1")],
    *[("topics", "create", "n", "--config", f"retention.ms={wrong}") for wrong in (HUGE, LOW, "nan")],
    *[("consume", "n", "--offset", wrong) for wrong in (HUGE, LOW)],
    ("consume", "n", "--offset", "1", "--from-beginning"),
    *[("consume", "n", "--partition", wrong) for wrong in (HUGE, "-1", "2147483647")],
    *[("consume", "n", "--max-messages", wrong) for wrong in (HUGE, "0")],
    *[("consume", "n", "--timeout-ms", wrong) for wrong in (HUGE, "-1")],
    *[("produce", "n", "--partition", wrong) for wrong in (HUGE, "-1")],
    *[("groups", "reset-offsets", "g", "--topic", "n", "--ago", wrong) for wrong in (HUGE, "-1", "nan", "inf")],
    *[("groups", "reset-offsets", "g", "--topic", "n", "--to-time", wrong) for wrong in (HUGE, "-1", "0001-01-01")],
    *[("groups", "reset-offsets", "g", "--topic", "n", "--to-offset", wrong) for wrong in (HUGE, "-1")],
    *[("groups", "reset-offsets", "g", "--topic", "n", "--shift-by", wrong) for wrong in (HUGE, LOW)],
    ("groups", "reset-offsets", "g", "--topic", f"n:{HUGE}", "--to-latest"),
    *[("queues", "rewind", "n", "--ago", wrong) for wrong in (HUGE, "-1", "nan", "inf")],
    *[("queues", "rewind", "n", "--to", wrong) for wrong in (HUGE, "0001-01-01", "yesterday")],
    *[("bans", "add", "user", "n", "--until", wrong) for wrong in (HUGE, "0001-01-01", "0")],
    *[("queues", "move", "n", "m", "--limit", wrong) for wrong in (HUGE, "0", "-1")],
    *[("vhosts", "limits", "/", "--max-queues", wrong) for wrong in (HUGE, "-2")],
    *[("policies", "set", "n", "^n", '{"max-length": 1}', "--priority", wrong) for wrong in (HUGE, LOW, "x")],
    ("policies", "set", "n", "^n", f'{{"max-length": {HUGE}}}'),
    ("policies", "set", "n", "^n", '{"max-length": -1}'),
    ("queues", "add", "n", "--arguments", f'{{"x-max-length": {HUGE}}}'),
    *[("delayed", "list", "n", "--limit", wrong) for wrong in (HUGE, "0", "1001")],
    *[("delayed", "cancel", "n", "--", wrong) for wrong in (HUGE, "-1", "9223372036854775807")],
    *[("cluster", "drain", "--", wrong) for wrong in (HUGE, "-1", "5")],
    *[("cluster", "throttle", wrong) for wrong in (HUGE, "1")],
    *[("cluster", "move", "n", "0", wrong) for wrong in (HUGE, "1,x", "1,,2")],
]


@pytest.mark.parametrize("arguments", NONSENSE, ids=" ".join)
def test_numbers_that_make_no_sense_are_one_line(millrace: Commands, arguments: tuple[str, ...]) -> None:
    """The queue, the topic and the group of these commands are not there, so that whatever is taken is refused."""
    done = CliRunner().invoke(main, [*arguments[:2], "--server", millrace.server, *arguments[2:]], input="x\n")
    if arguments[0] in ("consume", "produce"):
        done = millrace.run(*arguments, text="x\n")
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit)
    *_, line = done.stderr.splitlines()
    assert line.startswith(("millrace: ", "Error: ")), done.stderr


def test_arguments_that_are_no_json(millrace: Commands) -> None:
    done = millrace.run("queues", "add", "x", "--arguments", "[1]")
    assert done.exit_code == 2
    assert "'[1]' is no JSON object" in done.stderr


NAMELESS = [
    ("topics", "create", ""), ("topics", "describe", ""), ("topics", "delete", ""), ("produce", ""), ("consume", ""),
    ("consume", "t", "--group", ""), ("groups", "describe", ""), ("groups", "delete", ""),
    ("groups", "reset-offsets", "g", "--topic", "", "--to-latest"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", NAMELESS, ids=" ".join)
def test_no_name_is_empty(millrace: Commands, arguments: tuple[str, ...]) -> None:
    done = millrace.run(*arguments, text="x\n")
    assert done.exit_code == 2
    assert "no name is empty" in done.stderr


def test_arguments_that_are_no_text(millrace: Commands) -> None:
    for arguments in (("queues", "add", "bad\udcff"), ("messages", "publish", "\udcff", "--key", "nobody")):
        done = millrace.run(*arguments)
        assert done.exit_code == 2, done.exception
        assert "\\udcff' is not UTF-8" in done.stderr


def test_headers_that_hold_anything_do_not_hide_a_message(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "stamped")
    publish(
        broker, "stamped", 1, headers={"at": datetime(2026, 1, 2, tzinfo=UTC), "x-death": [{"time": datetime.now()}]}
    )
    (row,) = millrace.rows("queues", "peek", "stamped")
    assert row["headers"]["at"] == 1767312000
    millrace("queues", "delete", "stamped")


def test_a_body_from_standard_input_may_be_no_text(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "bytes")
    command = ("messages", "publish", "--key", "bytes", "--server", millrace.server)
    assert CliRunner().invoke(main, command, input=b"\xff\0\r\n").exit_code == 0
    with connect(broker) as connection:
        assert connection.channel().basic_get("bytes", auto_ack=True)[2] == b"\xff\0\r\n"
    millrace("queues", "delete", "bytes")


def test_a_password_that_is_no_text(millrace: Commands) -> None:
    done = CliRunner().invoke(main, ["users", "add", "x", "--server", millrace.server], input=b"\xff\n")
    assert (done.exit_code, done.stderr) == (1, "Error: the password is not UTF-8\n")


def test_a_ban_may_end_behind_the_last_year(millrace: Commands) -> None:
    millrace("bans", "add", "client_id", "old", "--until", "9223372036854775807")
    assert "9223372036854775807 ms" in millrace("bans", "list")
    millrace("bans", "delete", "client_id", "old")


def test_standard_input_that_is_closed(millrace: Commands) -> None:
    for command in ("users add x", "messages publish --key x"):
        line = f"exec {sys.executable} -m gateway {command} --server {millrace.server} <&-"
        done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False, timeout=30)
        assert (done.returncode, done.stderr) == (1, "Error: standard input is closed\n")


def test_output_that_cannot_be_written_is_one_line(millrace: Commands) -> None:
    command = [sys.executable, "-m", "gateway", "vhosts", "list", "--server", millrace.server]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (1, "millrace: [Errno 28] No space left on device\n")


def test_policies(broker: BrokerProcess, millrace: Commands) -> None:
    millrace("queues", "add", "policed")
    millrace("policies", "set", "limit", "^pol", '{"max-length": 2}', "--priority", "3", "--apply-to", "queues")
    millrace("policies", "set", "cap", "^pol", '{"max-length": 1}', "--operator")
    assert millrace.rows("policies", "list") == [
        {
            "vhost": "/", "name": "limit", "operator": False, "pattern": "^pol", "apply_to": "queues", "priority": 3,
            "definition": {"max-length": 2},
        },
        {
            "vhost": "/", "name": "cap", "operator": True, "pattern": "^pol", "apply_to": "all", "priority": 0,
            "definition": {"max-length": 1},
        },
    ]  # fmt: skip
    (queue,) = [row for row in millrace.rows("queues", "list") if row["name"] == "policed"]
    assert (queue["policy"], queue["operator_policy"]) == ("limit", "cap")
    publish(broker, "policed", 5)
    (queue,) = [row for row in millrace.rows("queues", "list") if row["name"] == "policed"]
    assert queue["ready"] == 1
    text = "Validation failed: foo: not recognised as policy settings"
    assert millrace.refused("policies", "set", "odd", "", '{"foo": 1}') == text
    millrace("policies", "delete", "limit")
    millrace("policies", "delete", "cap", "--operator")
    assert millrace.refused("policies", "delete", "cap", "--operator") == "no operator policy 'cap' in vhost '/'"
    assert millrace.rows("policies", "list") == []
    millrace("queues", "delete", "policed")


def test_a_queue_is_altered_in_place(millrace: Commands, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("altered", durable=True)
        for priority in (1, 9):
            channel.basic_publish("", "altered", b"before", pika.BasicProperties(delivery_mode=2, priority=priority))
        millrace("queues", "alter", "altered", '{"x-max-priority": 9, "x-queue-type": "quorum"}')
        for priority in (1, 9):
            body = b"%d" % priority
            channel.basic_publish("", "altered", body, pika.BasicProperties(delivery_mode=2, priority=priority))
        arguments = {"x-max-priority": 9, "x-queue-type": "quorum"}
        assert channel.queue_declare("altered", durable=True).method.message_count == 4
        assert channel.queue_declare("altered", durable=True, arguments=arguments).method.message_count == 4
        got = [channel.basic_get("altered", auto_ack=True)[2] for _ in range(4)]
        assert got == [b"9", b"1", b"before", b"before"]
        channel.queue_delete("altered")
    assert millrace.refused("queues", "alter", "altered", "{}") == "no queue 'altered' in vhost '/'"


def test_a_queue_is_paused(millrace: Commands, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("paused")
        got: list[bytes] = []
        channel.basic_consume("paused", lambda *delivery: got.append(delivery[-1]), auto_ack=True)
        millrace("queues", "pause", "paused")
        for number in range(3):
            channel.basic_publish("", "paused", b"%d" % number)
        assert channel.queue_declare("paused").method.message_count == 3
        assert channel.queue_declare("paused", arguments={"x-paused": True}).method.consumer_count == 1
        assert not got
        millrace("queues", "resume", "paused")
        while len(got) < 3:
            connection.process_data_events(10)
        assert got == [b"0", b"1", b"2"]
        channel.queue_delete("paused")


def test_a_queue_is_rewound(millrace: Commands, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("rewound", durable=True, arguments={"x-retain": "1h"})
        for number in range(20):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}")
            channel.basic_publish("", "rewound", b"%d" % number, properties)
        for _ in range(20):
            channel.basic_get("rewound", auto_ack=True)
        assert millrace("queues", "rewind", "rewound", "--ago", "600", "--dry-run") == "20 messages would come again\n"
        for to in ("2099-12-31T00:00:00Z", "2099-12-31 00:00:00.500+01:00", "4102358400000"):
            found = millrace("queues", "rewind", "rewound", "--dry-run", "--to", to)
            assert found == "0 messages would come again\n"
        assert millrace("queues", "rewind", "rewound", "--to", "2020-01-31") == "20 messages come again\n"
        got = [channel.basic_get("rewound", auto_ack=True) for _ in range(20)]
        assert [body for _, _, body in got] == [b"%d" % number for number in range(20)]
        assert [(one.message_id, one.headers) for _, one, _ in got][7] == ("m7", {"x-replayed": True})
        assert channel.queue_declare("rewound", passive=True).method.message_count == 0
        channel.queue_delete("rewound")
    assert millrace.run("queues", "rewind", "rewound").exit_code == 2
