"""Which version this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:
        return "unknown"


OWN_VERSION = _installed()
"""That of the package as it was when this process began, which may be replaced while it runs; "unknown" where it is not
installed.
"""
