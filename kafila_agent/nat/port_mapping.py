"""A port of the router that lets the others in (UPnP IGD), asked for at the start and given back at the end.

The library is blocking, so it is used in a thread, one call at a time. Routers forget: the lease is renewed long before
it is over. A router that has none, or refuses, is nothing to complain about; the edges are punched or relayed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import structlog

from kafila_proto.stun import Address

log = structlog.get_logger()

T = TypeVar("T")

LEASE_S = 3600
RENEW_S = LEASE_S / 3
AGAIN_S = 600.0  # after a router refused, or was not there
_DISCOVER_MS = 2000
_PATIENCE_S = 4.0
_PORTS_TRIED = 4
_DESCRIPTION = "kafila"


class Gateway(Protocol):
    """What is used of ``miniupnpc.UPnP``; every method may raise, or return False."""

    discoverdelay: int
    lanaddr: str

    def discover(self) -> int: ...  # noqa: D102
    def selectigd(self) -> str: ...  # noqa: D102
    def externalipaddress(self) -> str: ...  # noqa: D102
    def addportmapping(  # noqa: D102
        self, outer: int, protocol: str, host: str, inner: int, text: str, remote: str, lease_s: int
    ) -> bool: ...
    def deleteportmapping(self, outer: int, protocol: str) -> bool: ...  # noqa: D102


class PortMapping:
    """Keeps ``port`` of this machine open from outside, as long as ``keep`` runs. ``address`` is where, if it is."""

    def __init__(self, port: int, gateway: Gateway | None = None):
        self.address: Address | None = None
        self._tried = asyncio.Event()
        self._port = port
        self._gateway = gateway
        self._holder: Gateway | None = None  # it is looked for anew after trouble, and may then be another
        self._held: int | None = None
        self._lock = threading.Lock()  # giving back waits for an answer that is still to come

    async def first_address(self) -> Address | None:
        """The address, once the router has been asked for the first time."""
        try:
            await asyncio.wait_for(self._tried.wait(), _PATIENCE_S)
        except TimeoutError:
            return None
        return self.address

    async def keep(self) -> None:
        """Ask, and ask again in time; until cancelled, when the port is given back."""
        try:
            while True:
                self.address = await asyncio.to_thread(self._locked, self._ask)
                self._tried.set()
                await asyncio.sleep(RENEW_S if self.address else AGAIN_S)
        finally:
            self._tried.set()
            await asyncio.shield(asyncio.to_thread(self._locked, self._give_back))

    def _locked(self, call: Callable[[], T]) -> T:
        with self._lock:
            return call()

    def _ask(self) -> Address | None:
        try:
            gateway = self._gateway = self._gateway or find_gateway()
            if gateway is None:
                return None
            host = str(ipaddress.ip_address(gateway.externalipaddress()))  # none while it is offline itself
            for outer in range(
                self._held or self._port, min(65536, (self._held or self._port) + _PORTS_TRIED)
            ):
                if self._map(gateway, outer):
                    self._holder, self._held = gateway, outer
                    log.info("the router lets members in", port=outer)
                    return host, outer
        except Exception as error:  # the library raises bare Exceptions with the router's words
            log.info("no port of the router", reason=str(error))
            self._gateway = None
        return None

    def _map(self, gateway: Gateway, outer: int) -> bool:
        try:
            return gateway.addportmapping(
                outer, "UDP", gateway.lanaddr, self._port, _DESCRIPTION, "", LEASE_S
            )
        except Exception as error:  # taken, most likely
            log.debug("port refused", port=outer, reason=str(error))
            return False

    def _give_back(self) -> None:
        gateway, held, self._held, self.address = self._holder, self._held, None, None
        if gateway is None or held is None:
            return
        try:
            gateway.deleteportmapping(held, "UDP")
        except Exception as error:  # it goes when the lease is over
            log.info("the router keeps the port until its lease is over", port=held, reason=str(error))


def find_gateway() -> Gateway | None:
    """The router on this network that speaks UPnP IGD; None if there is none."""
    import miniupnpc

    gateway: Any = miniupnpc.UPnP()
    gateway.discoverdelay = _DISCOVER_MS
    if gateway.discover() == 0:
        return None
    gateway.selectigd()
    found: Gateway = gateway
    return found
