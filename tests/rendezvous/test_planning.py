"""Whose fleet is planned when: real plans in real threads, released one at a time by the test."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kafila_proto.rendezvous_pb2 import Charter
from kafila_rendezvous import planning
from kafila_rendezvous.outcome import PlanFleet
from kafila_rendezvous.planning import PLANS_AT_ONCE, Planning


class Table:
    """Planners that wait to be let go. ``running``: (session, epoch) of each that is at work."""

    def __init__(self) -> None:
        self.running: list[tuple[bytes, int]] = []
        self.answers: list[tuple[bytes, int, str]] = []
        self.reason = ValueError("no such fleet")
        self._go: dict[tuple[bytes, int], threading.Event] = {}
        self.planning = Planning(lambda work, *_: self._note(work, "planned"), self._note)

    def plan(self, charter: Charter, reports: tuple) -> tuple[str, str]:
        key = charter.session_id, charter.revision
        go = self._go.setdefault(key, threading.Event())
        self.running.append(key)
        assert go.wait(10)
        self.running.remove(key)
        if charter.objective:
            raise self.reason
        return "{}", "{}"

    def begin(self, session: bytes, source: str, epoch: int = 1, **fields) -> None:
        charter = Charter(session_id=session, revision=epoch, **fields)
        self.planning.begin(PlanFleet(session, epoch, charter, ()), source)

    def release(self, session: bytes, epoch: int = 1) -> None:
        self._go.setdefault((session, epoch), threading.Event()).set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def _note(self, work: PlanFleet, words: str) -> None:
        self.answers.append((work.session_id, work.epoch, words))


@pytest.fixture
async def table(monkeypatch):
    made = Table()
    monkeypatch.setattr(planning, "plan_fleet", made.plan)
    yield made
    made.planning.close()
    for event in made._go.values():
        event.set()


async def test_one_network_has_one_plan_at_a_time_and_another_need_not_wait(table):
    for session in (b"a", b"b", b"c"):
        table.begin(session, "botnet")
    await table.until(lambda: table.running)
    table.begin(b"d", "home")
    await table.until(lambda: len(table.running) == 2)
    assert table.running == [(b"a", 1), (b"d", 1)]
    table.release(b"d")
    await table.until(lambda: table.answers == [(b"d", 1, "planned")])
    assert table.running == [(b"a", 1)]
    table.release(b"a")
    await table.until(lambda: table.running == [(b"b", 1)])


async def test_so_many_are_planned_at_once(table):
    for number in range(PLANS_AT_ONCE + 2):
        table.begin(bytes([number]), f"network {number}")
    await table.until(lambda: len(table.running) == PLANS_AT_ONCE)
    await asyncio.sleep(0.05)
    assert len(table.running) == PLANS_AT_ONCE


async def test_only_the_latest_fleet_of_a_session_is_planned(table):
    table.begin(b"a", "home")
    await table.until(lambda: table.running)
    for epoch in range(2, 500):
        table.begin(b"a", "home", epoch)
    assert len(table.planning._tasks) == 2
    for epoch in (1, 499):
        table.release(b"a", epoch)
    await table.until(lambda: len(table.answers) == 2)
    assert [epoch for _, epoch, _ in table.answers] == [1, 499]


async def test_a_session_that_is_over_is_not_planned(table):
    table.begin(b"a", "home")
    table.begin(b"b", "home")
    await table.until(lambda: table.running)
    table.planning.forget(b"b")
    table.release(b"a")
    await table.until(lambda: not table.planning._tasks)
    assert table.answers == [(b"a", 1, "planned")]


@pytest.mark.parametrize(
    ("reason", "words"), [(ValueError("no such fleet"), "no such fleet"), (KeyError("x"), "planner failed")]
)
async def test_a_planner_that_fails_says_so(table, reason, words):
    table.reason = reason
    table.begin(b"a", "home", objective="fail")
    table.release(b"a")
    await table.until(lambda: table.answers)
    assert words in table.answers[0][2]
