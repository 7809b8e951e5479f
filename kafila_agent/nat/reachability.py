"""Where this machine stands on the network: the shell around ``discovery.py``, for both families at once."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from kafila_agent.edge.candidate import Candidate, CandidateKind, interface_hosts
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.nat.discovery import Discovered, Discovery, Local
from kafila_planner.facts import Behaviour
from kafila_proto import stun
from kafila_proto.udp_socket import drain, open_udp_socket, send

_DATAGRAMS_A_TURN = 64


@dataclass(frozen=True)
class Reachability:
    """The facts of the same names; ``second_port``: whether the rendezvous's second UDP port answers."""

    candidates: tuple[Candidate, ...]
    rendezvous_rtt_s: float | None = None
    udp: bool = True
    ipv4: bool = True
    ipv6: bool = False
    mapping: Behaviour | None = None
    filtering: Behaviour | None = None
    hairpin: bool | None = None
    hairpin_open: bool | None = None
    nat: str | None = None
    second_port: bool | None = None


async def measure_reachability(
    endpoint: EdgeEndpoint,
    host: str,
    udp_port: int,
    *,
    stun_servers: Sequence[stun.Address] = (),
    mapped_port: stun.Address | None = None,
) -> Reachability:
    """Ask the reflector at ``udp_port`` and the next, and ``stun_servers``; and how far it is.

    ``mapped_port`` is where a router lets datagrams in for us (see ``port_mapping.py``).
    """
    reflectors = await endpoint.resolve((host, udp_port))
    others = [address for server in stun_servers for address in await endpoint.resolve(server)]
    run = _Run(endpoint, reflectors, others)
    rtt_s, discovered, candidates = await asyncio.gather(
        endpoint.measure_rtt_s((host, udp_port)), run.finish(), endpoint.candidates()
    )
    return conclude(candidates, rtt_s, discovered, mapped_port)


def conclude(
    candidates: Sequence[Candidate],
    rtt_s: float | None,
    discovered: Sequence[Discovered],
    mapped_port: stun.Address | None,
) -> Reachability:
    """What the answers of each family come to. Without any, UDP does not pass."""
    seen = [found for found in discovered if found.mapped is not None]
    if not seen:
        return Reachability(tuple(candidates), udp=False)
    ipv4 = next((found for found in seen if found.mapped and ":" not in found.mapped[0]), None)
    ipv6 = next((found for found in seen if found.mapped and ":" in found.mapped[0]), None)
    own = {(c.host, c.port) for c in candidates}
    outer = [found.mapped for found in seen if found.mapped and found.mapped not in own]
    reflexive = [Candidate(CandidateKind.SERVER_REFLEXIVE, *address) for address in outer]
    filtering = ipv4.filtering if ipv4 else None
    if mapped_port is not None and ipv4 and ipv4.mapped and ipv4.mapped[0] == mapped_port[0]:
        # The router lets everyone in at that port, and it is the outermost one: nobody else filters.
        reflexive.append(Candidate(CandidateKind.PORT_MAPPED, *mapped_port))
        filtering = Behaviour.ENDPOINT_INDEPENDENT
    return Reachability(
        (*candidates, *reflexive),
        rtt_s,
        ipv4=ipv4 is not None,
        ipv6=ipv6 is not None and not ipv6.translated,
        mapping=ipv4.mapping if ipv4 else None,
        filtering=filtering,
        hairpin=ipv4.hairpin if ipv4 else None,
        hairpin_open=ipv4.hairpin_open if ipv4 else None,
        nat=opaque(ipv4.mapped[0]) if ipv4 and ipv4.mapped and ipv4.translated else None,
        second_port=next((found.second_port for found in seen), None),
    )


def opaque(host: str) -> str:
    """A name for an address that tells who shares it, and nobody's address."""
    return hashlib.sha256(host.encode()).hexdigest()[:12]


class _Run:
    """One discovery for each reflector, all at once; a family that is dead does not hold up the one that lives."""

    def __init__(
        self, endpoint: EdgeEndpoint, reflectors: Sequence[stun.Address], others: Sequence[stun.Address]
    ):
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._done = asyncio.Event()
        bound = endpoint.local_address[0]
        own_hosts = {stun.plain_address((each, 0))[0] for each in (bound, *interface_hosts())}
        self._cores: list[tuple[Discovery, dict[Local, socket.socket]]] = []
        for reflector in reflectors:
            family = [other for other in others if (":" in other[0]) == (":" in reflector[0])]
            core = Discovery(
                reflector, reflector[1] + 1, own_hosts=own_hosts, now=self._loop.time(), others=family
            )
            host = _fresh_host(bound, reflector[0])
            own = {local: open_udp_socket(host, 0) for local in (Local.FRESH, Local.STRANGER)}
            self._cores.append((core, own))

    async def finish(self) -> list[Discovered]:
        """Every family's answers."""
        self._endpoint.stun_listeners.append(self._receive_main)
        for core, own in self._cores:
            for local, udp in own.items():
                self._loop.add_reader(udp, self._receive_own, core, local, udp)
        try:
            self._pump()
            await self._done.wait()
            return [core.result() for core, _ in self._cores]
        finally:
            self._close()

    def _close(self) -> None:
        self._endpoint.stun_listeners.remove(self._receive_main)
        if self._timer is not None:
            self._timer.cancel()
        for udp in (udp for _, own in self._cores for udp in own.values()):
            self._loop.remove_reader(udp)
            udp.close()

    def _receive_main(self, data: bytes, source: stun.Address) -> None:
        for core, _ in self._cores:
            core.receive_datagram(Local.MAIN, data, source, self._loop.time())
        self._pump()

    def _receive_own(self, core: Discovery, local: Local, udp: socket.socket) -> None:
        for data, source in drain(udp, _DATAGRAMS_A_TURN):
            core.receive_datagram(local, data, stun.plain_address(source[:2]), self._loop.time())
        self._pump()

    def _pump(self) -> None:
        now = self._loop.time()
        for core, own in self._cores:
            core.handle_timer(now)
            for out in core.datagrams_to_send(now):
                if out.local is Local.MAIN:
                    self._endpoint.send_datagram(out.data, out.target)
                else:
                    send(own[out.local], out.data, out.target)
        if self._timer is not None:
            self._timer.cancel()
        if self._is_done():
            self._done.set()
            return
        self._timer = self._loop.call_at(
            min(t for core, _ in self._cores if (t := core.get_timer()) is not None), self._pump
        )

    def _is_done(self) -> bool:
        lives = any(core.is_over and core.is_answered for core, _ in self._cores)
        return all(core.is_over or (lives and not core.is_answered) for core, _ in self._cores)


def _fresh_host(bound: str, reflector: str) -> str:
    """Where to bind the other sockets: as the main one, in the reflector's family."""
    if not ipaddress.ip_address(bound).is_unspecified:
        return bound
    return "::" if ":" in reflector else "0.0.0.0"  # noqa: S104  it asks, and hears answers
