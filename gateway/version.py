"""Which version this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """That of the installed package; "unknown" where it is not installed."""
    try:
        return version("millrace")
    except PackageNotFoundError:
        return "unknown"
