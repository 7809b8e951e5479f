"""The ways to one peer: which addresses answer, how large a datagram they carry, which one is in use.

A datagram core. An address is SEARCHED with small checks, at falling frequency, until one is answered; the
member who dials then has it SIZED with checks as large as the datagrams QUIC would send, the largest first;
the first that returns makes it READY, and a larger one that comes later makes it READY at that. The round trips of
READY addresses go on being measured, seldom, so that the best of them can be used. After the connection stands, an
address that its datagrams suddenly come from is SIZED the same way before anything is sent there (a NAT gave the peer a
new port; the peer's network changed).

Addresses are opaque here: the shell's socket addresses, and RELAY for the circuit.
"""

from __future__ import annotations

import enum
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kafila_agent.edge.check import CHECK_BYTES, TRANSACTION_BYTES, Check, CheckKind, PairKey


class Way(enum.Enum):
    """A way that has no address of its own."""

    RELAY = "relay"


RELAY: Final = Way.RELAY
Address = tuple[str, int] | Way

# UDP payloads: jumbo Ethernet and loopback, Ethernet (IPv6), most tunnels, and the least QUIC works with.
DATAGRAM_BYTES = (8952, 1452, 1372, 1200)
MIN_DATAGRAM_BYTES = DATAGRAM_BYTES[-1]

SEARCH_DELAYS_S = (0.05, 0.1, 0.2, 0.3, 0.5)  # the last one repeats
SIZED_COPIES = 2  # one lost datagram shall not make every later one smaller
SEARCH_TRIES = 10  # before an address is sought seldom, where something worse works already
RELAXED_DELAY_S = 5.0
IDLE_DELAY_S = 60.0  # where something as good may work
MEASURE_DELAYS_S = (0.1, 0.1, 0.1, 5.0)  # the last one repeats
RTTS_NEEDED, RTTS_REMEMBERED = 3, 5
SIZE_DELAYS_S = (0.2, 0.4, 0.8)  # then the path is taken for dead
SUSPECT_EVERY_S = 0.5
FORGET_S = 5.0  # an answer that took longer is none
MAX_PATHS = 32


class PathState(enum.StrEnum):
    """How far one address has come."""

    SEARCHED = "searched"
    ANSWERED = "answered"
    SIZED = "sized"
    READY = "ready"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class PathReady:
    """An address that carries ``datagram_bytes`` both ways."""

    address: Address
    datagram_bytes: int
    rtt_s: float


@dataclass(frozen=True, slots=True)
class PathMeasured:
    """A ready address has answered again; ``rtt_s`` is the least of its latest round trips."""

    address: Address
    datagram_bytes: int
    rtt_s: float


@dataclass(slots=True)
class _Path:
    address: Address
    state: PathState
    sizes: tuple[int, ...]
    delays: Iterator[float | None]
    next_check_at: float | None
    sent: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    suspected_at: float | None = None
    datagram_bytes: int = 0  # once it is ready
    rtts_s: deque[float] = field(default_factory=lambda: deque(maxlen=RTTS_REMEMBERED))


def _forever(delays_s: tuple[float, ...], last_s: float) -> Iterator[float | None]:
    return itertools.chain(delays_s, itertools.repeat(last_s))


def _sizing() -> Iterator[float | None]:
    return itertools.chain(SIZE_DELAYS_S, itertools.repeat(None))


class Paths:
    """Checks towards one peer. ``dials`` says whether this member dials it."""

    def __init__(self, key: PairKey, *, dials: bool, sizes: tuple[int, ...] = DATAGRAM_BYTES):
        self._key = key
        self._dials = dials
        self._sizes = sizes
        self._paths: dict[Address, _Path] = {}
        self._answers: deque[tuple[bytes, Address]] = deque()
        self._events: deque[PathReady | PathMeasured] = deque()
        self._relaxed_s: float | None = None

    def search(self, addresses: Iterable[Address], now: float) -> None:
        """Begin to check ``addresses``; those that are known go on as they are, unless they were given up."""
        for address in addresses:
            known = self._paths.get(address)
            if known is None or known.state is PathState.DEAD:
                self._make_room()
                self._paths[address] = _Path(
                    address, PathState.SEARCHED, (CHECK_BYTES,), self._searching(), now
                )

    def insist(self, address: Address, now: float) -> None:
        """Check ``address`` until both ends have what they need of it: the peer may have missed the last checks."""
        known = self._paths.get(address)
        is_enough = PathState.READY if self._dials else PathState.SIZED
        if known is None or known.state not in (PathState.SEARCHED, PathState.SIZED, is_enough):
            self._paths.pop(address, None)
            self.search([address], now)

    def suspect(self, address: Address, datagram_bytes: int, now: float) -> None:
        """Check an address that the connection's datagrams come from, at their size and less, before using it."""
        known = self._paths.pop(address, None)
        if known is not None and known.suspected_at is not None:
            is_under_way = known.state is PathState.SIZED and datagram_bytes in known.sizes
            if is_under_way or now - known.suspected_at < SUSPECT_EVERY_S:
                self._paths[address] = known
                return
        self._make_room()
        sizes = (datagram_bytes, *(size for size in self._sizes if size < datagram_bytes))
        path = _Path(address, PathState.SIZED, sizes, _sizing(), now, suspected_at=now)
        self._paths[address] = path

    def relax(self, delay_s: float) -> None:
        """Go on searching, but only every ``delay_s`` in the end: another address works already."""
        self._relaxed_s = delay_s
        for path in self._paths.values():
            if path.state is PathState.SEARCHED:
                path.delays = itertools.repeat(delay_s)

    def search_again(self, now: float) -> None:
        """Whatever answered before has to answer anew."""
        known = list(self._paths)
        self._paths.clear()
        self.search(known, now)

    def stop(self) -> None:
        """Forget every path; requests of the peer are still answered."""
        self._paths.clear()
        self._relaxed_s = None

    def receive_check(self, check: Check, address: Address, now: float, *, searching: bool) -> None:
        """Take an authentic check; ``searching``: from an unknown address it is worth one of our own."""
        if check.from_dialer == self._dials:
            return  # our own, sent back to us
        if check.kind is CheckKind.REQUEST:
            answer = self._key.encode(
                CheckKind.ANSWER, check.transaction, from_dialer=self._dials, size=check.size
            )
            self._answers.append((answer, address))
            if searching:
                self.search([address], now)
        else:
            self._take_answer(check, address, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Answers due at once, and the checks whose time has come."""
        datagrams = list(self._answers)
        self._answers.clear()
        for path in self._paths.values():
            if path.next_check_at is not None and path.next_check_at <= now:
                datagrams += self._checks(path, now)
        return datagrams

    def get_timer(self) -> float | None:
        """When the next check is due; None if none is."""
        times = [path.next_check_at for path in self._paths.values() if path.next_check_at is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Nothing but time moves here: ``datagrams_to_send`` looks at it."""

    def next_event(self) -> PathReady | PathMeasured | None:
        """The next path that became ready, or was measured again."""
        return self._events.popleft() if self._events else None

    def _searching(self) -> Iterator[float | None]:
        if self._relaxed_s is None:
            return _forever(SEARCH_DELAYS_S, SEARCH_DELAYS_S[-1])
        often = SEARCH_DELAYS_S + SEARCH_DELAYS_S[-1:] * (SEARCH_TRIES - len(SEARCH_DELAYS_S))
        return _forever(often, self._relaxed_s)

    def _make_room(self) -> None:
        """Forget one of those that never answered, else the one that has been here longest."""
        if len(self._paths) >= MAX_PATHS:
            mute = (a for a, p in self._paths.items() if p.state in (PathState.SEARCHED, PathState.DEAD))
            del self._paths[next(mute, next(iter(self._paths)))]

    def _checks(self, path: _Path, now: float) -> Iterator[tuple[bytes, Address]]:
        delay = next(path.delays)
        if delay is None:
            path.state, path.next_check_at = PathState.DEAD, None
            return
        path.next_check_at = now + delay
        path.sent = {t: (at, size) for t, (at, size) in path.sent.items() if now - at < FORGET_S}
        copies = SIZED_COPIES if path.state is PathState.SIZED else 1
        for size in itertools.chain.from_iterable(itertools.repeat(s, copies) for s in path.sizes):
            transaction = os.urandom(TRANSACTION_BYTES)
            path.sent[transaction] = (now, size)
            yield (
                self._key.encode(CheckKind.REQUEST, transaction, from_dialer=self._dials, size=size),
                path.address,
            )

    def _take_answer(self, check: Check, address: Address, now: float) -> None:
        path = self._paths.get(address)
        if path is None:
            return
        sent_at, size = path.sent.pop(check.transaction, (now, 0))
        if size != check.size:
            return  # cut on the way
        if path.state is PathState.READY and size > max(path.datagram_bytes, CHECK_BYTES):
            path.datagram_bytes = size
            self._events.append(PathReady(address, size, now - sent_at))
            return
        if size not in path.sizes:
            return  # the answer to a question asked before it was known that the path works
        if path.state is PathState.SEARCHED:
            path.state, path.next_check_at = PathState.ANSWERED, None
            if self._dials:
                path.state, path.sizes, path.delays = PathState.SIZED, self._sizes, _sizing()
                path.next_check_at = now
        elif path.state is PathState.SIZED:
            path.state, path.next_check_at, path.datagram_bytes = PathState.READY, None, size
            path.sizes = (CHECK_BYTES,)
            if self._dials:
                path.delays = _forever(MEASURE_DELAYS_S, MEASURE_DELAYS_S[-1])
                path.next_check_at = now + MEASURE_DELAYS_S[0]
            self._events.append(PathReady(address, size, now - sent_at))
        elif path.state is PathState.READY:
            path.rtts_s.append(now - sent_at)
            if len(path.rtts_s) >= RTTS_NEEDED:
                self._events.append(PathMeasured(address, path.datagram_bytes, min(path.rtts_s)))
