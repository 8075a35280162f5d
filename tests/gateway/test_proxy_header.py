"""The PROXY protocol's headers, as text and as bytes: which are taken, which are not, and what comes behind them."""

from __future__ import annotations

import ipaddress
import random
import socket

import crc32c
import pytest
import trio
from structlog.testing import capture_logs

from gateway.proxy_header import (
    BLOCK_BYTES_MAX,
    LINE_BYTES_MAX,
    SIGNATURE,
    NoProxyHeader,
    Proxies,
    ProxyHeader,
    parse,
    take_header,
)
from tests.gateway.shell import open_door, receive_all, receive_exactly

SOURCE, DESTINATION = ("203.0.113.9", 4711), ("192.0.2.1", 5672)
SOURCE_6, DESTINATION_6 = ("2001:db8::9", 4711), ("2001:db8::1", 65535)
LINE = b"PROXY TCP4 203.0.113.9 192.0.2.1 4711 5672\r\n"
LINE_6 = b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 65535\r\n"


def binary(command: int, family: int, block: bytes, size: int | None = None) -> bytes:
    return SIGNATURE + bytes((command, family)) + (len(block) if size is None else size).to_bytes(2, "big") + block


def addresses(source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    hosts = b"".join(ipaddress.ip_address(one[0]).packed for one in (source, destination))
    return hosts + source[1].to_bytes(2, "big") + destination[1].to_bytes(2, "big")


def field(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def summed(block: bytes) -> bytes:
    """A header with a checksum behind its addresses and before another field."""
    whole = binary(0x21, 0x11, block + field(3, bytes(4)) + field(4, b"pad"))
    return whole.replace(field(3, bytes(4)), field(3, crc32c.crc32c(whole).to_bytes(4, "big")))


INET, INET_6 = addresses(SOURCE, DESTINATION), addresses(SOURCE_6, DESTINATION_6)
BINARY, BINARY_6 = binary(0x21, 0x11, INET), binary(0x21, 0x21, INET_6)

TAKEN = [
    (LINE, SOURCE, DESTINATION),
    (LINE_6, SOURCE_6, DESTINATION_6),
    (b"PROXY TCP4 " + b"255.255.255.255 " * 2 + b"65535 65535\r\n", *[("255.255.255.255", 65535)] * 2),
    (b"PROXY TCP4 1.2.3.4 0.0.0.0 0 0\r\n", ("1.2.3.4", 0), ("0.0.0.0", 0)),
    (b"PROXY TCP6 " + b":".join([b"ffff"] * 8) + b" ::1 1 2\r\n", (":".join(["ffff"] * 8), 1), ("::1", 2)),
    (b"PROXY UNKNOWN\r\n", None, None),
    (b"PROXY UNKNOWN ffff::ff whatever 1 2 3\r\n", None, None),
    (BINARY, SOURCE, DESTINATION),
    (BINARY_6, SOURCE_6, DESTINATION_6),
    (binary(0x21, 0x11, INET + field(2, b"broker.example") + field(0x20, bytes(5))), SOURCE, DESTINATION),
    (summed(INET), SOURCE, DESTINATION),
    (binary(0x20, 0x00, b""), None, None),
    (binary(0x20, 0x11, INET), None, None),  # the proxy's own connection
    (binary(0x20, 0x11, b"\xff"), None, None),
    (binary(0x21, 0x00, b""), None, None),
    (binary(0x21, 0x00, field(4, b"x")), None, None),
    (binary(0x21, 0x31, bytes(216)), None, None),  # a socket of Unix has no address
    (binary(0x21, 0x12, INET), None, None),
    (binary(0x21, 0x11, INET + field(4, bytes(BLOCK_BYTES_MAX - 15))), SOURCE, DESTINATION),
]  # fmt: skip

REFUSED = [
    (b"AMQP\0\0\x09\x01", "it begins with b'AMQP"),
    (b"\x10\x0e", "it begins with"),
    (b"\x16\x03\x01", "it begins with"),
    (b"PROXX", "it begins with"),
    (b"\r\n\r\n\0\r\nQUIX", "it begins with"),
    (b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n", "version 1"),
    (b"PROXY TCP4 ::1 ::1 1 2\r\n", "version 1"),
    (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "version 1"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n\r\n", "version 1"),
    (b"PROXY TCP4 \xff 1.2.3.4 1 2\r\n", "version 1"),
    (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "version 1"),
    (b"PROXY \r\n", "version 1"),
    (b"PROXY UNKNOWN " + b"x" * LINE_BYTES_MAX, "version 1: longer than 107 bytes"),
    (binary(0x11, 0x11, INET), "version 2: command 0x11"),
    (binary(0x22, 0x11, INET), "version 2: command 0x22"),
    (binary(0x21, 0x41, INET), "version 2: family 0x41"),
    (binary(0x21, 0x13, INET), "version 2: family 0x13"),
    (binary(0x21, 0x11, INET[:-1]), "version 2: 11 bytes for addresses of 12"),
    (binary(0x21, 0x21, INET), "version 2: 12 bytes for addresses of 36"),
    (binary(0x21, 0x31, bytes(215)), "version 2: 215 bytes for addresses of 216"),
    (binary(0x21, 0x11, INET, 65535), "version 2: 65535 bytes, more than 4096"),
    (binary(0x21, 0x11, INET + b"\x04\x00"), "version 2: a field is longer"),
    (binary(0x21, 0x11, INET + b"\x04\x00\x02x"), "version 2: a field is longer"),
    (binary(0x21, 0x11, INET + field(3, b"1234")), "version 2: the checksum is wrong"),
    (binary(0x21, 0x11, INET + field(3, b"")), "version 2: the checksum is wrong"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "source", "destination"), TAKEN)
def test_what_is_taken_however_much_is_there(
    header: bytes, source: tuple[str, int] | None, destination: tuple[str, int] | None
) -> None:
    wanted = ProxyHeader(len(header), source, destination)
    for size in range(len(header)):
        assert parse(header[:size]) is None
    for behind in (b"", b"\r\n", b"\x10\x0e", header):
        assert parse(header + behind) == wanted


@pytest.mark.parametrize(("data", "why"), REFUSED)
def test_what_is_none(data: bytes, why: str) -> None:
    with pytest.raises(NoProxyHeader) as error:
        parse(data)
    assert str(error.value).startswith(why)


def test_what_is_changed_anywhere_is_taken_refused_or_not_complete() -> None:
    chance = random.Random(20)
    for _ in range(5000):
        data = bytearray(chance.choice(TAKEN[:11])[0])
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.randrange(len(data) + 1)] + chance.randbytes(chance.choice((0, 0, 5)))
        try:
            found = parse(bytes(data))
        except NoProxyHeader:
            continue
        assert found is None or 0 < found.size <= len(data)
        if found is not None and found.source is not None:
            ipaddress.ip_address(found.source[0])
            assert 0 <= found.source[1] <= 65_535


# --- at a door --------------------------------------------------------------------------------


def proxies(*networks: str, timeout_ms: int = 5000) -> Proxies:
    return Proxies(tuple(map(ipaddress.ip_network, networks)), timeout_ms)


@pytest.mark.parametrize("header", [LINE, BINARY])
async def test_what_comes_behind_the_header_is_the_clients_own_and_the_peer_is_the_client(header: bytes) -> None:
    async with open_door(proxies=proxies("127.0.0.0/8")) as door:
        at_once = await door.connect()
        await at_once.send_all(header + b"hello")
        assert await receive_exactly(at_once, 5) == b"hello"
        piecemeal = await door.connect()
        piecemeal.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in header:
            await piecemeal.send_all(bytes((byte,)))
            await trio.lowlevel.checkpoint()
        await piecemeal.send_all(b"bye")
        assert await receive_exactly(piecemeal, 3) == b"bye"
        assert [adapter.peer for adapter in door.adapters] == ["203.0.113.9:4711"] * 2
        assert {one.peer for one in door.shell.connections} == {"203.0.113.9:4711"}


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (LINE_6, "[2001:db8::9]:4711"),
        (b"PROXY TCP6 ::ffff:203.0.113.9 ::1 1 2\r\n", "203.0.113.9:1"),
        (b"PROXY TCP4 127.0.0.1 127.0.0.1 7 8\r\n", "127.0.0.1:7"),  # the proxy is on this machine, too
    ],
)
async def test_addresses(header: bytes, peer: str) -> None:
    async with open_door(proxies=proxies("127.0.0.1")) as door:
        client = await door.connect()
        await client.send_all(header)
        assert (await door.adapter()).peer == peer


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", binary(0x20, 0, b"")])
async def test_a_connection_of_the_proxys_own_has_its_address(header: bytes) -> None:
    async with open_door(proxies=proxies("::/0", "127.0.0.1/32")) as door:
        client = await door.connect()
        await client.send_all(header)
        assert (await door.adapter()).peer == "{}:{}".format(*client.socket.getsockname())


@pytest.mark.parametrize(
    ("networks", "said", "reason"),
    [
        (("127.0.0.1",), b"GET / HTTP/1.1\r\n\r\n", "it begins with b'GET / HTTP/1'"),
        (("127.0.0.1",), b"PROXY TCP4 0.0.0.0 1.2.3.4 1 2\r\n", "0.0.0.0 is no address of a client of 127.0.0.1"),
        (("10.0.0.0/8", "::1"), LINE, "not from a network of proxy_protocol.networks"),
    ],
)
async def test_a_client_without_a_header_that_can_be_believed_is_closed_with_one_line(
    networks: tuple[str, ...], said: bytes, reason: str
) -> None:
    async with open_door(proxies=proxies(*networks)) as door:
        with capture_logs() as lines:
            client = await door.connect()
            await client.send_all(said)
            with trio.fail_after(5):
                try:
                    assert await client.receive_some() == b""
                except trio.BrokenResourceError:
                    pass  # reset: what it said was not read
        peer = "{}:{}".format(*client.socket.getsockname())
        (line,) = [line for line in lines if line["log_level"] != "debug"]
        assert line == {
            "event": "PROXY header refused", "log_level": "warning", "door": "test", "peer": peer, "reason": reason,
        }  # fmt: skip
        assert not door.adapters
        assert not door.shell.handshakes


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "::"])
async def test_a_client_is_not_on_this_machine_because_a_proxy_elsewhere_says_so(address: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(f"PROXY TCP{6 if ':' in address else 4} {address} {address} 1 2\r\n".encode())
        with pytest.raises(NoProxyHeader, match=r"is no address of a client of ::ffff:10\.0\.0\.5$"):
            await take_header(ours, "::ffff:10.0.0.5", proxies("10.0.0.0/8"))


async def test_a_header_has_its_time() -> None:
    async with open_door(proxies=proxies("127.0.0.1", timeout_ms=1)) as door:
        with capture_logs() as lines:
            client = await door.connect()
            await client.send_all(LINE[:-1])
            assert await receive_all(client) == b""
        assert [line["reason"] for line in lines] == ["not complete after 1 ms"]


async def test_who_closes_before_the_header_is_complete_is_gone() -> None:
    async with open_door(proxies=proxies("127.0.0.1")) as door:
        with capture_logs() as lines:
            client = await door.connect()
            await client.send_all(BINARY[:20])
            await client.send_eof()
            assert await receive_all(client) == b""
        assert [line["reason"] for line in lines] == ["closed by the peer"]
        assert not door.shell.handshakes
