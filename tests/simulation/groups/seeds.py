"""Schedules that once broke an invariant, and what was wrong then. They stay in the suite."""

from __future__ import annotations

GROUPS = {
    50170: "the record of a static member that another process had replaced stayed: after a crash it was there again",
}
