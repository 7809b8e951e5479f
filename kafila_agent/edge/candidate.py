"""Candidates: the addresses at which a peer may reach this agent (RFC 8445 section 5.1.1).

They are reported before the plan; members of an edge tell each other again when they change, as 18 bytes each:

    +-----------------------------------------+-----------------+
    | address (128 bits; IPv4 mapped to IPv6) | port (16 bits)  |
    +-----------------------------------------+-----------------+
"""

from __future__ import annotations

import enum
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import psutil

MAX_CANDIDATES = 16
_ADDRESS = struct.Struct("!16sH")
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

# Bridges and pairs that container and virtual-machine tools make on every machine alike: their addresses lead
# nowhere from outside, or to another machine's own copy. A bridge that an administrator made (br0) stays.
_CONTAINER_INTERFACE = re.compile(
    r"^(docker\d|br-[0-9a-f]{12}$|veth|virbr|vnet\d|lxc|lxd|cni|flannel|cali|podman|vmnet|vboxnet)"
)


class CandidateKind(enum.IntEnum):
    """Where an address comes from; the numbers are those of rendezvous.proto."""

    HOST = 1
    SERVER_REFLEXIVE = 2
    PORT_MAPPED = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address, with the fields of the Candidate message."""

    kind: CandidateKind
    host: str
    port: int


class Reachable(Protocol):
    """What is needed of a candidate, as dataclass or as message."""

    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102


def interface_hosts() -> list[str]:
    """The literal addresses of every interface that is up, but those of containers; in the system's order."""
    up = {name for name, status in psutil.net_if_stats().items() if status.isup}
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and not _CONTAINER_INTERFACE.match(name)
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]


def local_networks() -> list[IPNetwork]:
    """What is on the link of each interface that ``interface_hosts`` names."""
    masks = {
        address.address: address.netmask
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.netmask
    }
    return [
        ipaddress.ip_network((host.partition("%")[0], _prefix_bits(masks[host])), strict=False)
        for host in interface_hosts()
        if host in masks
    ]


def _prefix_bits(netmask: str) -> int:
    return int(ipaddress.ip_address(netmask)).bit_count()


def choose_hosts(hosts: Iterable[str], *, loopback: bool = False) -> list[str]:
    """Those of ``hosts`` that a peer could use, once each, at most MAX_CANDIDATES.

    Loopback is for peers on this machine: only where asked for, or where there is nothing else. Link-local
    addresses mean something only together with an interface. Private, shared (100.64/10) and benchmarking
    (198.18/15) ranges are in use between friends and stay.
    """
    usable = list(dict.fromkeys(host for host in hosts if is_usable(host)))
    outward = [host for host in usable if not ipaddress.ip_address(host).is_loopback]
    return (usable if loopback or not outward else outward)[:MAX_CANDIDATES]


def is_usable(host: str) -> bool:
    """Whether ``host`` is a literal address that one datagram can be sent to."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast or address.is_link_local)


def candidate_addresses(candidates: Iterable[Reachable]) -> list[tuple[str, int]]:
    """Socket addresses of a peer's candidates, without those that make no sense."""
    addresses = [(c.host, c.port) for c in candidates if is_usable(c.host) and 0 < c.port < 65536]
    return list(dict.fromkeys(addresses))[:MAX_CANDIDATES]


def encode_addresses(addresses: Iterable[tuple[str, int]]) -> bytes:
    """Socket addresses as a peer is told them, at most MAX_CANDIDATES."""
    chosen = [(ipaddress.ip_address(host), port) for host, port in addresses][:MAX_CANDIDATES]
    return b"".join(_ADDRESS.pack(_as_ipv6(host).packed, port) for host, port in chosen)


def parse_addresses(data: bytes) -> list[tuple[str, int]]:
    """Those of a peer's addresses that make sense; what is no whole address at the end is ignored."""
    whole = data[: min(len(data) // _ADDRESS.size, MAX_CANDIDATES) * _ADDRESS.size]
    hosts = ((ipaddress.IPv6Address(packed), port) for packed, port in _ADDRESS.iter_unpack(whole))
    plain = [(str(host.ipv4_mapped or host), port) for host, port in hosts]
    return [(host, port) for host, port in plain if is_usable(host) and port]


def _as_ipv6(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(f"::ffff:{address}") if address.version == 4 else address
