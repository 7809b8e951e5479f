"""Planning, in threads: seconds of arithmetic must not hold up every relayed frame, nor one network all others.

A network has one fleet planned at a time, the rendezvous two. Of a session that changes while it waits for its turn
only the latest fleet is planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

import structlog

from kafila_proto.fleet import plan_fleet
from kafila_proto.names import session_label
from kafila_rendezvous.outcome import PlanFleet

PLANS_AT_ONCE = 2

log = structlog.get_logger()


class Planning:
    """``planned`` gets each command's fleet and plan as JSON, ``failed`` why there is none."""

    def __init__(
        self, planned: Callable[[PlanFleet, str, str], None], failed: Callable[[PlanFleet, str], None]
    ) -> None:
        self._planned, self._failed = planned, failed
        self._latest: dict[bytes, PlanFleet] = {}  # of the sessions that wait for their turn
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._at_once = asyncio.Semaphore(PLANS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: PlanFleet, source: str) -> None:
        """Plan as soon as it is the turn of ``source``, the network that the session was opened from."""
        is_waiting = work.session_id in self._latest
        self._latest[work.session_id] = work
        if not is_waiting:
            turn = self._turns.setdefault(source, asyncio.Lock())
            task = asyncio.create_task(self._await_turn(work.session_id, turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self, session_id: bytes) -> None:
        """The session is over."""
        self._latest.pop(session_id, None)

    def close(self) -> None:
        """Plan nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _await_turn(self, session_id: bytes, turn: asyncio.Lock) -> None:
        async with turn, self._at_once:
            work = self._latest.pop(session_id, None)
            if work is not None:
                await self._plan(work)

    async def _plan(self, work: PlanFleet) -> None:
        try:
            fleet_json, plan_json = await asyncio.to_thread(plan_fleet, work.charter, work.reports)
        except ValueError as error:
            self._failed(work, str(error))
        except Exception:  # a session must not wait for ever for a planner that broke
            log.exception("the planner failed", session=session_label(work.session_id))
            self._failed(work, "the planner failed: see its log")
        else:
            self._planned(work, fleet_json, plan_json)
