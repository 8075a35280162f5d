"""Limits and settings of the Kafka door, with their units."""

from __future__ import annotations

import msgspec

from core_log.setting_ranges import Bytes, Count, CountOrZero, FrameBytes, Milliseconds, MillisecondsOrZero, Port


class KafkaConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the adapter can be told."""

    request_bytes_max: FrameBytes = 100 << 20
    """Largest request, without its length prefix. Checked when the prefix is read, before anything is kept."""
    login_request_bytes_max: FrameBytes = 1 << 20
    """The same until the client has logged in."""
    request_elements_max: Count = 250_000
    """Elements of all arrays of a request; an element takes about 400 bytes of memory."""
    replies_bytes_max: Bytes = 16 << 20
    """Replies of a connection that its client has not read yet, or that wait for the reply to an earlier request; above
    that no more of its requests are served.
    """
    fetch_bytes_max: FrameBytes = 55 << 20
    """Most record bytes in one reply; only a single batch that is larger goes beyond it."""
    fetch_wait_ms_max: MillisecondsOrZero = 60_000
    fetch_sessions_max: CountOrZero = 1000
    """Fetch sessions at once, of all clients; who gets none says all in each request."""
    fetch_session_partitions_max: CountOrZero = 100_000
    """Of all fetch sessions together."""
    fetch_session_eviction_ms: Milliseconds = 120_000
    """A session that is not used for so long ends. One that exists for so long gives way to a larger one."""
    produce_timeout_ms_max: Milliseconds = 300_000
    admin_timeout_ms_max: Milliseconds = 30_000
    """How long a request of an administrator waits for others at most."""
    requests_in_flight_max: Count = 1000
    """Requests of one connection that may wait for their reply; no more are served until then."""
    login_timeout_ms: Milliseconds = 10_000
    """How long a new connection may stay silent."""
    advertised_host: str = ""
    """What metadata says about how to reach this broker; empty: in a cluster `cluster.advertise`, else the address that
    the client has dialled."""
    advertised_port: Port = 0
    """Likewise; 0: the one that is listened on, or that was dialled."""
    anonymous_loopback: bool = True
    """Clients on this machine need no user name; others always do."""
    anonymous_user: str = "guest"
    """The user whose rights count for clients without a user name. One that is not there: nobody."""
    certificate_login: bool = True
    """A client with a verified certificate that does not log in otherwise is the user whose name it has."""
    virtual_host: str = "/"
    """Whose rights count."""
    static_client_ids: str = ""
    """Regular expression (RE2). Members of classic groups whose whole client id matches and that name no
    `group.instance.id` are static members by their client id, for clients that cannot be ones: who comes back within
    the session timeout has the partitions that he had, and nobody is stopped; to say goodbye changes nothing. In a
    group such a client id is one process's. "": there are none.
    """
