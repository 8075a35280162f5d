"""Kafka's messages as bytes and back: functions made of the schemas, one for each version.

1. What a version has is known before a message comes, so each version gets a function of its own, written out and
   compiled on first use, as attrs and msgspec do with classes: fields of fixed size that stand together are one
   `unpack_from`, nothing is looked up while a message is read. Hot requests and rare ones go the same way.
2. A length is checked against what is there before anything is made of it; nothing is ever allocated for a claim. And
   since an object takes a hundred times the bytes that it may come in, a message has only so many elements.
3. `records` are never copied: read as views of the request, written as the pieces that they are.
4. Messages are `Entity`: the fields of the schema by name. What a reply leaves out is the schema's default; a name
   that the schema has not is a TypeError, and a bug of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct, error
from typing import TYPE_CHECKING, Any

from protocols.buffers import BytesLike
from protocols.kafka.schema import Api, Field

_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
_SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8}
_UUID_BYTES = 16
_VARINT_BYTES_MAX = 5
ELEMENTS_MAX = 250_000
_elements = [ELEMENTS_MAX]
"""How many more elements of arrays, and tagged fields, the message that is being read may have."""


class Malformed(Exception):
    """A message that is none of its kind and version."""


class Entity:
    """A message, or a struct in one: the names of its schema are its attributes."""

    __slots__ = ("__dict__",)

    def __init__(self, **fields: Any) -> None:
        self.__dict__ = fields

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no field {name!r} in {self!r}")

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Entity({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


Read = Callable[[BytesLike, int, int], tuple[Entity, int]]
Write = Callable[[bytearray, list[Any], Entity], None]


def read_message(reader: Read, data: BytesLike, at: int, elements_max: int = ELEMENTS_MAX) -> Entity:
    """The message that begins at `at` and ends with the data, of so many elements at most. Raises Malformed."""
    _elements[0] = elements_max
    try:
        message, end = reader(data, at, len(data))
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise Malformed(f"cut short: {problem}") from None
    if end > len(data):
        raise Malformed("cut short")
    return message


def write_message(writer: Write, head: bytes, message: Entity) -> list[Any]:
    """`head` and the message, as `Piece`s."""
    out, pieces = bytearray(head), list[Any]()
    writer(out, pieces, message)
    pieces.append(out)
    return pieces


@cache
def request_reader(api: Api, version: int) -> Read:
    """What reads a request of that version."""
    return _reader(api.request, version, api.is_flexible(version))


@cache
def request_writer(api: Api, version: int) -> Write:
    """What writes a request of that version."""
    return _writer(api.request, version, api.is_flexible(version))


@cache
def reply_reader(api: Api, version: int) -> Read:
    """What reads a reply of that version."""
    return _reader(api.reply, version, api.is_flexible(version))


@cache
def reply_writer(api: Api, version: int) -> Write:
    """What writes a reply of that version."""
    return _writer(api.reply, version, api.is_flexible(version))


# ---- what the functions call


def uvarint(data: BytesLike, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and where it ends. Raises Malformed, IndexError."""
    value = shift = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("a varint that does not end")


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def require(size: int, at: int, end: int, what: str) -> None:
    """There are that many more bytes. Raises Malformed."""
    if not 0 <= size <= end - at:
        raise Malformed(f"{what} of {size} where {end - at} bytes are left")


def spend(count: int) -> None:
    """So many elements come. Raises Malformed."""
    _elements[0] -= count
    if _elements[0] < 0:
        raise Malformed("more elements than a message may have")


def skip_tags(
    data: BytesLike, at: int, end: int, known: dict[int, Callable[[BytesLike, int, int], Any]]
) -> tuple[dict[int, Any], int]:
    """Read the tagged fields of a struct; those that nobody knows are passed over. Raises Malformed, IndexError."""
    count, at = uvarint(data, at)
    if not count:
        return {}, at
    require(count, at, end, "tagged fields")
    spend(count)
    found: dict[int, Any] = {}
    for _ in range(count):
        tag, at = uvarint(data, at)
        size, at = uvarint(data, at)
        require(size, at, end, "a tagged field")
        read = known.get(tag)
        if read is not None:
            found[tag], stop = read(data, at, at + size)
            if stop != at + size:
                raise Malformed(f"tagged field {tag} of another size")
        at += size
    return found, at


def refuse_names(entity: Entity, names: frozenset[str]) -> None:
    """Raises TypeError for what is not in the schema."""
    unknown = entity.__dict__.keys() - names
    if unknown:
        raise TypeError(f"the schema has no field {', '.join(sorted(unknown))}")


# ---- making readers


class _Source:
    """Python in the making."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Entity": Entity, "Malformed": Malformed, "uvarint": uvarint, "put_uvarint": put_uvarint,
            "require": require, "spend": spend, "skip_tags": skip_tags, "refuse_names": refuse_names,
        }  # fmt: skip
        self._number = 0

    def name(self, value: Any) -> str:
        """A name for a value that the code uses."""
        self._number += 1
        name = f"_{self._number}"
        self.names[name] = value
        return name

    def add(self, depth: int, *lines: str) -> None:
        """Lines of code, so far in."""
        self.lines += ["    " * depth + line for line in lines]

    def compiled(self, name: str) -> Any:
        """The function of that name."""
        exec("\n".join(self.lines), self.names)
        return self.names[name]


def _reader(fields: Sequence[Field], version: int, flexible: bool) -> Read:
    source = _Source()
    source.add(0, "def read(data, at, end):")
    there = [field for field in fields if field.is_in(version)]
    tagged = [field for field in there if field.tag is not None]
    assigned = []
    fixed: list[Field] = []

    def flush() -> None:
        if fixed:
            layout = Struct(">" + "".join(_CODES[field.type] for field in fixed))
            unpack = source.name(layout.unpack_from)
            source.add(
                1, f"{', '.join('v_' + field.name for field in fixed)}, = {unpack}(data, at)", f"at += {layout.size}"
            )
            fixed.clear()

    for field in there:
        if field.tag is not None:
            continue
        assigned.append(field.name)
        if field.type in _CODES and not field.is_array:
            fixed.append(field)
            continue
        flush()
        _read_field(source, field, version, flexible)
    flush()
    if flexible:
        known = {field.tag: _tagged_reader(field, version) for field in tagged}
        source.add(1, f"tags, at = skip_tags(data, at, end, {source.name(known)})")
    parts = [f"{name}=v_{name}" for name in assigned]
    for field in tagged:
        parts.append(f"{field.name}=tags.get({field.tag}, {source.name(field.default)})")
    parts += [f"{field.name}={source.name(field.default)}" for field in fields if not field.is_in(version)]
    source.add(1, f"return Entity({', '.join(parts)}), at")
    return source.compiled("read")  # type: ignore[no-any-return]


def _read_field(source: _Source, field: Field, version: int, flexible: bool) -> None:
    name, nullable = f"v_{field.name}", field.is_nullable(version)
    if field.type == "{}" and not field.is_array:
        read = source.name(_reader(field.fields, version, flexible))
        if nullable:
            source.add(1, "n = data[at]", "at += 1", f"if n > 127: {name} = None", "else:")
            source.add(2, f"{name}, at = {read}(data, at, end)")
        else:
            source.add(1, f"{name}, at = {read}(data, at, end)")
        return
    if field.type == "uuid" and not field.is_array:
        source.add(1, f"require({_UUID_BYTES}, at, end, 'an id')", f"{name} = bytes(data[at:at + {_UUID_BYTES}])")
        source.add(1, f"at += {_UUID_BYTES}")
        return
    _read_length(source, 1, short=field.type == "string" and not field.is_array, flexible=flexible)
    if nullable:
        source.add(1, f"if n == -1: {name} = None", "else:")
    else:
        source.add(1, f"if n < 0: raise Malformed({field.name + ' is null'!r})", "if True:")
    source.add(2, f"require(n, at, end, {field.name!r})")
    if not field.is_array:
        source.add(2, f"{name} = {_value(field.type)}", "at += n")
    else:
        source.add(2, "spend(n)")
        _read_elements(source, field, name, version, flexible)


def _read_elements(source: _Source, field: Field, name: str, version: int, flexible: bool) -> None:
    if field.type in _CODES:
        size, code = _SIZES[field.type], _CODES[field.type]
        layouts = source.name(lambda count: Struct(f">{count}{code}").unpack_from)
        source.add(2, f"require(n * {size}, at, end, {field.name!r})", f"{name} = list({layouts}(n)(data, at))")
        source.add(2, f"at += n * {size}")
        return
    source.add(2, f"{name} = []", "for _ in range(n):")
    if field.type == "{}":
        read = source.name(_reader(field.fields, version, flexible))
        source.add(3, f"item, at = {read}(data, at, end)", f"{name}.append(item)")
    elif field.type == "uuid":
        source.add(3, f"require({_UUID_BYTES}, at, end, 'an id')", f"{name}.append(bytes(data[at:at + {_UUID_BYTES}]))")
        source.add(3, f"at += {_UUID_BYTES}")
    else:
        _read_length(source, 3, short=field.type == "string", flexible=flexible)
        source.add(3, f"require(n, at, end, {field.name!r})", f"{name}.append({_value(field.type)})", "at += n")


def _value(kind: str) -> str:
    return {
        "string": "str(data[at:at + n], 'utf-8')",
        "bytes": "bytes(data[at:at + n])",
        "records": "data[at:at + n]",
    }[kind]


def _read_length(source: _Source, depth: int, *, short: bool, flexible: bool) -> None:
    """Leaves it in `n`, -1 for null."""
    if flexible:
        source.add(depth, "n = data[at]", "if n > 127: n, at = uvarint(data, at)", "else: at += 1", "n -= 1")
    else:
        layout = Struct(">h" if short else ">i")
        source.add(depth, f"n, = {source.name(layout.unpack_from)}(data, at)", f"at += {layout.size}")


def _tagged_reader(field: Field, version: int) -> Callable[[BytesLike, int, int], Any]:
    """A tagged field stands for itself: it is read as a struct that has nothing else."""
    alone = Field(field.name, field.type, field.is_array, field.fields, 0, 1 << 15, field.nullable_since, None, None)
    source = _Source()
    source.add(0, "def read(data, at, end):")
    if alone.type in _CODES and not alone.is_array:
        layout = Struct(">" + _CODES[alone.type])
        source.add(1, f"return {source.name(layout.unpack_from)}(data, at)[0], at + {layout.size}")
    else:
        _read_field(source, alone, version, True)
        source.add(1, f"return v_{alone.name}, at")
    return source.compiled("read")  # type: ignore[no-any-return]


# ---- making writers


def _writer(fields: Sequence[Field], version: int, flexible: bool) -> Write:
    source = _Source()
    source.add(0, "def write(out, pieces, entity):", "    values = entity.__dict__")
    names = source.name(frozenset(field.name for field in fields))
    source.add(1, f"if not values.keys() <= {names}: refuse_names(entity, {names})")
    there = [field for field in fields if field.is_in(version)]
    fixed: list[Field] = []

    def flush() -> None:
        if fixed:
            pack = source.name(Struct(">" + "".join(_CODES[field.type] for field in fixed)).pack)
            values = ", ".join(f"values.get({field.name!r}, {source.name(field.default)})" for field in fixed)
            source.add(1, f"out += {pack}({values})")
            fixed.clear()

    for field in there:
        if field.tag is not None:
            continue
        if field.type in _CODES and not field.is_array:
            fixed.append(field)
            continue
        flush()
        source.add(1, f"value = values.get({field.name!r}, {source.name(field.default)})")
        _write_field(source, field, version, flexible)
    flush()
    if flexible:
        _write_tags(source, [field for field in there if field.tag is not None], version)
    return source.compiled("write")  # type: ignore[no-any-return]


def _write_field(source: _Source, field: Field, version: int, flexible: bool) -> None:
    """Of `value`."""
    nullable = field.is_nullable(version)
    if field.type == "{}" and not field.is_array:
        write = source.name(_writer(field.fields, version, flexible))
        if nullable:
            source.add(
                1, "if value is None: out.append(255)", "else:", "    out.append(1)", f"    {write}(out, pieces, value)"
            )
        else:
            empty = source.name(Entity())
            source.add(1, f"{write}(out, pieces, {empty} if value is None else value)")
        return
    if field.type == "uuid" and not field.is_array:
        source.add(1, "out += value")
        return
    short = field.type == "string" and not field.is_array
    source.add(1, "if value is None:")
    if nullable:
        source.add(2, "out += " + repr(b"\0" if flexible else (b"\xff\xff" if short else b"\xff\xff\xff\xff")))
    else:
        source.add(2, f"raise TypeError({field.name + ' is None'!r})")
    source.add(1, "else:")
    if field.is_array:
        _write_elements(source, field, version, flexible)
    elif field.type == "records":
        source.add(2, "size = sum(map(len, value))")
        _write_length(source, 2, "size", short=False, flexible=flexible)
        source.add(2, "pieces.append(bytes(out))", "pieces += value", "out.clear()")
    else:
        if field.type == "string":
            source.add(2, "value = value.encode()")
        _write_length(source, 2, "len(value)", short=short, flexible=flexible)
        source.add(2, "out += value")


def _write_elements(source: _Source, field: Field, version: int, flexible: bool) -> None:
    _write_length(source, 2, "len(value)", short=False, flexible=flexible)
    if field.type in _CODES:
        code = _CODES[field.type]
        pack = source.name(lambda items: Struct(f">{len(items)}{code}").pack(*items))
        source.add(2, f"out += {pack}(value)")
        return
    source.add(2, "for item in value:")
    if field.type == "{}":
        source.add(3, f"{source.name(_writer(field.fields, version, flexible))}(out, pieces, item)")
    elif field.type == "uuid":
        source.add(3, "out += item")
    else:
        if field.type == "string":
            source.add(3, "item = item.encode()")
        _write_length(source, 3, "len(item)", short=field.type == "string", flexible=flexible)
        source.add(3, "out += item")


def _write_length(source: _Source, depth: int, size: str, *, short: bool, flexible: bool) -> None:
    if flexible:
        source.add(depth, f"n = {size} + 1", "if n > 127: put_uvarint(out, n)", "else: out.append(n)")
    else:
        source.add(depth, f"out += {source.name(Struct('>h' if short else '>i').pack)}({size})")


def _write_tags(source: _Source, tagged: Sequence[Field], version: int) -> None:
    if not tagged:
        source.add(1, "out.append(0)")
        return
    source.add(1, "tags = []")
    for field in sorted(tagged, key=lambda field: field.tag or 0):
        write = source.name(_tagged_writer(field, version))
        default = source.name(field.default)
        source.add(1, f"value = values.get({field.name!r}, {default})", f"if value != {default}:")
        source.add(2, "tag = bytearray()", f"{write}(tag, value)", f"tags.append(({field.tag}, tag))")
    source.add(1, "put_uvarint(out, len(tags))", "for number, tag in tags:")
    source.add(2, "put_uvarint(out, number)", "put_uvarint(out, len(tag))", "out += tag")


def _tagged_writer(field: Field, version: int) -> Callable[[bytearray, Any], None]:
    source = _Source()
    source.add(0, "def write(out, value):", "    pieces = []")
    if field.type in _CODES and not field.is_array:
        source.add(1, f"out += {source.name(Struct('>' + _CODES[field.type]).pack)}(value)")
    else:
        _write_field(source, field, version, True)
    return source.compiled("write")  # type: ignore[no-any-return]
