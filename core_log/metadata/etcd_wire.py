"""etcd's v3 API as its JSON gateway has it: what is asked and what the answers mean, as decoded JSON; no I/O.

https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/ and rpc.proto. Bytes are base64, 64-bit numbers strings, and what
is zero, false or empty is left out of an answer. Answers that are not so raise `EtcdError`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from core_log.metadata.store import Guard, MetadataEntry, Put

TXN = "/v3/kv/txn"
RANGE = "/v3/kv/range"
WATCH = "/v3/watch"
LEASE_GRANT = "/v3/lease/grant"
LEASE_KEEPALIVE = "/v3/lease/keepalive"
LEASE_REVOKE = "/v3/lease/revoke"
AUTHENTICATE = "/v3/auth/authenticate"
STATUS = "/v3/maintenance/status"

HAS_LEADER = {"Grpc-Metadata-hasleader": "true"}
"""A watch with it ends when its member loses the quorum; without it, it is silent."""

OPERATIONS_MAX = 128
"""etcd's default of --max-txn-ops, for comparisons and for operations each."""

DEADLINE_EXCEEDED, NOT_FOUND, OUT_OF_RANGE, UNAVAILABLE, UNAUTHENTICATED = 4, 5, 11, 14, 16
"""Codes of gRPC."""
_UNKNOWN = 2

_WRONG_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")


class EtcdError(Exception):
    """etcd refuses, or says what nobody understands. `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def may_have_happened(self) -> bool:
        """Whether the request may have been carried out all the same: a leader was lost over it."""
        return self.code in (UNAVAILABLE, DEADLINE_EXCEEDED)

    @property
    def is_of_learner(self) -> bool:
        """Whether it is for this member alone, which has no vote yet: it carries out nothing, any other one does."""
        return "not supported for learner" in str(self)

    @property
    def is_denied(self) -> bool:
        """Whether the user, or nobody, may not do that."""
        return "permission denied" in str(self)

    @property
    def has_no_users(self) -> bool:
        """Whether there are no tokens, and none is wanted."""
        return "authentication is not enabled" in str(self)

    @property
    def wants_token(self) -> bool:
        """Whether another authentication may help; etcd does not always say so by the code."""
        return self.code == UNAUTHENTICATED or any(text in str(self) for text in _WRONG_TOKEN)


class Txn(NamedTuple):
    """The answer to a transaction: whether it was made, its revision, and, if not, what the keys asked for are."""

    succeeded: bool
    revision: int
    found: dict[bytes, MetadataEntry | None]


class Page(NamedTuple):
    """Some keys, as they are at a revision, and whether there are more behind them."""

    revision: int
    entries: list[MetadataEntry]
    more: bool


class Lease(NamedTuple):
    """A lease and the seconds it lives without being renewed; 0: it is not there any more."""

    id: int
    ttl_s: int
    revision: int = 0
    """Of the member that answers, when it was asked; 0 where it did not say."""


class WatchAnswer(NamedTuple):
    """What comes over a watch: events in order, or its end, with the revision before which all is compacted."""

    events: list[MetadataEntry]
    ended: bool
    compacted: int
    reason: str
    is_fragment: bool = False
    """The last revision may go on in the next answer."""


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EtcdError(_UNKNOWN, f"etcd's answer is not understood: {error!r}") from error


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(of: Mapping[str, Any], name: str) -> bytes:
    return b64decode(of.get(name, ""), validate=True)


def _number(of: Mapping[str, Any], name: str) -> int:
    return int(of.get(name, 0))


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _entry(kv: Mapping[str, Any]) -> MetadataEntry:
    return MetadataEntry(
        _bytes(kv, "key"), _bytes(kv, "value"), _number(kv, "mod_revision"), _number(kv, "create_revision")
    )


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which does not end in 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


# --- transactions and reads ----------------------------------------------------------------


def txn(guards: Sequence[Guard], puts: Sequence[Put], lease_id: int) -> dict[str, Any]:
    """Puts, and removals, if all guards hold; else the keys of the guards are read."""
    compares: list[dict[str, Any]] = []
    for guard in guards:
        key = _text(guard.key)
        for target, revision in (("MOD", guard.mod_revision), ("CREATE", guard.create_revision)):
            if revision is not None:
                name = f"{target.lower()}_revision"
                compares.append({"key": key, "target": target, "result": "EQUAL", name: str(revision)})
    operations: list[dict[str, Any]] = []
    for key_bytes, value in puts:
        if value is None:
            operations.append({"request_delete_range": {"key": _text(key_bytes)}})
        else:
            put = {"key": _text(key_bytes), "value": _text(value)}
            operations.append({"request_put": put | ({"lease": str(lease_id)} if lease_id else {})})
    reads = [{"request_range": {"key": _text(guard.key)}} for guard in guards]
    return {"compare": compares, "success": operations, "failure": reads}


def parse_txn(answer: Mapping[str, Any], guards: Sequence[Guard]) -> Txn:
    """The answer to `txn`. Raises EtcdError."""
    with _understood():
        if answer.get("succeeded", False):
            return Txn(True, _revision(answer), {})
        found: dict[bytes, MetadataEntry | None] = {}
        for guard, response in zip(guards, answer.get("responses", []), strict=True):
            kvs = response["response_range"].get("kvs", [])
            found[guard.key] = _entry(kvs[0]) if kvs else None
        return Txn(False, _revision(answer), found)


def read_key(key: bytes, revision: int = 0) -> dict[str, Any]:
    """One key, as it is at the time of the answer, or was at a revision."""
    return {"key": _text(key)} | ({"revision": str(revision)} if revision else {})


def read_page(first: bytes, end: bytes, limit: int, revision: int) -> dict[str, Any]:
    """The first `limit` keys from `first` to before `end`; at a revision, 0 for the current one."""
    asked = {"key": _text(first), "range_end": _text(end), "limit": str(limit)}
    return asked | ({"revision": str(revision)} if revision else {})


def parse_page(answer: Mapping[str, Any]) -> Page:
    """The answer to `read_key` and `read_page`. Raises EtcdError."""
    with _understood():
        return Page(_revision(answer), [_entry(kv) for kv in answer.get("kvs", [])], answer.get("more", False))


# --- watches -------------------------------------------------------------------------------


def watch(prefix: bytes, from_revision: int) -> dict[str, Any]:
    """All changes below `prefix` from a revision on, which is not 0: that would mean "from now". In fragments, where
    they are many.
    """
    if from_revision <= 0:
        raise ValueError(f"a watch cannot begin at revision {from_revision}")
    asked = {"key": _text(prefix), "range_end": _text(prefix_end(prefix)), "start_revision": str(from_revision)}
    return {"create_request": asked | {"fragment": True}}


def parse_watch(answer: Mapping[str, Any]) -> WatchAnswer:
    """One line of a watch. Raises EtcdError, also for the error that ends one."""
    with _understood():
        if "error" in answer:
            error = answer["error"]
            raise EtcdError(int(error.get("grpc_code", error.get("code", _UNKNOWN))), str(error.get("message", "")))
        result = answer["result"]
        events: list[MetadataEntry] = []
        for event in result.get("events", []):
            entry = _entry(event["kv"])
            if event.get("type", "PUT") == "DELETE":
                entry = MetadataEntry(entry.key, None, entry.mod_revision, 0)
            events.append(entry)
        compacted = _number(result, "compact_revision")
        ended = bool(result.get("canceled", False)) or compacted > 0
        reason, is_fragment = str(result.get("cancel_reason", "")), bool(result.get("fragment", False))
        return WatchAnswer(events, ended, compacted, reason, is_fragment)


# --- leases, users, versions ---------------------------------------------------------------


def lease_grant(ttl_s: int) -> dict[str, Any]:
    """A new lease."""
    return {"TTL": str(ttl_s)}


def lease(lease_id: int) -> dict[str, Any]:
    """To renew or revoke one."""
    return {"ID": str(lease_id)}


def parse_lease(answer: Mapping[str, Any]) -> Lease:
    """The answer to a grant or a renewal; a renewal of a lease that is gone has no TTL. Raises EtcdError."""
    with _understood():
        result = answer.get("result", answer)
        return Lease(int(result["ID"]), _number(result, "TTL"), _number(result.get("header", {}), "revision"))


def authenticate(user: str, password: str) -> dict[str, Any]:
    """Ask for a token."""
    return {"name": user, "password": password}


def parse_token(answer: Mapping[str, Any]) -> str:
    """Raises EtcdError."""
    with _understood():
        return str(answer["token"])


def parse_error(answer: Any, status: int) -> EtcdError:
    """What an answer with an HTTP status other than 200 says."""
    if isinstance(answer, Mapping) and isinstance(answer.get("error"), Mapping):  # of what is answered line by line
        answer = answer["error"]
    if not isinstance(answer, Mapping):
        text = f": {answer}" if isinstance(answer, str) and answer else ""
        return EtcdError(UNAVAILABLE if status >= 500 else _UNKNOWN, f"HTTP status {status}{text}")
    code = answer.get("grpc_code", answer.get("code", UNAVAILABLE if status >= 500 else _UNKNOWN))
    message = answer.get("message") or answer.get("error") or f"HTTP status {status}"
    return EtcdError(code if isinstance(code, int) else _UNKNOWN, str(message))


def parse_version(answer: Mapping[str, Any]) -> str:
    """The version in a member's status. Raises EtcdError."""
    with _understood():
        return str(answer["version"])


def version_warning(version: str) -> str | None:
    """What is wrong with a version of etcd, None if nothing is known of it.

    Below 3.5.13 and 3.4.31 a stalled former leader may revoke live leases and a watch may lose events after a
    compaction (etcd issues 15247 and 17612); in 3.5.0 to 3.5.2 a member that is killed may lose a transaction that was
    answered.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else (0, 0, 0)
    least = (3, 4, 31) if numbers[:2] == (3, 4) else (3, 5, 13)
    if numbers >= least:
        return None
    worse = ", and a killed member may lose what it answered" if (3, 5, 0) <= numbers < (3, 5, 3) else ""
    return (
        f"etcd {version} is older than {'.'.join(map(str, least))}: "
        f"leases may end early and changes may go unnoticed{worse}"
    )
