"""`POST /api/NAME` of a real broker: who may ask for what, and what is said to those that may not."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.web_api import STATUSES
from protocols.native.errors import RETRIABLE, ErrorCode
from tests.gateway.test_websocket import answer_of
from tests.support import BrokerProcess, broker_process
from tests.support.web import HOST, Api, ApiError, refusal, with_tls

TOO_LARGE = f"HTTP/1.1 413 {HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase}"
CONFIG = """
[http]
loopback_without_user = {open}
request_timeout_ms = 700
operation_timeout_ms = 20000
body_bytes_max = 2048
origins = "https://proxy.example, https://other.example:8443"
"""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("api")
    arguments = with_tls(directory, authority, CONFIG.format(open="true"))
    with broker_process(directory / "data", doors=("http", "https"), arguments=arguments) as process:
        api = Api(process.ports["http"])
        for name, tags in (("eve", []), ("mona", ["monitoring"]), ("ada", ["administrator"])):
            api("users.add", name=name, password="secret", tags=tags)
        api("permissions.set", vhost="/", name="ada", configure=".*", write=".*", read=".*")
        api("permissions.set", vhost="/", name="eve", configure="^mine$", write="^mine$", read="^mine$")
        yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.ports["http"])


def test_operations_are_those_of_the_broker(api: Api) -> None:
    assert api("queues.add", name="jobs") is None
    columns, rows = api("queues.list").values()
    assert [row[columns.index("name")] for row in rows] == ["jobs"]
    for start in (1, 10**30):
        assert api("queues.list", start=start)["rows"] == []
    for arguments in ({"x-max-length": 1 << 64}, {"mine": [-(1 << 64)]}):  # the catalog would keep them as text
        assert refusal(api, "queues.add", name="large", arguments=arguments) == (400, "INVALID_ARGUMENT")
        assert refusal(api, "exchanges.add", name="large", arguments=arguments) == (400, "INVALID_ARGUMENT")
        assert refusal(api, "queues.add", name="q", durable=False, arguments=arguments) == (400, "INVALID_ARGUMENT")
    assert refusal(api, "queues.describe", name="large") == (404, "NOT_FOUND")
    assert refusal(api, "policies.set", name="p", pattern="", definition={"max-length": 1 << 64})[0] == 400
    assert refusal(api, "queues.describe", name="nobody") == (404, "NOT_FOUND")
    assert refusal(api, "queues.describe") == (400, "INVALID_ARGUMENT")
    assert refusal(api, "queues.describe", name=7) == (400, "INVALID_ARGUMENT")
    assert refusal(api, "queues.describe", name="jobs", more=1) == (400, "INVALID_ARGUMENT")
    assert refusal(api, "queues") == (404, "NOT_FOUND")
    assert refusal(api, "queues.add", name="jobs", durable=False) == (409, "PRECONDITION_FAILED")


def test_users_have_the_rights_of_their_tags(broker: BrokerProcess) -> None:
    port = broker.ports["http"]
    eve, mona, ada = (Api(port, name, "secret") for name in ("eve", "mona", "ada"))
    assert [one("whoami")["tags"] for one in (eve, mona, ada)] == [[], ["monitoring"], ["administrator"]]
    assert refusal(eve, "queues.list") == (403, "ACCESS_REFUSED")
    assert mona("queues.list")["rows"] != []
    assert refusal(mona, "users.list") == (403, "ACCESS_REFUSED")
    assert refusal(mona, "users.add", name="x", password="y") == (403, "ACCESS_REFUSED")
    assert ada("users.add", name="x", password="y") is None
    assert ada("users.delete", name="x") is None
    assert refusal(Api(port, "eve", "wrong"), "whoami") == (401, "AUTHENTICATION_FAILED")
    assert refusal(Api(port, "nobody", "secret"), "whoami") == (401, "AUTHENTICATION_FAILED")
    assert refusal(Api(port, "guest", "wrong"), "whoami") == (401, "AUTHENTICATION_FAILED")


def test_who_is_banned_may_ask_nothing(broker: BrokerProcess) -> None:
    port = broker.ports["http"]
    eve, ada = Api(port, "eve", "secret"), Api(port, "ada", "secret")
    ada("bans.add", kind="user", value="eve", reason="enough")
    with pytest.raises(ApiError, match="403 ACCESS_REFUSED: user eve is banned: enough"):
        eve("whoami")
    ada("bans.delete", kind="user", value="eve")
    assert eve("whoami")["user"] == "eve"
    ada("bans.add", kind="client_id", value="http")  # of that name is nobody: least of all the door itself
    assert eve("topics.list")["rows"] == []
    ada("bans.delete", kind="client_id", value="http")
    for kind, value in (("user", "ada"), ("address", f"{HOST}/8".replace("0.1/", "0.0/"))):
        assert refusal(ada, "bans.add", kind=kind, value=value) == (409, "PRECONDITION_FAILED")


def test_all_that_may_be_asked_for_is_listed(api: Api) -> None:
    columns, rows = api("operations.list").values()
    tags = {row[columns.index("name")]: row[columns.index("tags")] for row in rows}
    assert tags["bans.add"] == ["administrator"]
    assert tags["topics.list"] is None
    assert "records.read" in tags


def test_topics_are_those_that_a_user_may_have(broker: BrokerProcess, api: Api) -> None:
    eve = Api(broker.ports["http"], "eve", "secret")
    api("topics.create", topic="others")
    eve("topics.create", topic="mine")
    assert eve("topics.list")["rows"] == [["mine", 1]]
    assert eve("records.produce", topic="mine", value="hers") == {"partition": 0, "offset": 0}
    assert refusal(eve, "topics.create", topic="more") == (403, "ACCESS_REFUSED")
    for name in ("topics.describe", "topics.delete"):
        assert refusal(eve, name, topic="others") == (403, "ACCESS_REFUSED")
    assert refusal(eve, "records.read", topic="others", partition=0) == (403, "ACCESS_REFUSED")
    assert refusal(eve, "records.produce", topic="others", value="x") == (403, "ACCESS_REFUSED")
    assert refusal(eve, "groups.reset", group="g", to="latest", topics=["others"]) == (403, "ACCESS_REFUSED")
    assert refusal(Api(broker.ports["http"], "mona", "secret"), "topics.list") == (403, "ACCESS_REFUSED")


@pytest.mark.parametrize(
    ("body", "headers", "status", "error"),
    [
        (b"{}", {"Content-Type": ""}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"", {}, 400, "INVALID_REQUEST"),
        (b"{", {}, 400, "INVALID_REQUEST"),
        (b"[]", {}, 400, "INVALID_REQUEST"),
        (b"null", {}, 400, "INVALID_REQUEST"),
        (b'{"a":\xff}', {}, 400, "INVALID_REQUEST"),
        (b'{"a":"\xff"}', {}, 400, "INVALID_REQUEST"),
        (b'{"\xed\xa0\x80":1}', {}, 400, "INVALID_REQUEST"),
        (b'{"a":' + b"[" * 2000, {}, 400, "INVALID_REQUEST"),
        (b'{"a":NaN}', {}, 400, "INVALID_REQUEST"),
        (b'{"start":1e400}', {}, 400, "INVALID_REQUEST"),
        (b'{"start":' + b"9" * 5000 + b"}", {}, 413, "REQUEST_TOO_LARGE"),
        (b'{"start":' + b"9" * 1000 + b"e9}", {}, 400, "INVALID_REQUEST"),
        (b" " * 2049, {}, 413, "REQUEST_TOO_LARGE"),
        (b"{}", {"Origin": "http://evil.example"}, 403, "ACCESS_REFUSED"),
        (b"{}", {"Origin": "null"}, 403, "ACCESS_REFUSED"),
        (b"{}", {"Origin": f"https://{HOST}"}, 403, "ACCESS_REFUSED"),
        (b"{}", {"Authorization": "Bearer x"}, 401, "AUTHENTICATION_FAILED"),
        (b"{}", {"Host": "evil.example"}, 401, "AUTHENTICATION_FAILED"),
        (b"{}", {"Host": "127.0.0.1.evil.example:80"}, 401, "AUTHENTICATION_FAILED"),
    ],
)
def test_what_is_no_request_of_the_page_is_refused(
    api: Api, body: bytes, headers: dict[str, str], status: int, error: str
) -> None:
    if not headers.get("Content-Type", "x"):
        headers = {"Content-Type": "x"}
    with pytest.raises(ApiError) as caught:
        api.send("queues.list", body, headers)
    assert (caught.value.status, caught.value.error) == (status, error)
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost"},
        {"Host": "LOCALHOST:99", "Origin": "http://localhost:99"},
        {"Host": "[::1]:99"},
        {"Host": "127.0.0.1", "Origin": "http://127.0.0.1"},
        {"Origin": "https://other.example:8443"},
        {"Content-Type": "application/json; charset=utf-8"},
    ],
)
def test_the_page_may_ask_where_it_is_from(api: Api, headers: dict[str, str]) -> None:
    assert api.send("whoami", b"{}", headers)["user"] == "guest"


def test_only_post_asks_for_operations(api: Api) -> None:
    for method in ("GET", "PUT", "OPTIONS"):
        with pytest.raises(ApiError) as caught:
            api.send("whoami", b"{}" if method == "PUT" else None, {}, method=method)
        assert (caught.value.status, caught.value.error) == (405, "METHOD_NOT_ALLOWED")


HEAD = f"POST /api/whoami HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"


def raw(broker: BrokerProcess, *pieces: bytes) -> tuple[str, dict[str, str], Any]:
    with socket.create_connection((HOST, broker.ports["http"]), 10) as sock:
        for piece in pieces:
            sock.sendall(piece)
        status, headers, body = answer_of(sock)
    return status, headers, json.loads(body)


def test_a_body_may_come_in_chunks(broker: BrokerProcess) -> None:
    head = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert raw(broker, head, b"1\r\n{\r\n", b"1;x=y\r\n}\r\n", b"0\r\n\r\n")[2]["user"] == "guest"
    status, _, said = raw(broker, head, *[b"400\r\n" + b" " * 1024 + b"\r\n"] * 3)
    assert (status, said["error"]) == (TOO_LARGE, "REQUEST_TOO_LARGE")
    assert raw(broker, head, b"nonsense\r\n")[0] == "HTTP/1.1 400 Bad Request"


def test_what_is_announced_as_too_long_is_not_waited_for(broker: BrokerProcess) -> None:
    for length in ("2049", "9" * 20):
        status, _, _ = raw(broker, f"{HEAD}Content-Length: {length}\r\n\r\n".encode())
        assert status == TOO_LARGE
    with socket.create_connection((HOST, broker.ports["http"]), 10) as sock:
        sock.sendall(f"{HEAD}Content-Length: {'9' * 5000}\r\n\r\n".encode())
        assert answer_of(sock)[0] == "HTTP/1.1 400 Bad Request"


def test_a_client_may_ask_whether_its_body_is_wanted(broker: BrokerProcess) -> None:
    with socket.create_connection((HOST, broker.ports["http"]), 10) as sock:
        sock.sendall(f"{HEAD}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode())
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"{}")
        assert answer_of(sock)[0] == "HTTP/1.1 200 OK"


def test_a_body_that_does_not_come_is_given_up(broker: BrokerProcess) -> None:
    status, _, said = raw(broker, f"{HEAD}Content-Length: 2\r\n\r\n".encode(), b"{")
    assert (status, said["error"]) == ("HTTP/1.1 408 Request Timeout", "REQUEST_TIMED_OUT")


def test_nothing_is_read_for_who_is_not_let_in(broker: BrokerProcess) -> None:
    head = HEAD.replace(HOST, "evil.example")
    status, headers, said = raw(broker, f"{head}Content-Length: 2\r\n\r\n".encode())
    assert (status, said["error"]) == ("HTTP/1.1 401 Unauthorized", "AUTHENTICATION_FAILED")
    assert headers["www-authenticate"].startswith("Basic ")


def test_the_door_speaks_tls_and_a_certificate_is_a_user(
    broker: BrokerProcess, authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    port = broker.ports["https"]
    assert Api(port, "eve", "secret", tls=context)("whoami")["user"] == "eve"
    own = {"Origin": f"https://{HOST}:{port}"}
    assert Api(port, tls=context).send("whoami", b"{}", own)["user"] == "guest"
    shown = tmp_path / "ada.pem"
    authority.issue_cert(common_name="ada").private_key_and_cert_chain_pem.write_to_path(str(shown))
    context.load_cert_chain(str(shown))
    ada = Api(port, tls=context)
    assert ada("whoami")["user"] == "ada"
    assert ada("records.produce", topic="mine", value="by certificate")["partition"] == 0


def test_where_clients_without_a_user_are_not_wanted(tmp_path: Path) -> None:
    for section, terms in (("http", CONFIG.format(open="false")), ("native", "[native]\nanonymous_loopback = false\n")):
        config = tmp_path / f"{section}.toml"
        config.write_text(terms)
        arguments = ("--config", str(config))
        with broker_process(tmp_path / section, doors=("http",), arguments=arguments) as process:
            port = process.ports["http"]
            assert refusal(Api(port), "whoami") == (401, "AUTHENTICATION_FAILED")
            guest = Api(port, "guest", "guest")
            assert guest("whoami")["user"] == "guest"
            guest("topics.create", topic="t")
            assert guest("records.produce", topic="t", value="x") == {"partition": 0, "offset": 0}


def test_every_error_has_a_status() -> None:
    assert {STATUSES[code] for code in RETRIABLE} == {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
    assert {code for code in ErrorCode if code not in STATUSES} == {
        ErrorCode.MALFORMED_FRAME, ErrorCode.INVALID_REQUEST, ErrorCode.HELLO_REQUIRED, ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_BATCH, ErrorCode.INVALID_ARGUMENT,
    }  # fmt: skip
