"""Errors of the process that are the operator's business: said in one line, without a traceback."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start: a port is taken, the data directory is in use. The text is one line."""
