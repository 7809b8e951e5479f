"""The rendezvous's UDP side: the reflector and the circuits, on one port and the next, in IPv4 and IPv6, and on a
second address where there is one.

A shell: it reads sockets, hands each datagram to a core and sends what the core answers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from kafila_proto import relay, stun
from kafila_proto.udp_socket import drain, open_udp_socket, send
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.limits import Allowance, source_network
from kafila_rendezvous.reflector import reflect

log = structlog.get_logger()

# One discovery is some 30 requests, and a household may have several members.
REFLECTIONS_PER_S = 50.0
REFLECTIONS_AT_ONCE = 500.0

_ASKED_TO_NOTICE = 20
_SWEEP_S = 5.0
_DATAGRAMS_A_TURN = 256  # some 3 ms
_PORT_PAIRS_TRIED = 32


@dataclass(slots=True, eq=False)
class _Vantage:
    """A socket that reads, and all that can answer what it reads, by the change of address and port they are."""

    udp: socket.socket
    answering: dict[int, socket.socket]
    places: dict[int, stun.Address]
    is_second: bool
    asked: int = 0


@dataclass(slots=True)
class DatagramServer:
    """Open sockets and the cores behind them; made by ``serve_datagrams``."""

    circuits: Circuits
    port: int
    reflected_datagrams: int = 0
    refused_datagrams: int = 0
    ignored_datagrams: int = 0
    allowance: Allowance = field(default_factory=lambda: Allowance(REFLECTIONS_PER_S, REFLECTIONS_AT_ONCE))
    _vantages: list[_Vantage] = field(default_factory=list)
    _noticed: bool = False
    _sweep: asyncio.TimerHandle | None = None

    @property
    def has_ipv6(self) -> bool:
        """Whether members can reach this rendezvous over IPv6."""
        return any(vantage.udp.family == socket.AF_INET6 for vantage in self._vantages)

    def close(self) -> None:
        """Stop reading and close every socket."""
        loop = asyncio.get_running_loop()
        if self._sweep is not None:
            self._sweep.cancel()
        for vantage in self._vantages:
            loop.remove_reader(vantage.udp)
            vantage.udp.close()
        self._vantages.clear()

    def _start(self, vantages: list[_Vantage]) -> None:
        loop = asyncio.get_running_loop()
        self._vantages = vantages
        for vantage in vantages:
            loop.add_reader(vantage.udp, self._receive, vantage)
        self._expire_circuits()

    def _expire_circuits(self) -> None:
        loop = asyncio.get_running_loop()
        self.circuits.handle_timer(loop.time())
        self._notice_blocked_port()
        self._sweep = loop.call_later(_SWEEP_S, self._expire_circuits)

    def _notice_blocked_port(self) -> None:
        """Whoever asks the first port asks the second too: if nothing comes there, a firewall is in the way."""
        first, second = (
            sum(v.asked for v in self._vantages if v.is_second is is_second) for is_second in (False, True)
        )
        if first >= _ASKED_TO_NOTICE and second == 0 and not self._noticed:
            self._noticed = True
            log.warning(
                "nothing reaches the second UDP port: members cannot tell their NATs apart",
                port=self.port + 1,
                remedy=f"let UDP port {self.port + 1} in, in this machine's and its provider's firewall",
            )

    def _receive(self, vantage: _Vantage) -> None:
        now = asyncio.get_running_loop().time()
        for data, address in drain(vantage.udp, _DATAGRAMS_A_TURN):
            if relay.is_relay(data):
                self._relay(vantage, data, address, now)
            elif stun.is_stun(data):
                self._reflect(vantage, data, address, now)
            else:
                self.ignored_datagrams += 1

    def _relay(self, vantage: _Vantage, data: bytes, address: tuple[Any, ...], now: float) -> None:
        # A side is known by the socket it came in on as well: its NAT lets answers in from there alone, and
        # the two sides may have come over different families.
        place = None if data[3] == relay.RelayKind.DATA else source_network(address[0])
        answer = self.circuits.receive_datagram(data, (vantage.udp, address), now, place)
        if answer is not None:
            out, (udp, target) = answer
            send(udp, out, target)

    def _reflect(self, vantage: _Vantage, data: bytes, address: tuple[Any, ...], now: float) -> None:
        if not self.allowance.spend(source_network(address[0]), now):
            self.refused_datagrams += 1
            return
        vantage.asked += 1
        reflection = reflect(data, address[:2], vantage.places)
        if reflection is None:
            self.ignored_datagrams += 1
            return
        self.reflected_datagrams += send(vantage.answering[reflection.change], reflection.data, address)


async def serve_datagrams(
    circuits: Circuits, hosts: list[str], port: int, second_hosts: Mapping[str, str] | None = None
) -> DatagramServer:
    """Serve UDP on ``port`` and ``port + 1`` of each literal address of ``hosts``; port 0 picks a free pair.

    ``second_hosts`` gives some of them a second address of this machine, for RFC 5780. Raises OSError naming the
    port that is taken.
    """
    pairs = [(host, (second_hosts or {}).get(host)) for host in hosts]
    vantages = _bind_any_port(pairs) if port == 0 else _bind(pairs, port)
    server = DatagramServer(circuits, vantages[0].places[0][1])
    server._start(vantages)
    log.info("serving datagrams", hosts=pairs, port=server.port, second_port=server.port + 1)
    return server


def _bind_any_port(pairs: list[tuple[str, str | None]]) -> list[_Vantage]:
    for _ in range(_PORT_PAIRS_TRIED):
        with open_udp_socket(pairs[0][0], 0) as free:
            port = free.getsockname()[1]
        try:
            return _bind(pairs, port)
        except OSError as error:
            last = error
    raise OSError(f"no two neighbouring UDP ports are free: {last}")


def _bind(pairs: list[tuple[str, str | None]], port: int) -> list[_Vantage]:
    opened: list[socket.socket] = []

    def bind(host: str, at: int) -> socket.socket:
        opened.append(open_udp_socket(host, at))
        return opened[-1]

    try:
        grids = [[[bind(h, p) for p in (port, port + 1)] for h in pair if h is not None] for pair in pairs]
    except OSError:
        for udp in opened:
            udp.close()
        raise
    return [_vantage(grid, a, p) for grid in grids for a in range(len(grid)) for p in range(2)]


def _vantage(grid: list[list[socket.socket]], a: int, p: int) -> _Vantage:
    """The socket of address ``a`` and port ``p``, beside the others of its ``grid``."""
    answering = {
        (stun.CHANGE_ADDRESS if b != a else 0) | (stun.CHANGE_PORT if q != p else 0): grid[b][q]
        for b in range(len(grid))
        for q in range(2)
    }
    return _Vantage(grid[a][p], answering, {c: udp.getsockname()[:2] for c, udp in answering.items()}, p == 1)
