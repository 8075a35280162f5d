"""The JSON of etcd's gateway: what is asked, what was really answered, and what nobody understands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_wire import EtcdError, Lease, Page, Txn, WatchAnswer
from core_log.metadata.store import Guard, MetadataEntry

HEADER = '"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"3","raft_term":"2"}'
FOO = '{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"2"}'
GUARD = Guard(b"foo", 2)

ANSWERS: list[tuple[Any, str, Any]] = [
    (lambda a: wire.parse_txn(a, [GUARD]), f'{{{HEADER},"succeeded":true,"responses":[]}}', Txn(True, 3, {})),
    (
        lambda a: wire.parse_txn(a, [GUARD, Guard(b"z", 0)]),
        f'{{{HEADER},"responses":[{{"response_range":{{"header":{{"revision":"3"}},"kvs":[{FOO}],"count":"1"}}}},'
        '{"response_range":{"header":{"revision":"3"}}}]}',
        Txn(False, 3, {b"foo": MetadataEntry(b"foo", b"", 3, 2), b"z": None}),
    ),
    (
        wire.parse_page,
        f'{{{HEADER},"kvs":[{FOO}],"more":true,"count":"2"}}',
        Page(3, [MetadataEntry(b"foo", b"", 3, 2)], True),
    ),
    (wire.parse_page, f"{{{HEADER}}}", Page(3, [], False)),
    (wire.parse_watch, f'{{"result":{{{HEADER},"created":true}}}}', WatchAnswer([], False, 0, "")),
    (
        wire.parse_watch,
        f'{{"result":{{{HEADER},"events":[{{"kv":{FOO}}},{{"type":"DELETE","kv":{{"key":"Zm9v","mod_revision":"4"}}}}]}}}}',
        WatchAnswer([MetadataEntry(b"foo", b"", 3, 2), MetadataEntry(b"foo", None, 4, 0)], False, 0, ""),
    ),
    (
        wire.parse_watch,
        '{"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"3"}}',
        WatchAnswer([], True, 3, ""),
    ),
    (
        wire.parse_watch,
        f'{{"result":{{{HEADER},"canceled":true,"cancel_reason":"no permission"}}}}',
        WatchAnswer([], True, 0, "no permission"),
    ),
    (wire.parse_lease, f'{{{HEADER},"ID":"2324035530889970443","TTL":"3"}}', Lease(2324035530889970443, 3, 3)),
    (wire.parse_lease, f'{{"result":{{{HEADER},"ID":"5","TTL":"3"}}}}', Lease(5, 3, 3)),
    (wire.parse_lease, f'{{"result":{{{HEADER},"ID":"5"}}}}', Lease(5, 0, 3)),
    (wire.parse_token, f'{{{HEADER},"token":"abc.12"}}', "abc.12"),
    (wire.parse_version, f'{{{HEADER},"version":"3.5.1","dbSize":"20480"}}', "3.5.1"),
]


@pytest.mark.parametrize(("parse", "answer", "meaning"), ANSWERS)
def test_answers(parse: Any, answer: str, meaning: Any) -> None:
    assert parse(json.loads(answer)) == meaning


def test_an_error_in_a_watch_is_raised() -> None:
    line = '{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Unavailable"}}'
    with pytest.raises(EtcdError, match="no leader") as caught:
        wire.parse_watch(json.loads(line))
    assert caught.value.code == wire.UNAVAILABLE
    assert caught.value.may_have_happened


def test_requests() -> None:
    assert wire.txn([Guard(b"foo", 2), Guard(b"z", 0, 7)], [(b"foo", b"bar"), (b"z", None)], 9) == {
        "compare": [
            {"key": "Zm9v", "target": "MOD", "result": "EQUAL", "mod_revision": "2"},
            {"key": "eg==", "target": "MOD", "result": "EQUAL", "mod_revision": "0"},
            {"key": "eg==", "target": "CREATE", "result": "EQUAL", "create_revision": "7"},
        ],
        "success": [
            {"request_put": {"key": "Zm9v", "value": "YmFy", "lease": "9"}},
            {"request_delete_range": {"key": "eg=="}},
        ],
        "failure": [{"request_range": {"key": "Zm9v"}}, {"request_range": {"key": "eg=="}}],
    }
    assert wire.read_page(b"/a/", b"/a0", 5, 0) == {"key": "L2Ev", "range_end": "L2Ew", "limit": "5"}
    assert wire.read_page(b"/a/", b"/a0", 5, 8)["revision"] == "8"
    asked = {"key": "L2Ev", "range_end": "L2Ew", "start_revision": "4", "fragment": True}
    assert wire.watch(b"/a/", 4) == {"create_request": asked}
    with pytest.raises(ValueError, match="revision 0"):
        wire.watch(b"/a/", 0)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["header", "revision", "result", "events", "kv", "kvs", "key", "ID", "TTL", "responses", "error"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_what_is_not_understood_is_an_error_and_nothing_else(answer: Any) -> None:
    parsers = [wire.parse_page, wire.parse_watch, wire.parse_lease, wire.parse_token, wire.parse_version]
    for parse in [*parsers, lambda a: wire.parse_txn(a, [GUARD])]:
        try:
            parse(answer)
        except EtcdError:
            pass
    assert isinstance(wire.parse_error(answer, 500), EtcdError)


@pytest.mark.parametrize(
    ("answer", "status", "code", "wants_token"),
    [
        ({"error": "x", "code": 5, "message": "etcdserver: requested lease not found"}, 404, 5, False),
        ({"error": "etcdserver: invalid auth token", "code": 16}, 401, 16, True),
        ({"error": "etcdserver: user name is empty", "code": 3}, 400, 3, True),
        ({"error": "etcdserver: revision of auth store is old", "code": 3}, 400, 3, True),
        ({"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}}, 503, 14, False),
        ({"error": {"code": 16, "message": "etcdserver: invalid auth token"}}, 401, 16, True),
        (None, 502, 14, False),
        ("Not Found", 404, 2, False),
    ],
)
def test_errors(answer: Any, status: int, code: int, wants_token: bool) -> None:
    error = wire.parse_error(answer, status)
    assert (error.code, error.wants_token) == (code, wants_token)
    assert "{" not in str(error)


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("3.5.13", False), ("3.5.21", False), ("3.6.0", False), ("4.0.0", False), ("3.4.31", False), ("3.4.40", False),
        ("3.5.12", True), ("3.4.30", True), ("3.4.23", True), ("3.3.27", True), ("what", True),
    ],
)  # fmt: skip
def test_old_versions_are_warned_of(version: str, warned: bool) -> None:
    assert (wire.version_warning(version) is not None) is warned


def test_the_versions_that_lose_transactions_are_told_of() -> None:
    assert "may lose what it answered" in (wire.version_warning("3.5.1") or "")
    assert "may lose what it answered" not in (wire.version_warning("3.5.3") or "")
