"""What an operator does with devices that speak MQTT, and with users; and that names are nothing but text. See
`topics_and_queues` for the rules.
"""

from __future__ import annotations

from tests.conformance.web.clients import Device
from tests.conformance.web.page import resize
from tests.conformance.web.walk import ADMINISTRATOR, PASSWORD, TOPIC, Walk

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
TURNED = "invoice\u202etxt.exe\u200f\u0007"
LONG = "x" * 255
VIEWS = (
    "#/overview", "#/queues", "#/exchanges", "#/exchanges?tab=bindings", "#/topics", f"#/topic?name={TOPIC}",
    f"#/topic?name={TOPIC}&tab=records", f"#/topic?name={TOPIC}&tab=settings", "#/groups", "#/group?name=board",
    "#/connections", "#/connections?tab=consumers", "#/mqtt", "#/mqtt?tab=sessions", "#/mqtt?tab=retained",
    "#/mqtt?tab=bans", "#/access", "#/access?tab=permissions", "#/access?tab=vhosts", "#/policies",
)  # fmt: skip


def list_clients_and_sessions(walk: Walk) -> None:
    """Devices that are connected, and the session of one that is away."""
    page = walk.page
    walk.clients["lamp"].close()
    page.go("MQTT")
    page.row("thermometer", "mqtt")
    page.go("Sessions")
    page.row("thermometer", "connected")
    page.row("lamp", "away")
    page.press_in_row("Subscriptions", "lamp")
    page.says("house/lamp/#")
    page.sure("Close")


def a_broker_shows_its_own_clients(walk: Walk) -> None:
    """And says so, in a cluster; what is looked for may be at another one."""
    page = walk.page
    for view in ("#/connections", "#/mqtt"):
        page.open(view)
        page.says("Clients of broker 1 alone")
    page.open("#/mqtt?tab=sessions")
    page.row("thermometer", "connected")


def publish_to_a_device(walk: Walk) -> None:
    """One that is there gets it; what one gets that is away waits in its session."""
    page = walk.page
    page.go("Clients")
    page.press("Publish")
    page.fill(mqtt_topic="house/thermometer/set", body="21.5 °C")
    page.sure("Publish")
    walk.clients["thermometer"].waits_for("house/thermometer/set", "21.5 °C".encode())
    page.press("Publish")
    page.fill(mqtt_topic="house/lamp/set", body="on", retain=True)
    page.sure("Publish")
    page.go("Sessions")
    page.until("message that waits", lambda: page.cell("waiting", "lamp") == "1")
    walk.clients["lamp"] = Device(walk.broker.mqtt_port, "lamp").connect()
    walk.clients["lamp"].waits_for("house/lamp/set", b"on")


def see_and_clear_what_is_retained(walk: Walk) -> None:
    """The message itself, and then it is gone."""
    page = walk.page
    page.go("Retained")
    page.press_in_row("Show", "lamp")
    page.find("//main//pre[normalize-space()='on']")
    page.press_in_row("Clear", "lamp")
    page.sure("Clear")
    page.says("nothing is retained")
    assert walk.rows("retained.list") == []


def kick_a_device(walk: Walk) -> None:
    """It is told why, and may come again."""
    page, device = walk.page, walk.clients["thermometer"]
    page.go("Clients")
    page.press_in_row("Kick", "thermometer")
    page.sure("Kick")
    device.told("Administrative action")
    assert device.connected.wait(20), device.reasons


def ban_it_and_lift_the_ban(walk: Walk) -> None:
    """It is disconnected and refused; once the ban is lifted it is let in."""
    page, device = walk.page, walk.clients["thermometer"]
    page.row("thermometer")
    page.press_in_row("Ban", "thermometer")
    page.fill(reason="it floods")
    page.sure("Ban")
    device.told("Banned")
    page.says_not("house")
    page.go("Bans")
    page.row("thermometer", "it floods", "for ever")
    refused = Device(walk.broker.mqtt_port, "thermometer").connect(comes_again=False)
    refused.told("Banned")
    refused.close()
    page.press_in_row("Lift", "thermometer")
    page.sure("Lift")
    page.says("nobody is banned")
    assert device.connected.wait(20), device.reasons


def an_operator_does_not_ban_himself(walk: Walk) -> None:
    """By mistake, that is: neither his name nor where he asks from."""
    page = walk.page
    for kind, value in (("user", ADMINISTRATOR), ("address", "127.0.0.0/8")):
        page.press("Ban")
        page.fill(kind=kind, value=value)
        page.press("Ban")
        page.says("this would ban you")
        page.sure("Cancel")
    assert walk.rows("bans.list") == []


def end_a_session(walk: Walk) -> None:
    """With all that waits in it."""
    page = walk.page
    walk.clients["lamp"].close()
    page.go("Sessions")
    page.press_in_row("End", "lamp")
    page.sure("End it")
    page.until("list without it", lambda: "lamp" not in page.find("//main//table").text)
    assert [one["client_id"] for one in walk.rows("sessions.list")] == ["thermometer"]


def add_a_user(walk: Walk) -> None:
    """With a permission at once, then another one."""
    page = walk.page
    page.go("Users")
    page.press("Add user")
    page.fill(name="eve", password="eve's own", read=f"^{TOPIC}$")
    page.sure("Add")
    page.row("eve", "catalog")
    page.go("Permissions")
    page.press_in_row("Change", "eve")
    page.fill(write=f"^{TOPIC}$")
    page.sure("Set")
    page.row("eve", f"^{TOPIC}$")
    (found,) = walk.rows("permissions.list", name="eve")
    assert (found["configure"], found["write"], found["read"]) == ("", f"^{TOPIC}$", f"^{TOPIC}$")


def somebody_without_tags(walk: Walk) -> None:
    """Is told what he may not do, in the broker's words, and does what he may."""
    page = walk.page
    page.logout()
    page.login("eve", "eve's own")
    page.says("no tags")
    page.go("Queues")
    page.says("ACCESS_REFUSED access to queues.list refused for user 'eve': it needs the tag")
    page.go("Users")
    page.says("access to users.list refused for user 'eve'")
    page.go("Topics")
    page.follow(TOPIC)
    page.go("Records")
    page.row('{"order": 39')
    page.press("Delete")
    page.press("Delete")
    page.says("ACCESS_REFUSED")
    page.sure("Cancel")
    page.logout()
    page.login(ADMINISTRATOR, PASSWORD)
    page.says("administrator")


def delete_the_user(walk: Walk) -> None:
    """And he cannot log in any more."""
    page = walk.page
    page.go("Users")
    page.press_in_row("Delete", "eve")
    page.sure("Delete")
    page.logout()
    page.login("eve", "eve's own")
    page.says("AUTHENTICATION_FAILED")
    page.login(ADMINISTRATOR, PASSWORD)
    page.says("administrator")


def names_are_text(walk: Walk) -> None:
    """Whatever they look like: shown as they are, with what nobody sees by its number, and the right one is deleted."""
    page = walk.page
    for name in (HOSTILE, TURNED, LONG):
        walk.asked("queues.add", name=name)
    device = Device(walk.broker.mqtt_port, HOSTILE).connect()
    assert device.connected.wait(20)
    page.go("Queues")
    page.row(HOSTILE)
    page.row("invoiceU+202Etxt.exeU+200FU+0007")
    page.row(LONG)
    page.go("MQTT")
    page.row(HOSTILE)
    device.close()
    page.go("Queues")
    page.follow("invoiceU+202Etxt.exeU+200FU+0007")
    page.press("Publish")
    page.fill(body=HOSTILE)
    page.sure("Publish")
    page.press("Peek")
    page.find("//main//pre[contains(., 'onerror')]")
    page.press("Delete")
    page.sure("Delete")
    page.row(HOSTILE)
    left = {one["name"] for one in walk.rows("queues.list")}
    assert TURNED not in left
    assert {HOSTILE, LONG} <= left
    assert "taken" not in page.driver.title
    assert page.driver.find_elements("css selector", "img, main script, iframe") == []


def it_fits(walk: Walk) -> None:
    """Into 380 pixels and into 1,400, all of it: nothing is wider than the window."""
    page = walk.page
    for width in (380, 1400):
        resize(page.driver, width, 800, dark=width < 500)
        for view in VIEWS:
            page.open(view)
            page.driver.refresh()
            page.drawn()
            page.until(
                "view that was drawn", lambda: page.driver.execute_script("return document.readyState") == "complete"
            )
            wide = page.driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, f"{view} is {wide} pixels wide in {width}"


def the_keyboard_is_enough(walk: Walk) -> None:
    """To find a queue, to open its view, and to leave a dialog."""
    page = walk.page
    keys = page.driver.switch_to
    page.open("#/queues")
    page.row("came.later")
    page.find("//body").send_keys("/")
    keys.active_element.send_keys("came.later")
    page.says("1 of")
    page.driver.execute_script("arguments[0].focus()", page.find("//main//a[normalize-space()='came.later']"))
    keys.active_element.send_keys("\ue007")
    page.says("Queues / came.later")
    page.press("Purge")
    assert keys.active_element.text == "Cancel", "what destroys is not what Enter does"
    keys.active_element.send_keys("\ue00c")
    page.closed()


TASKS = (
    list_clients_and_sessions, publish_to_a_device, see_and_clear_what_is_retained, kick_a_device,
    ban_it_and_lift_the_ban, an_operator_does_not_ban_himself, end_a_session, add_a_user, somebody_without_tags,
    delete_the_user, names_are_text, it_fits, the_keyboard_is_enough,
)  # fmt: skip
AT_THE_CLIENTS = (*TASKS[:7], names_are_text)
"""Those for which the page has to be that of the broker where clients are connected."""
