"""The PROXY protocol, versions 1 and 2: a proxy in front of the broker says first whose connection it passes on.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt, sections 2.1 (a line of text) and 2.2 (binary).

1. `parse` is sans-IO; `take_header` reads a socket, and not a byte of what is behind the header: that is the client's
   own, perhaps its TLS.
2. A header is believed from the networks that are named alone, and has to be there: nothing is guessed (section 2).
3. A client is not on this machine because its proxy says so: loopback addresses count if the proxy has one itself.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import NamedTuple

import crc32c
import trio

from gateway.config import ProxyProtocol

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""How a header of version 2 begins."""
LINE_BYTES_MAX = 107
"""Longest header of version 1, its end included."""
BLOCK_BYTES_MAX = 4096
"""Most bytes behind the first 16 of version 2: addresses, and what else proxies tell, such as names in certificates."""

_HEAD_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21
_CRC32C = 0x03
_ADDRESS_BYTES = {1: 4, 2: 16}
"""By address family: AF_INET, AF_INET6."""
_UNIX_BYTES = 216

Address = tuple[str, int]


class NoProxyHeader(Exception):
    """What came is no header that can be believed; the text is part of a line of the log."""


class ProxyHeader(NamedTuple):
    """A header of `size` bytes. Without addresses the connection is the proxy's own (a health check), or of something
    that has no IP address.
    """

    size: int
    source: Address | None = None
    destination: Address | None = None


def parse(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with; None: it is not complete. Raises NoProxyHeader as soon as it can be none."""
    if SIGNATURE.startswith(data[:12]):
        return _binary(data) if len(data) >= _HEAD_BYTES else None
    if b"PROXY ".startswith(data[:6]):
        return _line(data)
    raise NoProxyHeader(f"it begins with {bytes(data[:12])!r}")


def _line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise NoProxyHeader(f"version 1: longer than {LINE_BYTES_MAX} bytes")
        return None
    _, *fields = bytes(data[:end]).split(b" ")
    if fields[0] == b"UNKNOWN":  # whatever follows means nothing
        return ProxyHeader(end + 2)
    if len(fields) != 5 or fields[0] not in (b"TCP4", b"TCP6"):
        raise NoProxyHeader(f"version 1: {bytes(data[:end])!r}")
    kind = ipaddress.IPv4Address if fields[0] == b"TCP4" else ipaddress.IPv6Address
    try:
        hosts = [str(kind(field.decode("ascii"))) for field in fields[1:3]]
        ports = [int(field) for field in fields[3:] if field.isdigit() and (field == b"0" or field[:1] != b"0")]
    except ValueError:
        raise NoProxyHeader(f"version 1: {bytes(data[:end])!r}") from None
    if len(ports) != 2 or max(ports) > 65_535:
        raise NoProxyHeader(f"version 1: {bytes(data[:end])!r}")
    return ProxyHeader(end + 2, (hosts[0], ports[0]), (hosts[1], ports[1]))


def _binary(data: bytes) -> ProxyHeader | None:
    command, family, transport = data[12], data[13] >> 4, data[13] & 0x0F
    size = int.from_bytes(data[14:_HEAD_BYTES], "big")
    if command not in (_LOCAL, _PROXY):
        raise NoProxyHeader(f"version 2: command {command:#04x}")
    if size > BLOCK_BYTES_MAX:
        raise NoProxyHeader(f"version 2: {size} bytes, more than {BLOCK_BYTES_MAX}")
    if family > 3 or transport > 2:
        raise NoProxyHeader(f"version 2: family {data[13]:#04x}")
    if len(data) < _HEAD_BYTES + size:
        return None
    block = bytes(data[_HEAD_BYTES : _HEAD_BYTES + size])
    host_bytes = _ADDRESS_BYTES.get(family, 0)
    known = 2 * host_bytes + 4 if host_bytes else _UNIX_BYTES if family == 3 else 0
    if command == _LOCAL:  # the block is to be discarded, whatever it says
        return ProxyHeader(_HEAD_BYTES + size)
    if size < known:
        raise NoProxyHeader(f"version 2: {size} bytes for addresses of {known}")
    _check(bytes(data[:_HEAD_BYTES]), block, known)
    if not host_bytes or transport != 1:
        return ProxyHeader(_HEAD_BYTES + size)
    hosts = [str(ipaddress.ip_address(block[at : at + host_bytes])) for at in (0, host_bytes)]
    ports = [int.from_bytes(block[at : at + 2], "big") for at in (2 * host_bytes, 2 * host_bytes + 2)]
    return ProxyHeader(_HEAD_BYTES + size, (hosts[0], ports[0]), (hosts[1], ports[1]))


def _check(head: bytes, block: bytes, at: int) -> None:
    """What else a header tells has to be whole, and its checksum right, if it has one (section 2.2.3)."""
    while at < len(block):
        kind, length = block[at], int.from_bytes(block[at + 1 : at + 3], "big")
        start, at = at + 3, at + 3 + length
        if start > len(block) or at > len(block):
            raise NoProxyHeader("version 2: a field is longer than the header")
        if kind == _CRC32C:
            sum_of = head + block[:start] + bytes(length) + block[at:]
            if block[start:at] != crc32c.crc32c(sum_of).to_bytes(4, "big"):
                raise NoProxyHeader("version 2: the checksum is wrong")


@dataclass(frozen=True)
class Proxies:
    """Who may speak for others, and for how long it may take."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    timeout_ms: int

    @classmethod
    def of(cls, config: ProxyProtocol) -> Proxies:
        """Those of the configuration."""
        return cls(tuple(map(ipaddress.ip_network, config.networks)), config.header_timeout_ms)

    def may_speak(self, host: str) -> bool:
        """Whether a peer is in one of the networks."""
        address = _plain(host)
        return any(address in network for network in self.networks)


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of IPv4 that is written as IPv6 (`::ffff:10.0.0.1`) as the former."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


async def take_header(sock: socket.socket, host: str, proxies: Proxies) -> ProxyHeader:
    """The header from a peer with the address `host`, with addresses that may be believed. Raises NoProxyHeader."""
    if not proxies.may_speak(host):
        raise NoProxyHeader("not from a network of proxy_protocol.networks")
    found = None
    with trio.move_on_after(proxies.timeout_ms / 1000):
        try:
            found = await _read_header(sock)
        except OSError as error:
            raise NoProxyHeader(error.strerror or str(error)) from None
    if found is None:
        raise NoProxyHeader(f"not complete after {proxies.timeout_ms} ms")
    if found.source is None:
        return found
    client = _plain(found.source[0])
    if client.is_unspecified or (client.is_loopback and not _plain(host).is_loopback):
        raise NoProxyHeader(f"{found.source[0]} is no address of a client of {host}")
    return found._replace(source=(str(client), found.source[1]))


async def _read_header(sock: socket.socket) -> ProxyHeader:
    """Take a header, and no more, off a socket. Raises NoProxyHeader, OSError."""
    taken = b""
    while True:
        try:
            seen = sock.recv(_HEAD_BYTES + BLOCK_BYTES_MAX - len(taken), socket.MSG_PEEK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not seen:
            raise NoProxyHeader("closed by the peer")
        found = parse(taken + seen)
        if found is not None:
            sock.recv(found.size - len(taken))
            return found
        taken += sock.recv(len(seen))
