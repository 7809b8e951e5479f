"""The shell around ``site.py``: checks over the edges' own socket, while a session forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kafila_agent.edge.candidate import Reachable, local_networks
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.nat.site import SiteChecks
from kafila_proto.stun import Address

_TURN_S = 0.05
_PATIENCE_S = 60.0  # those before us may be slow to find out; nothing is planned without their reports anyway


class Neighbourhood:
    """Answers and asks from the moment it is made until ``close``."""

    def __init__(self, endpoint: EdgeEndpoint, session_id: bytes, own: bytes):
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._checks = SiteChecks(session_id, own, local_networks())
        self._timer: asyncio.TimerHandle | None = None
        endpoint.on_check = self._receive

    def set_roster(self, fingerprints: Iterable[bytes]) -> None:
        """The members, in the charter's order."""
        self._checks.set_roster(fingerprints)

    def add_candidates(self, member: bytes, candidates: Iterable[Reachable]) -> None:
        """Where a member may be reached."""
        self._checks.add_candidates(member, candidates, self._loop.time())
        self._pump()

    async def find_site(self) -> str:
        """The name of our site, as soon as it is known, or after a while in which somebody told us nothing."""
        deadline = self._loop.time() + _PATIENCE_S
        while not self._checks.is_settled(now := self._loop.time()) and now < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_TURN_S)
        return self._checks.site()

    def close(self) -> None:
        """Answer no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._endpoint.on_check == self._receive:
            self._endpoint.on_check = None

    def _receive(self, data: bytes, source: Address) -> None:
        self._checks.receive_datagram(data, source, self._loop.time())
        self._pump()

    def _pump(self) -> None:
        for data, address in self._checks.datagrams_to_send(self._loop.time()):
            self._endpoint.send_datagram(data, address)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (when := self._checks.get_timer()) is not None:
            self._timer = self._loop.call_at(when, self._pump)
