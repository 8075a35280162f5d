"""What replicated logs are called: one kind for each thing that they hold, and a place among its kind.

home-N          a home partition of queues
offsets-N       the offsets of some groups
transactions-N  transactions that are decided and have not taken effect everywhere yet
retained-N      retained messages, and wills
topic-ID-N      a partition of the topic with this id

Beside those, which are replicated, transient-ID-N are the queues that end with broker N, of its process ID.
"""

from __future__ import annotations

HOME = "home"
OFFSETS = "offsets"
RETAINED = "retained"
TOPIC = "topic"
TRANSACTIONS = "transactions"
TRANSIENT = "transient"
_DIRECTORIES = {HOME: "queues/", OFFSETS: "offsets/", RETAINED: "retained/", TRANSACTIONS: "transactions/shared-"}


def log_of_kind(kind: str, index: int) -> str:
    """The log that is in this place among its kind, of a kind that every cluster has."""
    return f"{kind}-{index}"


def home_log(index: int) -> str:
    """The log of a home partition."""
    return log_of_kind(HOME, index)


def offsets_log(index: int) -> str:
    """The log of a partition of group offsets."""
    return log_of_kind(OFFSETS, index)


def topic_log(uid: str, index: int) -> str:
    """The log of a topic's partition; `uid` is the topic's id."""
    return f"{TOPIC}-{uid}-{index}"


def directory_of(log: str) -> str:
    """Where a broker keeps its replica of a log that every cluster has; empty for logs of other kinds."""
    kind, _, number = parsed(log)
    return f"{_DIRECTORIES[kind]}{number}" if kind in _DIRECTORIES and number is not None else ""


def transient_log(broker: int, process: int) -> str:
    """What stands for the log of queues that end with a process."""
    return f"{TRANSIENT}-{process}-{broker}"


def transient_of(log: str) -> tuple[int, int] | None:
    """The broker and its process, if a log is one of those."""
    kind, process, broker = parsed(log)
    return (broker, int(process)) if kind == TRANSIENT and broker is not None and process.isdecimal() else None


def parsed(log: str) -> tuple[str, str, int | None]:
    """The kind of a log, its topic's id if it is of one, and its place among its kind if it has one."""
    kind, _, rest = log.partition("-")
    uid, _, number = rest.rpartition("-")
    return kind, uid, int(number) if number.isdecimal() else None


def number_of(log: str, kind: str) -> int | None:
    """The place of a log among those of a kind, or None if it is of another."""
    found, _, number = parsed(log)
    return number if found == kind else None
