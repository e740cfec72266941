"""Basic types: identifiers, addresses, prefixes, ports, flow keys (glossary names)."""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import NamedTuple, NewType

import msgspec

DatapathId = NewType("DatapathId", int)
PortNo = NewType("PortNo", int)
MacAddress = NewType("MacAddress", bytes)
Address = NewType("Address", int)
"""An IPv4 address as a number; encoded as IPv4-mapped IPv6 in our own messages (spec/README 2)."""
AgentId = NewType("AgentId", bytes)
FlowKey = NewType("FlowKey", bytes)
"""12 bytes: client address, server address, client port, server port, in the packet's byte order."""

MAX_PORT_NO = 0xFFFFFF00
"""Higher port numbers are reserved (OpenFlow 1.3.5, 7.2.1)."""

TUNNEL_PREFIX = "sosvx"

MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""
_LENGTH = re.compile(r"/[0-9]{1,2}\Z")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class Prefix(NamedTuple):
    """An IPv4 prefix; host bits are zero."""

    network: int
    length: int

    @property
    def mask(self) -> int:
        """Return the netmask as a number."""
        return (0xFFFFFFFF << (32 - self.length)) & 0xFFFFFFFF

    @property
    def masked(self) -> tuple[int, int] | None:
        """Return network and mask to match; None if the prefix contains every address."""
        return (self.network, self.mask) if self.length else None

    def holds(self, address: int) -> bool:
        """Return whether the address lies in the prefix."""
        return not (address ^ self.network) >> (32 - self.length)

    def __str__(self) -> str:
        return f"{format_address(self.network)}/{self.length}"


class Port(msgspec.Struct, frozen=True, gc=False):
    """A port of a datapath, as its switch describes it."""

    port_no: PortNo
    name: str
    mac: MacAddress
    up: bool
    watched: bool = False
    """The switch itself checks that the far end answers, and reports the result as `live` (spec/node-config.md clause 44)."""
    live: bool = False


class Location(NamedTuple):
    """Attachment point of a host or agent."""

    dpid: DatapathId
    port_no: PortNo


def parse_address(text: str) -> Address:
    """Convert `10.0.0.1` to a number; raise ValueError if it is not an IPv4 address."""
    return Address(int(ipaddress.IPv4Address(text)))


@functools.lru_cache(maxsize=4096)
def parse_prefix(text: str) -> Prefix:
    """Convert `10.0.0.0/24` to a Prefix; raise ValueError if the text is no prefix or has host bits set. A mask instead of a length is
    invalid."""
    if _LENGTH.search(text) is None:
        raise ValueError(f"not a prefix with its length: {text!r}")
    net = ipaddress.IPv4Network(text, strict=True)
    return Prefix(int(net.network_address), net.prefixlen)


def parse_mac(text: str) -> MacAddress:
    """Convert `02:53:...` to six bytes; raise ValueError for other text. `int` would accept signs, spaces and other scripts' digits."""
    if _MAC.fullmatch(text) is None:
        raise ValueError(f"not a MAC address: {text!r}")
    return MacAddress(bytes.fromhex(text.replace(":", "")))


def format_address(address: int) -> str:
    """Return the dotted quad."""
    return f"{address >> 24 & 255}.{address >> 16 & 255}.{address >> 8 & 255}.{address & 255}"


def format_mac(mac: bytes) -> str:
    """Return colon-separated hex."""
    return mac.hex(":")


def format_dpid(dpid: int) -> str:
    """Return 16 hex digits, as everywhere in SOS."""
    return f"{dpid:016x}"


def tunnel_number(port: str) -> int:
    """Return the number in the name of a tunnel's port (spec/node-config.md clause 6), 0 for other ports."""
    number = port[len(TUNNEL_PREFIX) :]
    return int(number) if port.startswith(TUNNEL_PREFIX) and number.isascii() and number.isdigit() and len(number) <= 4 else 0


def map_address(address: int) -> bytes:
    """Return the 16 bytes of an address in our messages (RFC 4291, 2.5.5.2)."""
    return MAPPED + address.to_bytes(4, "big")


def unmap_address(data: bytes) -> Address | None:
    """Return the IPv4 address of 16 bytes, None if they are not an IPv4-mapped address."""
    if len(data) != 16 or data[:12] != MAPPED:
        return None
    return Address(int.from_bytes(data[12:], "big"))


def ends_of(key: FlowKey) -> tuple[Address, Address, int, int]:
    """Return client and server address, client and server port of a flow."""
    number = int.from_bytes
    return Address(number(key[:4], "big")), Address(number(key[4:8], "big")), number(key[8:10], "big"), number(key[10:], "big")


def flow_key(client: int, server: int, client_port: int, server_port: int) -> FlowKey:
    """Build the key of a flow from its parts."""
    return FlowKey(client.to_bytes(4, "big") + server.to_bytes(4, "big") + client_port.to_bytes(2, "big") + server_port.to_bytes(2, "big"))
