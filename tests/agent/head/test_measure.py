"""How fast the ring turns, as the head finds out."""

from __future__ import annotations

import pytest

from kafila_agent.edge.frame import StageTime
from kafila_agent.head.measure import Recent, Step, Tempo

MS = 1_000_000


def step(circuit_s: float, *compute_ms: float, queue_ms: float = 0.0) -> Step:
    """One row; ``compute_ms`` of each visit, ``queue_ms`` at the first of them."""
    times = [StageTime(int(ms * MS), 0) for ms in compute_ms]
    times[0] = StageTime(times[0].compute_ns, int(queue_ms * MS))
    return Step(circuit_s, tuple(times))


def test_a_step_that_comes_while_all_are_looked_at_disturbs_nobody():
    """Metrics are read by another thread."""
    recent = Recent()

    class Busy(Step):
        @property
        def compute_s(self) -> float:
            recent.step(step(0.1, 10))
            return super().compute_s

    for _ in range(3):
        recent.step(Busy(0.2, (StageTime(10 * MS, 0),)))
    measured = recent.measured(running=1, waiting=0, slots=1, kv_usage=0.0)
    assert measured.circuit_s == 0.2
    assert measured.network_share == pytest.approx(0.95)


def test_nothing_is_known_before_a_few_rows():
    tempo = Tempo()
    for row in range(3):
        tempo.step(step(0.2, 10, 30, 20), returned_s=row)
    assert (tempo.circuit_s, tempo.interval_s, tempo.places) == (None, None, 1)
    tempo.step(step(0.2, 10, 30, 20), returned_s=9)
    assert tempo.circuit_s == pytest.approx(0.2)
    assert tempo.interval_s == pytest.approx(0.03)
    assert tempo.places == 7


def test_the_head_is_visited_twice_and_waiting_is_no_part_of_an_empty_ring():
    tempo = Tempo()
    for row in range(4):
        tempo.step(step(0.3, 10, 15, 20, queue_ms=100), returned_s=row)
    assert tempo.interval_s == pytest.approx(0.03)
    assert tempo.circuit_s == pytest.approx(0.2)


def test_alone_the_head_is_the_whole_ring():
    tempo = Tempo()
    for row in range(4):
        tempo.step(step(0.03, 30), returned_s=row)
    assert tempo.places == 1


def burst(tempo: Tempo, began_s: float, rows: int, gap_s: float) -> None:
    """So many rows sent at once that come back one by one."""
    for row in range(rows):
        returned_s = began_s + 0.2 + row * gap_s
        tempo.step(step(returned_s - began_s - row * 0.001, 10, 10, 5), returned_s)


def test_a_slow_edge_shows_in_how_a_burst_comes_back():
    tempo = Tempo()
    burst(tempo, 1.0, 8, gap_s=0.04)
    assert tempo.interval_s == pytest.approx(0.04)


def test_rows_sent_one_by_one_say_nothing_of_edges():
    tempo = Tempo()
    for row in range(40):
        tempo.step(step(0.2, 10, 10, 5), returned_s=row * 0.2)  # each when the one before is back
    for row in range(40):
        tempo.step(step(0.2, 10, 10, 5), returned_s=20 + row * 0.1)  # two in the ring, evenly
    assert tempo.interval_s == pytest.approx(0.015)
