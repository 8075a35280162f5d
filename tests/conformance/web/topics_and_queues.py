"""What an operator does with topics, groups and queues. Each task is done through the page, and what came of it is
looked at both there and without it. Tasks build on those before them.
"""

from __future__ import annotations

from datetime import datetime

from millrace import BlockingClient, UnknownTopic
from tests.conformance.web.clients import BEGAN_MS, HOST, produced
from tests.conformance.web.walk import ADMINISTRATOR, GROUP, PASSWORD, QUEUE, TOPIC, Walk


def log_in(walk: Walk) -> None:
    """A wrong password is told, the right one shows who it is."""
    page = walk.page
    page.open()
    page.logout()
    page.login(ADMINISTRATOR, "wrong")
    page.says("AUTHENTICATION_FAILED")
    page.login(ADMINISTRATOR, PASSWORD)
    page.says("administrator")
    page.says("No alarms")


def create_a_topic(walk: Walk) -> None:
    """With two partitions and a setting."""
    page = walk.page
    page.go("Topics")
    page.press("Create topic")
    page.fill(topic="audit", partitions="2", config='{"retention.ms": 86400000}')
    page.sure("Create")
    assert page.cell("partitions", "audit") == "2"
    with walk.client() as client:
        assert client.describe_topic("audit").config == {"retention.ms": "86400000"}
    page.press("Create topic")
    page.fill(topic="audit", partitions="1")
    page.press("Create")
    page.says("audit")
    page.says("exist")  # the broker's own words, within the dialog
    page.sure("Cancel")


def produce_a_record(walk: Walk) -> None:
    """With a key and a header; the page tells where it is once it is safe."""
    page = walk.page
    page.follow("audit")
    page.press("Produce")
    page.fill(key="by-hand", value='{"grüße": "from here"}', headers='{"source": "page"}', partition="1")
    page.sure("Produce")
    page.says("it is safe: partition 1, offset 0")
    page.go("Records")
    page.fill(partition="1")
    page.press("Show")
    assert "grüße" in page.row("by-hand", "source page").text
    with BlockingClient(f"{HOST}:{walk.broker.native_port}") as client:
        assert client.list_offsets("audit", 1, "latest") == 1


def browse_records(walk: Walk) -> None:
    """From an offset, from a time, to the next ones, and by key."""
    page = walk.page
    page.open(f"#/topic?name={TOPIC}&tab=records")
    page.row('{"order": 39')
    page.fill(**{"from": "offset", "offset": "17", "limit": "20"})
    page.press("Show")
    assert page.cell("key", '{"order": 17') == "customer-3"
    page.says("20 records; partition 0 has offsets 0 to 40")
    page.press("Later")
    page.row('{"order": 39')
    page.says("3 records;")
    at = datetime.fromtimestamp((BEGAN_MS + 25_000) / 1000).isoformat(timespec="milliseconds")
    page.fill(**{"from": "time", "time": at})
    page.press("Show")
    page.says("15 records;")
    assert page.row("customer").find_element("css selector", "td").text == "25"
    page.fill(**{"from": "key", "key": "customer-3"})
    page.press("Show")
    page.says("6 records with this key")
    for number in (3, 10, 17, 24, 31, 38):
        page.row(f'{{"order": {number},', "customer-3")


def see_a_groups_lag(walk: Walk) -> None:
    """None while its member keeps up; so many records once it has gone and more came."""
    page = walk.page
    page.go("Groups")
    page.row(GROUP, "Stable")
    page.follow(GROUP)
    page.row("kafka-python", f"{TOPIC}-0")
    page.until("lag of 0", lambda: page.cell("lag", TOPIC) == "0")
    walk.clients["reader"].close()
    produced(walk.broker.ports["kafka"], TOPIC, 5)
    page.until("lag of 5", lambda: page.cell("lag", TOPIC) == "5")
    page.says("Empty")


def reset_the_group(walk: Walk) -> None:
    """First dry, which changes nothing, then for good."""
    page = walk.page
    page.press("Reset offsets")
    page.fill(to="offset", offset="10")
    page.press("Dry run")
    page.says("Nothing has changed yet")
    page.says("-30")
    with walk.client() as client:
        assert client.committed_offsets(GROUP) == {(TOPIC, 0): 40}
        page.sure("Reset")
        assert client.committed_offsets(GROUP) == {(TOPIC, 0): 10}
    page.until("lag of 35", lambda: page.cell("lag", TOPIC) == "35")


def alter_a_setting(walk: Walk) -> None:
    """A value that cannot be is refused in the broker's words, a good one counts; then it is as before."""
    page = walk.page
    page.open(f"#/topic?name={TOPIC}&tab=settings")
    page.press_in_row("Change", "max.message.bytes")
    page.fill(value="soon")
    page.press("Change")
    page.says("max.message.bytes")
    page.find("//dialog//*[@role='alert']")
    page.fill(value="2000000")
    page.sure("Change")
    assert page.cell("value", "max.message.bytes", "2000000") == "2000000"
    with walk.client() as client:
        assert client.describe_topic(TOPIC).config["max.message.bytes"] == "2000000"
        page.press_in_row("Unset", "max.message.bytes")
        page.sure("Unset")
        assert "max.message.bytes" not in client.describe_topic(TOPIC).config


def more_partitions_fewer_records(walk: Walk) -> None:
    """Partitions are added, and the first records of one deleted."""
    page = walk.page
    page.open("#/topic?name=audit")
    page.press("More partitions")
    page.fill(partitions="3")
    page.sure("Make them")
    page.press("Delete records")
    page.fill(partition="1", before="1")
    page.sure("Delete")
    page.says("it begins at 1 now")
    with walk.client() as client:
        assert client.metadata(["audit"]) == {"audit": [0, 1, 2]}
        assert client.list_offsets("audit", 1, "earliest") == 1


def declare_a_queue(walk: Walk) -> None:
    """With arguments, and bound to an exchange; JSON that is none is told before anything is asked."""
    page = walk.page
    page.go("Queues")
    page.press("Declare queue")
    page.fill(name="parcels", arguments="{")
    page.press("Declare")
    page.says("Arguments:")
    page.fill(arguments='{"x-max-length": 100}')
    page.sure("Declare")
    page.row("parcels", "x-max-length")
    page.follow("parcels")
    page.press("Bind")
    page.fill(source="amq.topic", routing_key="parcel.*")
    page.sure("Bind")
    page.row("amq.topic", "parcel.*")
    assert any(one["destination"] == "parcels" for one in walk.rows("bindings.list"))


def publish_and_peek(walk: Walk) -> None:
    """A message to the queue, and one by its binding; both are seen and still there."""
    page = walk.page
    page.press("Publish")
    page.fill(body="first parcel", headers='{"weight": 7, "id": 9007199254740993}')
    page.sure("Publish")
    page.press("Publish")
    page.fill(exchange="amq.topic", routing_key="parcel.small", body="second parcel")
    page.sure("Publish")
    page.press("Peek")
    for text in (
        "The first 2 that wait",
        "first parcel",
        "weight 7",
        "id 9007199254740993",
        "second parcel",
        "parcel.small",
    ):
        page.says(text)
    assert walk.waiting("parcels") == 2


def purge(walk: Walk) -> None:
    """Not if one thinks again, but if one is sure."""
    page = walk.page
    page.press("Purge")
    page.says("2 messages now")
    page.sure("Cancel")
    assert walk.waiting("parcels") == 2
    page.press("Purge")
    page.sure("Purge")
    page.says("dropped 2 messages")
    assert walk.waiting("parcels") == 0


def move_dead_letters_back(walk: Walk) -> None:
    """What lies in one queue goes to another."""
    page = walk.page
    walk.asked("queues.add", name="parcels.failed")
    walk.asked("bindings.add", source="amq.topic", destination="parcels.failed", routing_key="failed")
    page.open("#/queue?name=parcels.failed&vhost=/")
    page.press("Publish")
    page.fill(body="tried too often")
    page.sure("Publish")
    page.press("Move")
    page.fill(destination="parcels")
    page.sure("Move")
    page.says("moved 1, 0 still wait")
    assert (walk.waiting("parcels.failed"), walk.waiting("parcels")) == (0, 1)


def see_consumers(walk: Walk) -> None:
    """A queue's own, and all."""
    page = walk.page
    page.open(f"#/queue?name={QUEUE}&vhost=/")
    assert page.cell("prefetch", "ctag") == "10"
    page.open("#/connections?tab=consumers")
    page.row(QUEUE, "ctag")


def close_a_connection(walk: Walk) -> None:
    """A client of AMQP is told, and the page does not show it any more."""
    page = walk.page
    page.go("Connections")
    page.press_in_row("Close", "amqp")
    page.sure("Close it")
    assert walk.clients["consumer"].ended.wait(20)
    page.until("list without it", lambda: "amqp" not in page.text().split("Close all of a user")[1])


def set_a_policy(walk: Walk) -> None:
    """It applies at once, and the queue's row says so."""
    page = walk.page
    page.go("Policies")
    page.press("Set policy")
    page.fill(name="short", pattern="^parcels", definition='{"message-ttl": 600000}', apply_to="queues")
    page.sure("Set")
    page.row("short", "message-ttl")
    page.go("Queues")
    assert page.cell("policy", "parcels.failed") == "short"


def delete_them(walk: Walk) -> None:
    """A queue and a topic go, and nothing else does."""
    page = walk.page
    page.press_in_row("Delete", "parcels.failed")
    page.sure("Delete")
    page.says("deleted queue parcels.failed")
    page.row("parcels", "short")
    page.go("Topics")
    page.press_in_row("Delete", "audit")
    page.sure("Delete")
    page.says("deleted topic audit")
    page.row(TOPIC)
    with walk.client() as client:
        try:
            client.describe_topic("audit")
        except UnknownTopic:
            return
    raise AssertionError("the topic is still there")


def it_draws_itself_again(walk: Walk) -> None:
    """What others do is seen without asking, and what is filtered stays filtered."""
    page = walk.page
    page.go("Queues")
    page.find("//input[@type='search']").send_keys("later")
    page.says("0 of")
    walk.asked("queues.add", name="came.later")
    page.row("came.later")
    page.says("1 of")


def long_lists(walk: Walk) -> None:
    """Have pages of 1,000 rows; a filter looks through all of them, and a virtual host is chosen."""
    page = walk.page
    with walk.client() as client:
        client.administer("vhosts.add", name="many")
        client.administer("permissions.set", vhost="many", name=ADMINISTRATOR, configure=".*", write=".*", read=".*")
        for number in range(1100):
            client.administer("queues.add", name=f"row.{number:04}", vhost="many")
    page.open("#/overview")
    page.driver.refresh()
    page.find("//select[@id='vhost']/option[.='many']").click()
    page.go("Queues")
    page.says("1 to 1,000")
    page.row("row.0999")
    page.press("Later")
    page.says("1,001 to 1,100")
    page.row("row.1099")
    assert "row.0999" not in page.text()
    page.press("Earlier")
    page.says("1 to 1,000")
    page.find("//input[@type='search']").send_keys("row.1077")
    page.says("1 of 1,100")
    page.row("row.1077")
    page.find("//select[@id='vhost']/option[.='all']").click()
    walk.asked("vhosts.delete", name="many")


TASKS = (
    log_in, create_a_topic, produce_a_record, browse_records, see_a_groups_lag, reset_the_group, alter_a_setting,
    more_partitions_fewer_records, declare_a_queue, publish_and_peek, purge, move_dead_letters_back, see_consumers,
    close_a_connection, set_a_policy, delete_them, it_draws_itself_again, long_lists,
)  # fmt: skip
AT_THE_CLIENTS = (see_consumers, close_a_connection)
"""See `devices_and_users`."""
