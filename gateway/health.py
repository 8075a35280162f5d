"""What `GET /healthz` and its checks say: 200, or 503 and why. Nobody needs a user for it, so nothing is named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.errors import Refused
from gateway.http import Page
from routing.cluster.metadata.health import needs

if TYPE_CHECKING:
    from gateway.tls import Terms
    from routing.broker import Broker


class HealthChecks:
    """See the module. `terms` are those whose certificates this broker shows."""

    def __init__(self, broker: Broker, terms: Sequence[Terms]) -> None:
        self._broker = broker
        self._terms = terms
        self._checks = {
            "/healthz": self._serves,
            "/healthz/alarms": self._alarms,
            "/healthz/certificates": self._certificates,
            "/healthz/quorum-critical": self._quorum_critical,
        }

    def __contains__(self, path: str) -> bool:
        return path in self._checks

    def page(self, path: str) -> Page:
        """Raises Refused."""
        trouble = self._checks[path]()
        if trouble is not None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
        return HTTPStatus.OK, [("Content-Type", "text/plain; charset=utf-8")], b"ok\n"

    def _serves(self) -> str | None:
        cluster = self._broker.cluster
        lost = cluster is not None and not cluster.serves
        return "this broker is not registered in its cluster now" if lost else None

    def _alarms(self) -> str | None:
        return self._broker.blocked and f"publishers are blocked: {self._broker.blocked}"

    def _certificates(self) -> str | None:
        now = time.time()
        shown = {one.certificate_file: one.lifetime for one in self._terms if one.lifetime is not None}
        soon = sum(lifetime.expires_soon(now) for lifetime in shown.values())
        return f"certificates that have expired or soon will: {soon}" if soon else None

    def _quorum_critical(self) -> str | None:
        """As for RabbitMQ: what has one replica anyhow does not count."""
        cluster = self._broker.cluster
        if cluster is None:
            return None
        critical = sum(needs(known.state, cluster.broker_id) for known in cluster.elections.logs.values())
        return f"partitions that take nothing any more without this broker: {critical}" if critical else None
