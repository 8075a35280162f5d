"""Members that are static by their client id, for clients that cannot say so themselves."""

from __future__ import annotations

from functools import lru_cache

from routing.name_rules import NameRule


@lru_cache(maxsize=4)
def static_client_ids(expression: str) -> NameRule:
    """What the setting of that name means. Raises InvalidExpression."""
    return NameRule(f"^(?:{expression})$")


def is_static(expression: str, client_id: str | None) -> bool:
    """Whether who calls himself that is a static member by that name; an empty expression means nobody."""
    return bool(expression and client_id and static_client_ids(expression).matches(client_id))
