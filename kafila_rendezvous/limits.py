"""What one network may ask of a rendezvous, and how long a code's number lasts."""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds; a source is one IPv4 address or one IPv6 /64, what a household has."""

    members: int = 32
    sessions_per_source: int = 16
    agents_per_source: int = 64
    greetings_per_source: int = 64  # streams that have not said Hello
    wrong_numbers_per_source: int = 10
    wrong_numbers_window_s: float = 600.0
    number_valid_s: float = 3600.0


class RecentCounts:
    """How often something happened for a source in the last ``window_s`` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._events: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def add(self, source: str, now: float) -> None:
        """It happened for ``source``."""
        self._events.append((now, source))
        self._counts[source] += 1

    def count(self, source: str, now: float) -> int:
        """How often it did, up to ``now``: asked at every call, so nothing is searched for it."""
        while self._events and self._events[0][0] <= now - self._window_s:
            _, other = self._events.popleft()
            self._counts[other] -= 1
            if not self._counts[other]:
                del self._counts[other]
        return self._counts[source]


class Allowance:
    """So many requests a second for each source, and some at once. Remembers ``sources`` of them, the latest."""

    def __init__(self, per_s: float, at_once: float, sources: int = 4096) -> None:
        self._per_s, self._at_once, self._sources = per_s, at_once, sources
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, source: str, now: float) -> bool:
        """Whether ``source`` may have one more."""
        left, counted_at = self._left.pop(source, (self._at_once, now))
        left = min(self._at_once, left + (now - counted_at) * self._per_s)
        allowed = left >= 1
        self._left[source] = (left - allowed, now)
        if len(self._left) > self._sources:
            self._left.popitem(last=False)
        return allowed


def source_of(peer: str) -> str:
    """The source in gRPC's name of a peer, ``ipv4:ADDRESS:PORT`` or ``ipv6:%5BADDRESS%5D:PORT``."""
    host = peer.partition(":")[2].rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")
    return source_network(host) or peer


@functools.lru_cache(maxsize=4096)
def source_network(host: str) -> str:
    """What a household has: the IPv4 address, or the IPv6 /64, that the literal ``host`` is of; "" if it is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
