"""`/metrics`: figures of the engine, of the doors and of the process in the text formats of Prometheus and OpenMetrics.

`prometheus_client` knows the formats and which of them a client asks for. Figures are gathered on the event loop, a few
at a time; what makes text of them, and what compresses it, runs in a thread, from which the loop has the interpreter
back within its switch interval.
"""

from __future__ import annotations

import gzip
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from core_log.threads import in_thread
from routing.administration.measures import Family, Measures
from routing.version import OWN_VERSION

if TYPE_CHECKING:
    from gateway.connection import Shell
    from gateway.http import Headers
    from gateway.tls import Terms
    from routing.broker import Broker

_GZIP_LEVEL = 1


class Metrics:
    """The page of one broker."""

    def __init__(self, broker: Broker, shell: Shell, series_max: int, terms: Sequence[Terms] = ()) -> None:
        self._shell = shell
        self._terms = terms
        self._measures = Measures(broker, series_max)
        self._process = ProcessCollector(registry=None)

    async def page(self, accept: str, encodings: Collection[str]) -> tuple[Headers, bytes]:
        """What a client that accepts these formats and encodings gets: headers and body."""
        began = time.perf_counter()
        families = [*self._gateway(), *await self._measures.families()]
        left_off = Family("millrace_series_left_off", "gauge", "Series that a family has no room for.", ("family",))
        for family in families:
            if family.series_max is not None:
                left_off.add(family.left_off, (family.name,))
        took = Family("millrace_scrape_seconds", "gauge", "How long it took to gather these figures.")
        took.add(time.perf_counter() - began)
        page = _Page([*families, left_off, took], self._process)
        zipped = any(one.partition(";")[0].strip() == "gzip" and "q=0" not in one.split(";") for one in encodings)
        return await in_thread(partial(page.written, accept, zipped=zipped))

    def _gateway(self) -> list[Family]:
        info = Family("millrace_build_info", "gauge", "The version of the broker.", ("version",))
        info.add(1, (OWN_VERSION,))
        connections = Family("millrace_connections", "gauge", "Connections of clients.", ("door",))
        for door, count in sorted(Counter(one.door for one in self._shell.connections).items()):
            connections.add(count, (door,))
        expiry = Family(
            "millrace_certificate_expires_timestamp_seconds",
            "gauge",
            "When a certificate of this side expires.",
            ("file",),
        )
        shown = {one.certificate_file: one.lifetime.expires_at for one in self._terms if one.lifetime is not None}
        for file, expires_at in sorted(shown.items()):
            expiry.add(expires_at, (file,))
        return [info, connections, expiry]


class _Page(Collector):  # type: ignore[misc]
    """Figures as the library wants them; used in a thread."""

    def __init__(self, families: list[Family], process: ProcessCollector) -> None:
        self._families = families
        self._process = process

    def collect(self) -> Iterator[Metric]:
        """What `Collector` asks for."""
        for family in self._families:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, value in zip(family.series, family.values, strict=True):
                metric.add_metric(labels, value)
            yield metric
        yield from self._of_process()

    def _of_process(self) -> Iterable[Metric]:
        found: Iterable[Metric] = self._process.collect()
        return found

    def written(self, accept: str, *, zipped: bool) -> tuple[Headers, bytes]:
        """Headers and body."""
        encode, content_type = choose_encoder(accept)
        body: bytes = encode(self)
        headers = [("Content-Type", content_type), ("Cache-Control", "no-store")]
        if zipped:
            return [*headers, ("Content-Encoding", "gzip")], gzip.compress(body, _GZIP_LEVEL)
        return headers, body
