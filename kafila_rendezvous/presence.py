"""Which agents are here: those whose stream is up, and members at work whose stream broke a moment ago. A core.

A stream breaks because a process ended, or because a network changed under one that lives: an address, a NAT, a
Wi-Fi. From here the two look alike. So a member at work has GRACE_S in which its next stream goes on with
the association, and nobody hears of it. That can wait, for tokens do not pass here, and who has really gone is missed
by its neighbours in the ring before: they say within 8 s that its edges are silent, which ends the grace at once, as
does another process of the same member.

GRACE_S is longer than those 8 s, and than what an agent takes to notice a silent stream, at most 10 s where the
rendezvous takes up to 15, and to try again, every 2 s at first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kafila_rendezvous.limits import Limits
from kafila_rendezvous.outcome import RequestRefused

GRACE_S = 15.0


@dataclass(slots=True)
class Attached:
    """An agent that is here. ``source`` is the network it came from, for limits; ``association`` its process's own."""

    name: str
    source: str
    association: bytes
    session_id: bytes | None = None  # as a member
    calling: bytes | None = None  # the session that it is being introduced to
    grace_until: float | None = None  # its stream broke
    is_missed: bool = False  # a neighbour has lost its edge to it, and nothing was heard of it since


class Presence:
    """``agents`` by fingerprint, in the order in which they came."""

    def __init__(self, limits: Limits) -> None:
        self.agents: dict[bytes, Attached] = {}
        self.limits = limits
        self._greeted: Counter[str] = Counter()

    @contextmanager
    def greeting(self, source: str) -> Iterator[None]:
        """While somebody has not said who they are. Raises RequestRefused if too many of that network have not."""
        if self._greeted[source] >= self.limits.greetings_per_source:
            raise RequestRefused(
                "limit", f"{self.limits.greetings_per_source} streams from {source} have not said Hello"
            )
        self._greeted[source] += 1
        try:
            yield
        finally:
            self._greeted[source] -= 1
            if not self._greeted[source]:
                del self._greeted[source]

    def check(self, agent: bytes, source: str, association: bytes) -> None:
        """Raise RequestRefused if another process of ``agent``, or too many agents of its network, are here.

        The same process may come again before it is known that its last stream is dead.
        """
        known = self.agents.get(agent)
        if known is not None and known.grace_until is None and known.association != association:
            raise RequestRefused(
                "forbidden",
                f"{known.name} is attached already with this identity, from another process or a connection just"
                " lost: stop the other agent, or try again in half a minute",
            )
        others = sum(other.source == source for name, other in self.agents.items() if name != agent)
        if others >= self.limits.agents_per_source:
            raise RequestRefused(
                "limit", f"{self.limits.agents_per_source} agents from {source} are attached already"
            )

    def go_on(self, agent: bytes, source: str, association: bytes) -> bool:
        """Whether the stream that has come goes on with what ``agent`` was about; its grace is over then."""
        known = self.agents.get(agent)
        if known is None or known.association != association:
            return False
        known.source, known.grace_until = source, None
        return True

    def out_of_grace(self, now: float) -> list[bytes]:
        """Those who have not come back in time."""
        return [
            agent for agent, it in self.agents.items() if it.grace_until is not None and now >= it.grace_until
        ]
