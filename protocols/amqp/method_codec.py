"""How a method is read and written, derived from the annotations of its class (`methods.py` is the table of all).

A method's payload is class id and method id (16 bits each), then its arguments in order; consecutive bits share octets.
Fields named `ticket` or `reserved_*` carry nothing. Short strings are UTF-8, but for those of methods that carry a
message: its routing key may be any bytes. https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf section 1.3
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from protocols.amqp import wire
from protocols.amqp.errors import SyntaxFault

Bit = bool
Octet = int
Short = int
Long = int
LongLong = int
ShortString = str
ShortBytes = str
LongString = bytes
Table = dict[str, Any]
"""What an argument is to Python. How it is read and written goes by the name that its annotation has."""

_KINDS = {
    "Bit": "bit", "Octet": "octet", "Short": "short", "Long": "long", "LongLong": "longlong",
    "ShortString": "shortstr", "ShortBytes": "shortbytes", "LongString": "longstr", "Table": "table",
}  # fmt: skip
_NUMBERS = {"octet": struct.Struct(">B"), "short": struct.Struct(">H"), "long": struct.Struct(">I")}
_NUMBERS["longlong"] = struct.Struct(">Q")
_IDENT = struct.Struct(">I")


class Method(Struct):
    """Base of all methods; `IDENT` is class id << 16 | method id, `NAME` as the specification writes it."""

    IDENT: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    PLAN: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()

    def encode(self) -> bytes:
        """The payload of the method frame."""
        pieces = [_IDENT.pack(self.IDENT)]
        for kind, names in self.PLAN:
            values = [getattr(self, name) for name in names]
            if kind == "bit":
                bits = sum(1 << place for place, value in enumerate(values) if value)
                pieces.append(bits.to_bytes((len(values) + 7) // 8, "little"))
            elif kind in ("shortstr", "shortbytes"):
                pieces.append(wire.short_string(values[0]))
            elif kind == "longstr":
                pieces.append(wire.long_string(values[0]))
            elif kind == "table":
                pieces.append(wire.table(values[0]))
            else:
                pieces.append(_NUMBERS[kind].pack(values[0]))
        return b"".join(pieces)

    @classmethod
    def decode_arguments(cls, data: bytes, pos: int) -> Any:
        """Read the arguments, which fill the rest of `data`. Raises SyntaxFault."""
        values: list[Any] = []
        for kind, names in cls.PLAN:
            if kind == "bit":
                stop = pos + (len(names) + 7) // 8
                bits = int.from_bytes(data[pos:stop], "little")
                values.extend([bool(bits >> place & 1) for place in range(len(names))])
                pos = stop
            elif kind in _NUMBERS:
                packer = _NUMBERS[kind]
                values.append(packer.unpack_from(data, pos)[0] if pos + packer.size <= len(data) else 0)
                pos += packer.size
            else:
                value, pos = _READ[kind](data, pos)
                values.append(value)
            if pos > len(data):
                raise SyntaxFault(f"{cls.NAME} cut short")
        if pos != len(data):
            raise SyntaxFault(f"{cls.NAME} is longer than its arguments")
        return cls(*values)


_READ: dict[str, Callable[[bytes, int], tuple[Any, int]]] = {
    "shortstr": wire.read_short_text,
    "shortbytes": wire.read_short_string,
    "longstr": wire.read_long_string,
    "table": wire.read_table,
}

METHODS: dict[int, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def decode_method(payload: bytes) -> Method | None:
    """The method of a frame's payload, or None for a class or method there is not. Raises SyntaxFault."""
    if len(payload) < 4:
        raise SyntaxFault("method frame without a method")
    kind = METHODS.get(_IDENT.unpack_from(payload)[0])
    if kind is None:
        return None
    method: Method = kind.decode_arguments(payload, 4)
    return method


def method(class_id: int, method_id: int, name: str) -> Callable[[M], M]:
    def register(cls: M) -> M:
        cls.IDENT = class_id << 16 | method_id
        cls.NAME = name
        plan: list[tuple[str, tuple[str, ...]]] = []
        for argument in cls.__struct_fields__:
            kind = _KINDS[cls.__annotations__[argument]]
            if kind == "bit" and plan and plan[-1][0] == "bit":
                plan[-1] = ("bit", (*plan[-1][1], argument))
            else:
                plan.append((kind, (argument,)))
        cls.PLAN = tuple(plan)
        METHODS[cls.IDENT] = cls
        return cls

    return register
