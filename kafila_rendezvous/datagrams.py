"""The rendezvous's UDP side: the reflector and the circuits, on one port and the next, in IPv4 and IPv6.

A shell: it reads sockets, hands each datagram to a core and sends what the core answers.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import structlog

from kafila_proto import relay, stun
from kafila_proto.udp_socket import drain, open_udp_socket, send
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.reflector import reflect

log = structlog.get_logger()

_SWEEP_S = 5.0
_DATAGRAMS_A_TURN = 256  # some 3 ms
_PORT_PAIRS_TRIED = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Vantage:
    """Two sockets of one host: the one that reads, and its neighbour on the other port."""

    udp: socket.socket
    other: socket.socket
    address: stun.Address
    other_address: stun.Address


@dataclass(slots=True)
class DatagramServer:
    """Open sockets and the cores behind them; made by ``serve_datagrams``."""

    circuits: Circuits
    port: int
    reflected_datagrams: int = 0
    ignored_datagrams: int = 0
    _vantages: list[_Vantage] = field(default_factory=list)
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
        self._sweep = loop.call_later(_SWEEP_S, self._expire_circuits)

    def _receive(self, vantage: _Vantage) -> None:
        now = asyncio.get_running_loop().time()
        for data, address in drain(vantage.udp, _DATAGRAMS_A_TURN):
            if relay.is_relay(data):
                self._relay(vantage, data, address, now)
            elif stun.is_stun(data):
                self._reflect(vantage, data, address)
            else:
                self.ignored_datagrams += 1

    def _relay(self, vantage: _Vantage, data: bytes, address: tuple[Any, ...], now: float) -> None:
        # A side is known by the socket it came in on as well: its NAT lets answers in from there alone, and
        # the two sides may have come over different families.
        answer = self.circuits.receive_datagram(data, (vantage.udp, address), now)
        if answer is not None:
            out, (udp, target) = answer
            send(udp, out, target)

    def _reflect(self, vantage: _Vantage, data: bytes, address: tuple[Any, ...]) -> None:
        reflection = reflect(data, address[:2], vantage.address, vantage.other_address)
        if reflection is None:
            self.ignored_datagrams += 1
            return
        udp = vantage.other if reflection.from_other_port else vantage.udp
        self.reflected_datagrams += send(udp, reflection.data, address)


async def serve_datagrams(circuits: Circuits, hosts: list[str], port: int) -> DatagramServer:
    """Serve UDP on ``port`` and ``port + 1`` of each literal address of ``hosts``; port 0 picks a free pair.

    Raises OSError naming the port that is taken.
    """
    vantages = _bind_any_pair(hosts) if port == 0 else _bind_pairs(hosts, port)
    server = DatagramServer(circuits, vantages[0].address[1])
    server._start(vantages)
    log.info("serving datagrams", hosts=hosts, port=server.port, second_port=server.port + 1)
    return server


def _bind_any_pair(hosts: list[str]) -> list[_Vantage]:
    for _ in range(_PORT_PAIRS_TRIED):
        with open_udp_socket(hosts[0], 0) as free:
            port = free.getsockname()[1]
        try:
            return _bind_pairs(hosts, port)
        except OSError as error:
            last = error
    raise OSError(f"no two neighbouring UDP ports are free: {last}")


def _bind_pairs(hosts: list[str], port: int) -> list[_Vantage]:
    vantages: list[_Vantage] = []
    opened: list[socket.socket] = []
    try:
        for host in hosts:
            first = open_udp_socket(host, port)
            opened.append(first)
            second = open_udp_socket(host, port + 1)
            opened.append(second)
            names = first.getsockname()[:2], second.getsockname()[:2]
            vantages += [_Vantage(first, second, *names), _Vantage(second, first, *names[::-1])]
    except OSError:
        for udp in opened:
            udp.close()
        raise
    return vantages
