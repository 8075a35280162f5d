"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from gateway.demo.check import Check
from gateway.demo.flights import Means

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def means_table(means: Mapping[tuple[str, int], Means]) -> Table:
    """Mean arrival delay, a row for each carrier and a column for each month."""
    table = Table(
        title="Mean arrival delay in minutes, computed by Spark from the topic", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for month in MONTHS:
        table.add_column(month, justify="right", no_wrap=True, min_width=5)
    for carrier in sorted({carrier for carrier, _ in means}):
        table.add_row(carrier, *(_minutes(means.get((carrier, month))) for month in range(1, 13)))
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    """What was compared with the data set, and what differs."""
    table = Table(title="Compared with the data set itself")
    table.add_column("claim")
    table.add_column("result")
    for check in checks:
        lines = escape("\n".join(check.differences))
        table.add_row(escape(check.claim), f"[red]DIFFERENT[/]\n{lines}" if lines else "[green]equal[/]")
    return table


def _minutes(means: Means | None) -> str:
    return "" if means is None or means.arr_delay is None else f"{round(means.arr_delay, 1) + 0.0:.1f}"
