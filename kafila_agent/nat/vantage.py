"""The rendezvous seen from here, all the time. A question now and then keeps the NAT from forgetting the socket while a
session waits for its members (some do after 30 s, and the address that was reported would be nobody's), and its answer
says how far the rendezvous is now.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from collections.abc import Callable

from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_proto.stun import Address

EVERY_S = 12.0
_REMEMBERED = 9


class Vantage:
    """``reflector`` says where to ask; None while that is not known."""

    def __init__(self, endpoint: EdgeEndpoint, reflector: Callable[[], Address | None]):
        self._endpoint = endpoint
        self._reflector = reflector
        self._rtts_s: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def rtt_s(self) -> float | None:
        """The median of the latest round trips in seconds; None before the first."""
        return statistics.median(self._rtts_s) if self._rtts_s else None

    async def keep(self, every_s: float = EVERY_S) -> None:
        """Ask in both families, again and again, until cancelled."""
        while True:
            reflector = self._reflector()
            if reflector is not None:
                rtt_s = await self._endpoint.measure_rtt_s(reflector, samples=1)
                if rtt_s is not None:
                    self._rtts_s.append(rtt_s)
            await asyncio.sleep(every_s)
