"""README.md is the specification: its bytes are what the broker says, its tables are what the code has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from protocols.native import errors, wire
from protocols.native.config import NativeConfig
from tests.protocols.native.broker import native_broker

README = Path(wire.__file__).with_name("README.md").read_text()

EXAMPLE = re.compile(r"^([<>]) (\[.*?\])\n((?:    [0-9a-f ]+\n)+)", re.MULTILINE | re.DOTALL)


def session() -> list[tuple[str, list[Any], bytes]]:
    """(direction, message as JSON, bytes) of the example session."""
    text = README.partition("## A session, byte by byte")[2].split("```")[1]
    found = [
        (mark, json.loads(" ".join(shown.split())), bytes.fromhex(hexed))
        for mark, shown, hexed in EXAMPLE.findall(text)
    ]
    assert len(found) == len(re.findall(r"^[<>] ", text, re.MULTILINE)) == 16
    return found


def shown(value: Any) -> Any:
    """A message as the page shows it."""
    if isinstance(value, bytes):
        return "<the batch>"
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


@pytest.mark.parametrize(("mark", "message", "data"), session())
def test_the_bytes_are_what_is_shown_beside_them(mark: str, message: list[Any], data: bytes) -> None:
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert shown(msgpack.unpackb(data[4:])) == message
    decode = wire.decode_request if mark == ">" else wire.decode_reply
    assert b"".join(wire.encode(decode(data[4:]))) == data


async def test_the_broker_answers_as_the_page_says() -> None:
    async with native_broker() as running:
        host, _, port = running.server.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            for mark, _, data in session():
                if mark == ">":
                    await stream.send_all(data)
                    continue
                got = b""
                with trio.fail_after(10):
                    while len(got) < len(data):
                        got += await stream.receive_some(len(data) - len(got))
                assert got == data


def table(first_column: str) -> list[list[str]]:
    """The rows of the table whose first column is called so."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_errors() -> None:
    assert table("code") == [
        [str(int(code)), code.name, "yes" if code in errors.RETRIABLE else "", errors.MEANINGS[code]]
        for code in errors.ErrorCode
    ]


def test_the_table_of_requests() -> None:
    rows = table("api")
    kinds = {kind.__struct_config__.tag: kind for kind in wire.Request.__subclasses__()}
    assert sorted(kinds) == [int(row[0]) for row in rows]
    for number, name, fields, _ in rows:
        kind = kinds[int(number)]
        assert kind.__name__.lower() == name.replace("_", "")
        count = len([field for field in re.sub(r"\[.*?\]+|\{.*?\}", "x", fields).split(",") if field])
        assert count == len(kind.__struct_fields__) - 1, name


def test_the_table_of_limits() -> None:
    defaults = {cells[2].strip("`"): cells[1] for cells in table("what")}
    config = NativeConfig()
    assert defaults["native.request_bytes_max"] == f"{config.request_bytes_max >> 20} MiB"
    assert defaults["native.hello_bytes_max"] == f"{config.hello_bytes_max >> 10} KiB"
    assert defaults["native.fetch_bytes_max"].startswith(f"{config.fetch_bytes_max >> 20} MiB")
    assert defaults["native.fetch_wait_ms_max"] == f"{config.fetch_wait_ms_max // 1000} s"
    assert defaults["native.requests_in_flight_max"] == str(config.requests_in_flight_max)
