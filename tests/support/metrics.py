"""What a broker's `/metrics` says, read as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from importlib.util import find_spec

from routing.administration.measures import Family

DOORS = ("http",) if find_spec("prometheus_client") is not None else ()
"""What a broker can open for metrics: nothing where the extra is not installed."""

Figures = dict[tuple[str, ...], float]
"""By the name of the series and the values of its labels, in the order of the labels' names."""


def parsed(text: str) -> Figures:
    """All series of a page; none is there twice."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(one.name, *(value for _, value in sorted(one.labels.items()))): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def scraped(port: int) -> Figures:
    """What the door on this machine says to a client without a user."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def series(families: Iterable[Family]) -> Figures:
    """The same of what was gathered, but with labels in the order that families have them."""
    return {
        (one.name, *labels): value for one in families for labels, value in zip(one.series, one.values, strict=True)
    }
