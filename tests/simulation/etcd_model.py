"""etcd as its clients see it through the JSON gateway, in memory and on trio's clock, with faults to choose.

It answers what etcd 3.5 answers, zeros and empty values left out, errors with their codes; `tests/core_log/metadata`
runs the same contract against both. It does not model what only a broken etcd does.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from core_log.metadata.etcd_client import Unreachable
from core_log.metadata.etcd_wire import EtcdError

OPERATIONS_MAX = 128
_FRAGMENT_EVENTS = 64
"""etcd goes by bytes, and a fragment of it has thousands."""
_TICK_S = 0.5
"""How often etcd looks for leases that have ended."""
NOBODY = 3, "etcdserver: user name is empty"
LEARNER = EtcdError(9, "etcdserver: rpc not supported for learner")
"""What a learner answers to all but a question for its status."""


class KeyValue(NamedTuple):
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Event(NamedTuple):
    revision: int
    key: bytes
    new: KeyValue | None


@dataclass
class Lease:
    ttl_s: float
    ends: float


@dataclass
class Member:
    """What is wrong with a member."""

    down: bool = False
    """Nobody reaches it; its watches break."""
    mute: bool = False
    """It takes requests and answers nothing; its watches say nothing."""
    cut: bool = False
    """It has no quorum."""
    learner: bool = False
    """It is new, and has no vote yet."""
    lag_s: float = 0.0
    """How late its watches are."""


@dataclass
class EtcdModel:
    """One etcd. Run `run` for leases to end by themselves."""

    member_count: int = 1
    revision: int = 1
    compacted: int = 0
    lose_answers: int = 0
    """So many of the next requests that change something are carried out, and their answers are lost."""
    users: dict[str, str] = field(default_factory=dict)
    """With users, requests need a token."""
    client_cert_auth: bool = False
    """Then nobody is somebody without a name, who may do nothing."""
    full: bool = False
    """Nothing more is put: the space that etcd was given is used up."""
    event_s: float = 0.0
    """How long a watch takes for each event."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member() for _ in range(self.member_count)]
        self.keys: dict[bytes, KeyValue] = {}
        self.events: list[Event] = []
        self.leases: dict[int, Lease] = {}
        self.tokens: set[str] = set()
        self._ids = 7_000
        self._changed = trio.Event()

    # --- faults ------------------------------------------------------------------------

    def notify(self) -> None:
        """Whoever waits looks again; call it after changing a member."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def fault(self, member: int, **faults: Any) -> None:
        """Change what is wrong with a member."""
        for name, value in faults.items():
            setattr(self.members[member], name, value)
        self.notify()

    def compact(self, revision: int) -> None:
        """Forget all events before a revision."""
        self.compacted = revision
        self.notify()

    def change_leader(self) -> None:
        """The new one grants every lease anew."""
        for lease in self.leases.values():
            lease.ends = trio.current_time() + lease.ttl_s

    def restore(self, revision: int) -> None:
        """Go back to what was there at a revision, as from a backup."""
        kept = [event for event in self.events if event.revision <= revision]
        self.keys = {}
        for event in kept:
            if event.new is None:
                self.keys.pop(event.key, None)
            else:
                self.keys[event.key] = event.new
        self.events, self.revision = kept, revision
        self.notify()

    async def run(self) -> None:
        """Leases end."""
        while True:
            await trio.sleep(_TICK_S)
            for lease_id in [lease_id for lease_id, lease in self.leases.items() if lease.ends <= trio.current_time()]:
                self._end_lease(lease_id)

    # --- what it does ------------------------------------------------------------------

    def _end_lease(self, lease_id: int) -> None:
        del self.leases[lease_id]
        doomed = [key for key, kv in self.keys.items() if kv.lease == lease_id]
        if doomed:
            self.revision += 1
            for key in doomed:
                self._delete(key)
            self.notify()

    def _delete(self, key: bytes) -> None:
        del self.keys[key]
        self.events.append(Event(self.revision, key, None))

    def _put(self, request: Mapping[str, Any]) -> None:
        key, lease = _bytes(request, "key"), int(request.get("lease", 0))
        old = self.keys.get(key)
        created, version = (old.create_revision, old.version) if old is not None else (self.revision, 0)
        new = KeyValue(key, _bytes(request, "value"), created, self.revision, version + 1, lease)
        self.keys[key] = new
        self.events.append(Event(self.revision, key, new))

    def _header(self) -> dict[str, Any]:
        return {"cluster_id": "1", "member_id": "2", "revision": str(self.revision), "raft_term": "2"}

    def txn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        compares, success = body.get("compare", []), body.get("success", [])
        if max(map(len, (compares, success, body.get("failure", [])))) > OPERATIONS_MAX:
            raise EtcdError(3, "etcdserver: too many operations in txn request")
        if self.full and any("request_put" in operation for operation in success):
            raise EtcdError(8, "etcdserver: mvcc: database space exceeded")
        written = [
            _bytes(operation.get("request_put") or operation["request_delete_range"], "key") for operation in success
        ]
        if len(set(written)) != len(written):
            raise EtcdError(3, "etcdserver: duplicate key given in txn request")
        succeeded = all(self._holds(compare) for compare in compares)
        operations = success if succeeded else body.get("failure", [])
        leases = [
            int(operation["request_put"].get("lease", 0)) for operation in operations if "request_put" in operation
        ]
        if any(lease and lease not in self.leases for lease in leases):
            raise EtcdError(5, "etcdserver: requested lease not found")
        writes = [
            operation
            for operation in operations
            if "request_put" in operation
            or ("request_delete_range" in operation and _bytes(operation["request_delete_range"], "key") in self.keys)
        ]
        self.revision += bool(writes)
        responses = []
        for operation in operations:
            if "request_put" in operation:
                self._put(operation["request_put"])
                responses.append({"response_put": {"header": {"revision": str(self.revision)}}})
            elif "request_delete_range" in operation:
                key = _bytes(operation["request_delete_range"], "key")
                if key in self.keys:
                    self._delete(key)
                responses.append({"response_delete_range": {"header": {"revision": str(self.revision)}}})
            else:
                responses.append({"response_range": self.range(operation["request_range"])})
        if writes:
            self.notify()
        answer: dict[str, Any] = {"header": self._header(), "responses": responses}
        return answer | ({"succeeded": True} if succeeded else {})

    def _holds(self, compare: Mapping[str, Any]) -> bool:
        kv = self.keys.get(_bytes(compare, "key"))
        name = {"MOD": "mod_revision", "CREATE": "create_revision"}[compare["target"]]
        return (getattr(kv, name) if kv is not None else 0) == int(compare.get(name, 0))

    def range(self, body: Mapping[str, Any]) -> dict[str, Any]:
        first, end, at = _bytes(body, "key"), _bytes(body, "range_end"), int(body.get("revision", 0))
        if at > self.revision:
            raise EtcdError(11, "etcdserver: mvcc: required revision is a future revision")
        if at and at < self.compacted:
            raise EtcdError(11, "etcdserver: mvcc: required revision has been compacted")
        keys = self._keys_at(at) if at else self.keys
        found = [keys[key] for key in sorted(keys) if (first <= key < end if end else key == first)]
        limit = int(body.get("limit", 0)) or len(found)
        answer: dict[str, Any] = {"header": self._header()}
        if found:
            answer |= {"kvs": [_json(kv) for kv in found[:limit]], "count": str(len(found))}
        return answer | ({"more": True} if len(found) > limit else {})

    def _keys_at(self, revision: int) -> dict[bytes, KeyValue]:
        keys: dict[bytes, KeyValue] = {}
        for event in self.events:
            if event.revision > revision:
                break
            if event.new is None:
                keys.pop(event.key, None)
            else:
                keys[event.key] = event.new
        return keys

    def grant(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._ids += 1
        ttl_s = max(int(body["TTL"]), 2)
        self.leases[self._ids] = Lease(ttl_s, trio.current_time() + ttl_s)
        return {"header": self._header(), "ID": str(self._ids), "TTL": str(ttl_s)}

    def keepalive(self, body: Mapping[str, Any]) -> dict[str, Any]:
        lease = self.leases.get(int(body["ID"]))
        result = {"header": self._header(), "ID": body["ID"]}
        if lease is not None:
            lease.ends = trio.current_time() + lease.ttl_s
            result["TTL"] = str(math.ceil(lease.ttl_s))
        return {"result": result}

    def revoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if int(body["ID"]) not in self.leases:
            raise EtcdError(5, "etcdserver: requested lease not found")
        self._end_lease(int(body["ID"]))
        return {"header": self._header()}

    def authenticate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not self.users:
            raise EtcdError(9, "etcdserver: authentication is not enabled")
        if self.users.get(body["name"]) != body["password"]:
            raise EtcdError(3, "etcdserver: authentication failed, invalid user ID or password")
        self._ids += 1
        self.tokens.add(f"token.{self._ids}")
        return {"header": self._header(), "token": f"token.{self._ids}"}

    def status(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"header": self._header(), "version": "3.5.13", "dbSize": "20480"}

    def check_token(self, headers: Mapping[str, str]) -> None:
        if not self.users:
            return
        if "Authorization" not in headers:
            raise EtcdError(*((7, "etcdserver: permission denied") if self.client_cert_auth else NOBODY))
        if headers["Authorization"] not in self.tokens:
            raise EtcdError(16, "etcdserver: invalid auth token")

    # --- how it is reached -------------------------------------------------------------

    async def wait(self) -> None:
        """Until anything has changed."""
        await self._changed.wait()


class ModelTransport:
    """A client's connection to a model; `delay_s` each way."""

    def __init__(self, model: EtcdModel, *, delay_s: float = 0.001) -> None:
        self.model = model
        self.members = [f"member{number}:2379" for number in range(model.member_count)]
        self.delay_s = delay_s
        self.cut_off = False
        """This client reaches nobody."""
        self._answers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/v3/kv/txn": model.txn,
            "/v3/kv/range": model.range,
            "/v3/lease/grant": model.grant,
            "/v3/lease/keepalive": model.keepalive,
            "/v3/lease/revoke": model.revoke,
            "/v3/auth/authenticate": model.authenticate,
            "/v3/maintenance/status": model.status,
        }

    async def call(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        model = self.model
        model.calls.append(path)
        await trio.sleep(self.delay_s)
        state = model.members[member]
        if state.down or self.cut_off:
            raise Unreachable(f"{self.members[member]} refuses connections", sent=False)
        if state.mute:
            await trio.sleep_forever()
        if state.learner and not path.endswith("/status"):
            raise LEARNER
        if state.cut and not path.endswith(("/status", "/authenticate")):
            await trio.sleep(7)
            raise EtcdError(14, "etcdserver: request timed out")
        if not path.endswith("/authenticate"):
            model.check_token(headers)
        answer = self._answers[path](body)
        if model.lose_answers and path.endswith(("/txn", "/grant", "/keepalive", "/revoke")):
            model.lose_answers -= 1
            raise Unreachable("the connection was reset", sent=True)
        await trio.sleep(self.delay_s)
        return answer

    @asynccontextmanager
    async def stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        assert path == "/v3/watch"
        self.model.calls.append(path)
        if self.model.members[member].down or self.cut_off:
            raise Unreachable(f"{self.members[member]} refuses connections", sent=False)
        if self.model.members[member].learner:
            raise LEARNER
        self.model.check_token(headers)
        lines = self._watch(member, body["create_request"], headers)
        try:
            yield lines
        finally:
            await lines.aclose()  # type: ignore[attr-defined]

    async def _watch(
        self, member: int, request: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[Mapping[str, Any]]:
        model, state = self.model, self.model.members[member]
        first, end = _bytes(request, "key"), _bytes(request, "range_end")
        revision = int(request.get("start_revision", 0)) or model.revision + 1
        leader_wanted = "Grpc-Metadata-hasleader" in headers
        yield {"result": {"header": model._header(), "created": True}}
        while True:
            if state.down or self.cut_off:
                raise Unreachable("the connection was reset", sent=True)
            if state.cut and leader_wanted:
                yield {"error": {"grpc_code": 14, "http_code": 503, "message": "rpc error: etcdserver: no leader"}}
                return
            if state.cut or state.mute:
                await model.wait()
                continue
            if revision < model.compacted:
                yield {"result": {"header": {}, "canceled": True, "compact_revision": str(model.compacted)}}
                await trio.sleep_forever()  # the stream stays open, as etcd's does
            if revision > model.revision:
                await model.wait()
                continue
            if state.lag_s:
                await trio.sleep(state.lag_s)
            reached = model.revision
            events = [
                _event(event)
                for event in model.events
                if revision <= event.revision <= reached and first <= event.key < end
            ]
            revision = reached + 1
            while events:
                size = _FRAGMENT_EVENTS if request.get("fragment") else len(events)
                part, events = events[:size], events[size:]
                if model.event_s:
                    await trio.sleep(model.event_s * len(part))
                fragment = {"fragment": True} if events else {}
                yield {"result": {"header": model._header(), "events": part, **fragment}}


def _bytes(of: Mapping[str, Any], name: str) -> bytes:
    return b64decode(of.get(name, ""), validate=True)


def _json(kv: KeyValue) -> dict[str, Any]:
    return {
        "key": b64encode(kv.key).decode(),
        "create_revision": str(kv.create_revision),
        "mod_revision": str(kv.mod_revision),
        "version": str(kv.version),
        **({"value": b64encode(kv.value).decode()} if kv.value else {}),
        **({"lease": str(kv.lease)} if kv.lease else {}),
    }


def _event(event: Event) -> dict[str, Any]:
    if event.new is not None:
        return {"kv": _json(event.new)}
    return {"type": "DELETE", "kv": {"key": b64encode(event.key).decode(), "mod_revision": str(event.revision)}}
