"""Headers of records in a protocol's own form, where each is written as its name, a length and the value's bytes.

Names come again and again, values do not: what is written before a value is remembered by what stands before it in the
record, and the value is taken as it is. That costs a fraction of a microsecond a header, the neutral form several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from routing.message import RESERVED_HEADER_PREFIX

_REMEMBERED_MAX = 4096

WriteHead = Callable[[str, int], bytes]
"""What a protocol writes before a value that is text: of a name, and the value's size in bytes (-1: there is none).
Raises ValueError for what has to go through the neutral form.
"""
WriteBinary = Callable[[str, bytes], bytes]
"""The whole of a header whose value is no UTF-8."""


class _Heads(dict[bytes, tuple[str, bytes, int]]):
    """By a header's name and its value's length, as they stand in a record with a byte for each length: the name, what
    the protocol writes, and how many bytes the value has. Raises KeyError for what `rewrite` leaves alone.
    """

    def __init__(self, write: WriteHead) -> None:
        super().__init__()
        self._write = write

    def __missing__(self, head: bytes) -> tuple[str, bytes, int]:
        if not head or len(head) != 2 + (head[0] >> 1) or head[0] & 129 or (head[-1] & 129 and head[-1] != 1):
            raise KeyError(head)
        size = -1 if head[-1] == 1 else head[-1] >> 1
        try:
            name = head[1:-1].decode()
            written = self._write(name, size)
        except ValueError:
            raise KeyError(head) from None
        if name.startswith(RESERVED_HEADER_PREFIX):
            raise KeyError(head)
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        found = self[head] = name, written, max(size, 0)
        return found


class Rewriter:
    """Makes a protocol's headers of header blocks that were checked."""

    def __init__(self, write_head: WriteHead, write_binary: WriteBinary) -> None:
        self._heads = _Heads(write_head)
        self._write_binary = write_binary

    def rewrite(self, blocks: Sequence[bytes]) -> list[bytes | None]:
        """The headers of each block as the protocol writes them, one after the other; None for a block that has to go
        through the neutral form: it has long, reserved or repeated names, long values, or what `write_head` refuses.
        """
        found: list[bytes | None] = []
        add, heads = found.append, self._heads
        for block in blocks:
            try:
                count = block[0]
                if count == 2:  # one header, as most have that have any
                    start = 3 + (block[1] >> 1)
                    _, head, size = heads[block[1:start]]
                    value = block[start:]
                    if value.isascii() and len(value) == size:
                        add(head + value)
                        continue
                written = b""
                names = []
                at = 1
                for _ in range(count >> 1):
                    start = at + 2 + (block[at] >> 1)
                    name, head, size = heads[block[at:start]]
                    names.append(name)
                    at = start + size
                    value = block[start:at]
                    is_text = value.isascii() or _is_text(value)
                    written += head + value if is_text else self._write_binary(name, value)
            except (KeyError, IndexError):
                add(None)
                continue
            is_whole = at == len(block) and not count & 129
            add(written if is_whole and (count < 4 or len(set(names)) == len(names)) else None)
        return found


def _is_text(value: bytes) -> bool:
    return value.decode("utf-8", "replace").encode() == value
