"""How far this member is, told to the rendezvous and so to the others; and how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kafila_agent.edge.edge import Edge
from kafila_agent.machine import Machine
from kafila_agent.session.lifecycle import State
from kafila_planner.facts import MAX_MEMBERS
from kafila_proto.rendezvous_pb2 import Candidate, EdgeState, FromAgent, MemberState, MemberUpdate, Progress

_PROGRESS_S = 0.2  # how often the others hear how much is loaded
_EDGE_REPORT_S = 5.0  # how often they hear the edges' round trips


class Telling:
    """``progress`` is what is known of each member, by fingerprint; ``look`` gives our epoch, state and edges."""

    def __init__(self, machine: Machine, look: Callable[[], tuple[int, State, list[Edge]]]):
        self.progress: dict[bytes, Progress] = {}
        self._machine = machine
        self._look = look
        self._candidates: tuple[Candidate, ...] = ()
        self._loaded = (0, 0)
        self._last_told_s = 0.0
        self._telling: asyncio.Task[None] | None = None

    def hear(self, update: MemberUpdate, roster: Collection[bytes]) -> bool:
        """Note how far another member is; False of a stranger."""
        if update.member not in roster and (roster or len(self.progress) >= MAX_MEMBERS):
            return False  # what is said before the first charter is kept: of so many at most
        self.progress[update.member] = update.progress
        return True

    def tell(self) -> None:
        """Tell what is so now."""
        epoch, state, edges = self._look()
        progress = Progress(
            epoch=epoch,
            state=MemberState.Name(state),
            loaded_bytes=self._loaded[0],
            total_bytes=self._loaded[1],
            edges=[EdgeState(peer=e.fingerprint, path=e.path, rtt_s=e.rtt_s or 0.0) for e in edges],
            candidates=self._candidates,
        )
        self.progress[self._machine.identity.fingerprint] = progress
        if state is not State.LEFT:
            self._machine.post(FromAgent(progress=progress))
        self._machine.changed()

    def found(self, candidates: tuple[Candidate, ...]) -> None:
        """Where we are reached: whoever joins after us and is on our LAN finds out before it reports."""
        self._candidates = candidates
        self.tell()

    def loading(self, loaded_bytes: int, total_bytes: int) -> None:
        """How much is read; told now and then."""
        self._loaded = (loaded_bytes, total_bytes)
        now = asyncio.get_running_loop().time()
        if loaded_bytes == total_bytes or now - self._last_told_s >= _PROGRESS_S:
            self._last_told_s = now
            self.tell()

    def forget(self) -> None:
        """Know of nobody, ourselves included, where they are reached: that is found out anew."""
        self.progress, self._candidates = {}, ()

    def keep_on(self) -> None:
        """Tell the edges' round trips from now on."""
        self._telling = asyncio.create_task(self._keep_telling())

    def stop(self) -> None:
        """Tell only when asked to."""
        if self._telling is not None:
            self._telling.cancel()

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(_EDGE_REPORT_S)
            self.tell()
