"""Users and rights with real clients: what each door answers where something is refused, as RabbitMQ does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError, UnroutableError

from millrace import BlockingClient, BlockingProducer, MillraceError
from tests.support import BrokerProcess, broker_process

HOST = "127.0.0.1"
ACCESS_REFUSED = 19


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with user ada, who may configure ^c-, write ^w-, read ^r- and the keys ^ok of amq.topic."""
    with broker_process(tmp_path_factory.mktemp("rights") / "data") as process:
        with administrator(process) as client:
            client.administer("users.add", name="ada", password="x", tags=[])
            client.administer(
                "permissions.set", vhost="/", name="ada", configure="^c-",
                write=r"^(w-|amq\.default$|amq.topic)", read="^(r-|amq.topic)",
            )  # fmt: skip
            client.administer(
                "topic-permissions.set", vhost="/", name="ada", exchange="amq.topic", write=r"^ok\.", read=r"^ok\."
            )
        with connect(process, "guest", "guest") as connection:
            channel = connection.channel()
            for queue in ("c-q", "w-q", "r-q", "x-q"):
                channel.queue_declare(queue)
            for exchange in ("w-e", "r-e", "x-e"):
                channel.exchange_declare(exchange)
        yield process


def administrator(broker: BrokerProcess) -> BlockingClient:
    return BlockingClient(f"{HOST}:{broker.native_port}", credentials=("guest", "guest"))


def connect(broker: BrokerProcess, user: str = "ada", password: str = "x", vhost: str = "/") -> BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port, vhost, credentials))


# --- AMQP: all of it as RabbitMQ 3.10 answers it ------------------------------------------

ALLOWED: list[Callable[[BlockingChannel], Any]] = [
    lambda channel: channel.queue_declare("x-q", passive=True),
    lambda channel: channel.exchange_declare("x-e", passive=True),
    lambda channel: channel.queue_declare("c-q"),
    lambda channel: channel.queue_purge("r-q"),
    lambda channel: channel.basic_get("r-q"),
    lambda channel: channel.queue_bind("w-q", "r-e", "k"),
    lambda channel: channel.queue_bind("w-q", "amq.topic", "ok.k"),
    lambda channel: channel.basic_publish("amq.topic", "ok.k", b""),
    lambda channel: channel.basic_publish("", "w-q", b""),
    lambda channel: channel.queue_delete("c-none"),
]

QUEUE, EXCHANGE = "access to queue '{}' in vhost '/'", "access to exchange '{}' in vhost '/'"
TOPIC = "access to topic '{}' in exchange 'amq.topic' in vhost '/'"

REFUSED: list[tuple[Callable[[BlockingChannel], Any], str]] = [
    (lambda channel: channel.queue_declare("x-new"), QUEUE.format("x-new")),
    (lambda channel: channel.queue_declare("c-d", arguments={"x-dead-letter-exchange": "w-e"}), QUEUE.format("c-d")),
    (lambda channel: channel.queue_delete("x-q"), QUEUE.format("x-q")),
    (lambda channel: channel.queue_delete("x-none"), QUEUE.format("x-none")),
    (lambda channel: channel.queue_purge("x-q"), QUEUE.format("x-q")),
    (lambda channel: channel.basic_get("x-q"), QUEUE.format("x-q")),
    (lambda channel: channel.basic_consume("x-q", lambda *_: None), QUEUE.format("x-q")),
    (lambda channel: channel.queue_bind("x-q", "r-e", "k"), QUEUE.format("x-q")),
    (lambda channel: channel.queue_bind("w-q", "x-e", "k"), EXCHANGE.format("x-e")),
    (lambda channel: channel.queue_unbind("x-q", "r-e", "k"), QUEUE.format("x-q")),
    (lambda channel: channel.queue_bind("w-q", "amq.topic", "no.k"), TOPIC.format("no.k")),
    (lambda channel: channel.basic_publish("amq.topic", "no.k", b""), TOPIC.format("no.k")),
    (lambda channel: channel.basic_publish("x-e", "w-q", b""), EXCHANGE.format("x-e")),
    (lambda channel: channel.basic_publish("x-none", "w-q", b""), EXCHANGE.format("x-none")),
    (
        lambda channel: channel.basic_publish("x-e", "k", b"", pika.BasicProperties(headers={"CC": ["k2"]})),
        EXCHANGE.format("x-e"),
    ),
    (lambda channel: channel.exchange_declare("x-n"), EXCHANGE.format("x-n")),
    (lambda channel: channel.exchange_declare("c-n", arguments={"alternate-exchange": "w-e"}), EXCHANGE.format("c-n")),
    (lambda channel: channel.exchange_delete("x-e"), EXCHANGE.format("x-e")),
    (lambda channel: channel.exchange_bind("x-e", "r-e"), EXCHANGE.format("x-e")),
    (lambda channel: channel.exchange_bind("w-e", "x-e"), EXCHANGE.format("x-e")),
]  # fmt: skip


def test_amqp_allows_what_is_permitted(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for operation in ALLOWED:
            operation(channel)


def test_amqp_refuses_the_rest_in_rabbitmqs_words(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        for operation, text in REFUSED:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker) as refused:
                operation(channel)
            assert refused.value.reply_code == 403
            assert refused.value.reply_text == f"ACCESS_REFUSED - {text} refused for user 'ada'"


def test_names_the_broker_makes_up_need_configure_too(broker: BrokerProcess) -> None:
    with connect(broker) as connection, pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare("")
    assert "access to queue 'amq.gen-" in refused.value.reply_text


def test_who_leads_messages_to_a_queue_after_their_retries_may_write_it(broker: BrokerProcess) -> None:
    with administrator(broker) as client:
        client.administer("users.add", name="bea", password="x", tags=[])
        client.administer("permissions.set", vhost="/", name="bea", configure="^b-", write="^b-", read="^b-[^x]")

    def ladder(name: str, then: str) -> None:
        with connect(broker, "bea") as connection:
            connection.channel().queue_declare(name, durable=True, arguments={"x-retry": [1], "x-retry-then": then})

    ladder("b-q", "b-dead")
    ladder("b-q", "b-dead")
    for name, then, refused in (("b-other", "x-q", "x-q"), ("b-x", "b-dead", "b-x")):
        with pytest.raises(ChannelClosedByBroker) as closed:
            ladder(name, then)
        assert closed.value.reply_text == f"ACCESS_REFUSED - {QUEUE.format(refused)} refused for user 'bea'"


def test_what_waits_for_its_time_is_put_there_by_the_broker_alone(broker: BrokerProcess) -> None:
    """By a header CC a message comes to a queue with another key, which says what it is published to when it is due."""
    with administrator(broker) as client:
        client.create_topic("late", config={"millrace.delay.enable": "true"})
        client.administer("users.add", name="cas", password="x", tags=[])
        client.administer("permissions.set", vhost="/", name="cas", configure="^m", write=".*", read=".*")
        client.administer("topic-permissions.set", vhost="/", name="cas", exchange="amq.topic", write="^m", read="^m")
        client.administer("users.add", name="dan", password="x", tags=[])
        client.administer("permissions.set", vhost="/", name="dan", configure="^$", write=r"^amq\.default$", read="^$")
        with BlockingProducer(f"{HOST}:{broker.native_port}", credentials=("guest", "guest")) as producer:
            producer.send("late", b"", headers=[("x-delay", b"3600000")]).result()
    device, _ = mqtt(broker, "guest", "guest")
    device.publish("$delayed/3600/far", b"", qos=1).wait_for_publish(5)
    device.disconnect()
    with connect(broker, "dan") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for key, queue in (("0", "millrace.delayed.late"), ("secret.key", "millrace.later")):
            properties = pika.BasicProperties(headers={"CC": [queue]})
            with pytest.raises(UnroutableError):
                channel.basic_publish("", key, b"forged", properties, mandatory=True)
    refused: list[tuple[Callable[[BlockingChannel], Any], str]] = [
        (lambda channel: channel.basic_publish("millrace.later", "secret.key", b""), EXCHANGE),
        (lambda channel: channel.queue_bind("m", "millrace.later", "k"), EXCHANGE),
        (lambda channel: channel.queue_purge("millrace.later"), QUEUE),
    ]
    with connect(broker, "cas") as connection:
        connection.channel().queue_declare("m", exclusive=True)
        for operation, what in refused:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker) as closed:
                operation(channel)
            assert closed.value.reply_text == f"ACCESS_REFUSED - {what.format('millrace.later')} refused for user 'cas'"


def test_a_virtual_host_without_permission_is_closed(broker: BrokerProcess) -> None:
    with administrator(broker) as client:
        client.administer("users.add", name="eve", password="x")
        with pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user 'eve'"):
            connect(broker, "eve")
        client.administer("permissions.set", vhost="/", name="eve", configure="", write="", read="")
        connect(broker, "eve").close()
        client.administer("users.delete", name="eve")


def test_changes_and_deletion_count_at_once(broker: BrokerProcess) -> None:
    with administrator(broker) as client:
        client.administer("users.add", name="bob", password="x")
        client.administer("permissions.set", vhost="/", name="bob", configure=".*", write=".*", read=".*")
        idle, connection = connect(broker, "bob"), connect(broker, "bob")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "w-q", b"")
        client.administer("permissions.set", vhost="/", name="bob", configure=".*", write="", read=".*")
        with pytest.raises(ChannelClosedByBroker, match="refused for user 'bob'"):
            channel.basic_publish("", "w-q", b"")
        client.administer("users.delete", name="bob")
        with pytest.raises(ConnectionClosedByBroker) as closed:
            idle.process_data_events(10)
        assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - user 'bob' is deleted")


# --- MQTT --------------------------------------------------------------------------------


def mqtt(
    broker: BrokerProcess, user: str = "ada", password: str = "x", client_id: str = ""
) -> tuple[paho.Client, dict[str, Any]]:
    """A client that has heard the answer to its CONNECT, and what happened to it."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, reconnect_on_failure=False)
    client.username_pw_set(user, password)
    found: dict[str, Any] = {
        "connected": threading.Event(),
        "subscribed": threading.Event(),
        "ended": threading.Event(),
    }

    def on_connect(_: Any, __: Any, ___: Any, code: Any, ____: Any) -> None:
        found["code"] = code.value
        found["connected"].set()

    def on_subscribe(_: Any, __: Any, ___: Any, codes: Any, ____: Any) -> None:
        found["codes"] = [code.value for code in codes]
        found["subscribed"].set()

    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_disconnect = lambda *_: found["ended"].set()
    client.connect(HOST, broker.mqtt_port)
    client.loop_start()
    assert found["connected"].wait(10)
    return client, found


def test_mqtt_asks_for_the_exchange_and_the_key(broker: BrokerProcess) -> None:
    client, found = mqtt(broker)
    try:
        client.subscribe([("ok/#", 1), ("no/#", 1)])
        assert found["subscribed"].wait(10)
        assert found["codes"] == [1, 0x80]
        client.publish("ok/1", b"x", qos=1).wait_for_publish(10)
        assert not found["ended"].is_set()
        client.publish("no/1", b"x", qos=1)
        assert found["ended"].wait(10), "MQTT 3.1.1 has no other way to refuse a publish"
    finally:
        client.loop_stop()


def test_mqtt_without_permission_is_not_authorized(broker: BrokerProcess) -> None:
    with administrator(broker) as client:
        client.administer("users.add", name="mia", password="x")
        try:
            refused, found = mqtt(broker, "mia")
            refused.loop_stop()
            assert found["code"] == 0x87, "paho's word for return code 5"
        finally:
            client.administer("users.delete", name="mia")


def test_a_client_gets_at_no_others_topics_by_what_it_calls_itself(broker: BrokerProcess) -> None:
    own = {"write": r"^{client_id}\.", "read": r"^{client_id}\."}
    with administrator(broker) as client:
        client.administer("users.add", name="dev", password="x")
        client.administer("permissions.set", vhost="/", name="dev", configure="", write="^amq.topic", read="^amq.topic")
        client.administer("topic-permissions.set", vhost="/", name="dev", exchange="amq.topic", **own)
        try:
            for client_id, granted in (("+", 0x80), ("sensor.7", 1)):
                device, found = mqtt(broker, "dev", client_id=client_id)
                device.subscribe(f"{client_id}/#", 1)
                assert found["subscribed"].wait(10)
                device.loop_stop()
                assert found["codes"] == [granted], client_id
        finally:
            client.administer("users.delete", name="dev")


# --- native ------------------------------------------------------------------------------


def test_topics_are_names_too(broker: BrokerProcess) -> None:
    server = f"{HOST}:{broker.native_port}"
    with administrator(broker) as client:
        for topic in ("c-t", "w-t", "r-t", "x-t"):
            client.create_topic(topic)
    with BlockingClient(server, credentials=("ada", "x")) as ada:
        assert sorted(ada.metadata()) == ["c-t", "r-t", "w-t"]
        assert ada.list_offsets("r-t", 0, "latest") == 0
        operations: list[tuple[Callable[[], Any], str]] = [
            (lambda: ada.create_topic("x-new"), "x-new"),
            (lambda: ada.metadata(["c-new", "x-new"], create_missing=True), "x-new"),
            (lambda: ada.delete_topic("x-t"), "x-t"),
            (lambda: ada.describe_topic("x-t"), "x-t"),
            (lambda: ada.fetch("w-t", 0, 0), "w-t"),
            (lambda: ada.list_offsets("w-t", 0, "latest"), "w-t"),
            (lambda: ada.commit_offsets("g", {("w-t", 0): 0}), "w-t"),
            (lambda: ada.bind_topic("x-t", "r-e", "k"), "x-t"),
        ]
        for operation, topic in operations:
            with pytest.raises(MillraceError) as refused:
                operation()
            assert refused.value.code == ACCESS_REFUSED
            assert str(refused.value) == f"access to topic '{topic}' in vhost '/' refused for user 'ada'"
        with pytest.raises(MillraceError, match="access to exchange 'x-e' in vhost '/' refused"):
            ada.bind_topic("c-t", "x-e", "k")
        with pytest.raises(MillraceError, match=r"access to users.list refused for user 'ada'"):
            ada.administer("users.list")
        with pytest.raises(MillraceError, match="access to the status of the broker refused"):
            ada.describe_broker()
    with BlockingProducer(server, credentials=("ada", "x"), delivery_timeout_ms=5000) as producer:
        producer.send("w-t", b"x")
    with pytest.raises(MillraceError) as refused, BlockingProducer(server, credentials=("ada", "x")) as producer:
        producer.send("r-t", b"x")
    assert refused.value.code == ACCESS_REFUSED


def test_who_may_not_enter_the_virtual_host_asks_for_operations_alone(broker: BrokerProcess) -> None:
    server = f"{HOST}:{broker.native_port}"
    with administrator(broker) as client:
        client.administer("vhosts.add", name="tenant")
        client.administer("users.add", name="tina", password="x", tags=["monitoring"])
        client.administer("permissions.set", vhost="tenant", name="tina", configure=".*", write=".*", read=".*")
        with BlockingClient(server, credentials=("tina", "x")) as tina:
            assert tina.administer("queues.list", vhost="tenant")["rows"] == []
            assert tina.administer("messages.publish", routing_key="nobody", vhost="tenant") == {"routed": False}
            tina.describe_broker()
            no_entry = "^access to vhost '/' refused for user 'tina'$"
            operations: list[Callable[[], Any]] = [
                lambda: tina.administer("queues.peek", name="r-q"),
                lambda: tina.administer("topics.settings", name="r-t"),
                lambda: tina.metadata(),
                lambda: tina.create_topic("t"),
                lambda: tina.fetch("r-t", 0, 0),
                lambda: tina.list_groups(),
            ]
            for operation in operations:
                with pytest.raises(MillraceError, match=no_entry) as refused:
                    operation()
                assert refused.value.code == ACCESS_REFUSED
            client.administer("users.delete", name="tina")
            with pytest.raises(MillraceError):
                tina.administer("queues.list")
        client.administer("vhosts.delete", name="tenant")
