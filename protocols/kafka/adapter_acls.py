"""The rights of users as Kafka's access control lists, and back, as far as one can say what the other says.

1. A permission is three expressions, `configure`, `write` and `read`; each part of one that is a whole name, a
   beginning or everything (`routing/access/name_patterns.py`) is a literal, a prefixed or the literal "*" resource. A
   part that is neither is shown as a literal resource named `regex:` and the expression, which no topic can be called.
2. `read` and `write` are operations of Kafka's; `configure` is CREATE, DELETE, ALTER and ALTER_CONFIGS together, and
   each of the three includes DESCRIBE and DESCRIBE_CONFIGS. What the table cannot say is refused.
3. The tag `administrator` is ALL on the cluster, `monitoring` DESCRIBE_CONFIGS. Groups are open to every user: that
   somebody may read one is true already.
4. Nothing is denied, and hosts do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from routing.access.grants import Access, Permission
from routing.access.name_patterns import NamePattern, PatternKind, parse
from routing.access.rights import Rights


class Resource(IntEnum):
    """What rights are about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Pattern(IntEnum):
    """How resources are named; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with them; ANY is for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


ANY, ALLOW = 1, 3
"""Permission types: whichever, and the one that there is here."""
CLUSTER_NAME = "kafka-cluster"
EVERY_HOST = EVERYTHING = "*"
_REGEX = "regex:"
_PRINCIPAL = "User:"
ACCESSES: tuple[Access, ...] = ("configure", "write", "read")
CONFIGURE = frozenset((Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS))
LOOKS = frozenset((Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS))
_OPERATIONS: dict[Access, frozenset[Operation]] = {
    "read": LOOKS | {Operation.READ},
    "write": LOOKS | {Operation.WRITE},
    "configure": LOOKS | CONFIGURE,
}
TAGS = {"administrator": Operation.ALL, "monitoring": Operation.DESCRIBE_CONFIGS}
"""What a tag is on the cluster."""


class Acl(NamedTuple):
    """An entry: a user may do something, from any host."""

    user: str
    resource: Resource
    pattern: Pattern
    name: str
    operation: Operation

    @property
    def principal(self) -> str:
        """Who it is about, as Kafka writes it."""
        return _PRINCIPAL + self.user


def entries(rights: Rights, vhost: str) -> Iterator[Acl]:
    """All that the table says about a virtual host."""
    for user in rights.users:
        for tag in user.tags:
            if tag in TAGS:
                yield Acl(user.name, Resource.CLUSTER, Pattern.LITERAL, CLUSTER_NAME, TAGS[tag])
    for place, name, permission in rights.permissions():
        if place == vhost:
            yield from of_permission(name, permission)


def of_permission(user: str, permission: Permission) -> Iterator[Acl]:
    """What a permission says."""
    found: dict[NamePattern, set[Access]] = {}
    for access in ACCESSES:
        for part in parse(getattr(permission, access)):
            found.setdefault(part, set()).add(access)
    for part, accesses in found.items():
        operations = frozenset[Operation]().union(*(_OPERATIONS[access] for access in accesses))
        if len(accesses) == len(ACCESSES):
            operations |= {Operation.ALL}
        pattern, name = resource_of(part)
        for operation in sorted(operations):
            yield Acl(user, Resource.TOPIC, pattern, name, operation)


def resource_of(part: NamePattern) -> tuple[Pattern, str]:
    """How a part of an expression is named."""
    if part.kind is PatternKind.EVERYTHING:
        return Pattern.LITERAL, EVERYTHING
    if part.kind is PatternKind.EXPRESSION:
        return Pattern.LITERAL, _REGEX + part.text
    return (Pattern.PREFIXED if part.kind is PatternKind.PREFIX else Pattern.LITERAL), part.text


def part_of(pattern: int, name: str) -> NamePattern:
    """The part of an expression that is named so. Raises KafkaError."""
    if not name or pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a resource has a name, and is literal or prefixed")
    if pattern == Pattern.PREFIXED:
        return NamePattern(PatternKind.PREFIX, name)
    if name == EVERYTHING:
        return NamePattern(PatternKind.EVERYTHING)
    if name.startswith(_REGEX):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "regular expressions are set with the permissions of a user")
    return NamePattern(PatternKind.NAME, name)


def user_of(principal: str) -> str:
    """Raises KafkaError."""
    if not principal.startswith(_PRINCIPAL) or principal == _PRINCIPAL + EVERYTHING:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"rights are those of a user, 'User:name', not of {principal!r}")
    return principal.removeprefix(_PRINCIPAL)


class Filter(NamedTuple):
    """Which entries somebody means; None is any."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, asked: Entity) -> Filter:
        """As a request says it."""
        return cls(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )

    def matches(self, acl: Acl) -> bool:
        """Whether it means this one."""
        return (
            self.resource in (ANY, acl.resource)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, ALLOW)
            and self.host in (None, EVERY_HOST)
            and self.principal in (None, acl.principal)
            and self._names(acl)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == Pattern.PREFIXED else acl.name == EVERYTHING


def grouped(acls: Iterable[Acl]) -> Mapping[tuple[Resource, Pattern, str], list[Acl]]:
    """Entries by the resource that they are about."""
    found: dict[tuple[Resource, Pattern, str], list[Acl]] = {}
    for acl in acls:
        found.setdefault((acl.resource, acl.pattern, acl.name), []).append(acl)
    return found


def accesses_of(operation: int) -> tuple[Access, ...]:
    """The rights that an operation on topics stands for; none for what others include, or what is none of topics."""
    if operation == Operation.ALL:
        return ACCESSES
    if operation == Operation.READ:
        return ("read",)
    if operation == Operation.WRITE:
        return ("write",)
    return ("configure",) if operation in CONFIGURE else ()


def in_turn(operations: Iterable[int]) -> list[int]:
    """Their places, what includes others first: together they come in any order, from Java's tool in that of a set."""
    turns = [0 if one == Operation.ALL else 2 if one in LOOKS else 1 for one in operations]
    return sorted(range(len(turns)), key=turns.__getitem__)
