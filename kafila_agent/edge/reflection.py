"""Asking the reflector, over the agent's own socket: where we are seen from, and how long that took."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from kafila_proto import stun

RETRY_S = (0.25, 0.5, 1.0)  # RFC 8489 section 6.2.1 with fewer, shorter waits
RTT_SAMPLES = 7
RTT_TIMEOUT_S = 1.0


@dataclass(slots=True)
class Reflections:
    """Requests under way. ``send`` puts a datagram on the socket."""

    send: Callable[[bytes, stun.Address], object]
    answering: set[stun.Address] = field(default_factory=set)
    _waiting: dict[bytes, tuple[stun.Address, asyncio.Future[stun.Address]]] = field(default_factory=dict)

    def receive_datagram(self, data: bytes, address: stun.Address) -> None:
        """Take a STUN datagram; one that answers no request of ours, from where it went, is ignored."""
        waiting = self._waiting.get(data[8:20])
        if waiting is None or waiting[0] != address:
            return
        try:
            mapped = stun.mapped_address(stun.parse_stun(data))
        except stun.StunError:
            return
        if mapped is not None and not waiting[1].done():
            self.answering.add(address)
            waiting[1].set_result(mapped)

    async def reflect(
        self, reflector: stun.Address, timeouts_s: tuple[float, ...] = RETRY_S
    ) -> stun.Address | None:
        """Where ``reflector`` sees this socket; None if it does not answer."""
        for timeout_s in timeouts_s:
            data, transaction = stun.encode_request()
            future: asyncio.Future[stun.Address] = asyncio.get_running_loop().create_future()
            self._waiting[transaction] = (reflector, future)
            try:
                self.send(data, reflector)
                return await asyncio.wait_for(future, timeout_s)
            except TimeoutError:
                continue
            finally:
                del self._waiting[transaction]
        return None

    async def measure_rtt_s(self, reflector: stun.Address, samples: int = RTT_SAMPLES) -> float | None:
        """The median of several round trips in seconds; None unless most of them came back."""
        loop, rtts_s = asyncio.get_running_loop(), []
        for _ in range(samples):
            began = loop.time()
            if await self.reflect(reflector, (RTT_TIMEOUT_S,)) is not None:
                rtts_s.append(loop.time() - began)
            elif not rtts_s:
                return None
        return statistics.median(rtts_s) if len(rtts_s) > samples // 2 else None
