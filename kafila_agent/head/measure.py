"""What the head measures, by its own clock alone: circuits, time to first token, rates.

A stage's durations come with the frame, each by that stage's own clock; no two clocks are subtracted. A
circuit less the stages' durations is time in flight (and in queues), and that over the circuit is the network
share.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kafila_agent.edge.frame import StageTime

RECENT_STEPS = 512
RECENT_REQUESTS = 64
TEMPO_STEPS = 64
_FEWEST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: one row once round the ring. ``stages`` follow the ring from the head's own."""

    circuit_s: float
    stages: tuple[StageTime, ...]

    @property
    def compute_s(self) -> float:
        """The stages' own durations together."""
        return sum(stage.compute_ns for stage in self.stages) / 1e9

    @property
    def unqueued_s(self) -> float:
        """What the circuit would take in an empty ring."""
        return self.circuit_s - sum(stage.queue_ns for stage in self.stages) / 1e9


@dataclass(frozen=True, slots=True)
class RequestMeasures:
    """One finished request, measured; None where there was too little to measure.

    ``ttft_s``: accepted -> first text. ``tokens_per_s``: of the tokens after the first. ``circuit_s``,
    ``compute_s``: mean of its decode steps.
    """

    latency_s: float
    ttft_s: float | None
    tokens_per_s: float | None
    circuit_s: float | None
    compute_s: float | None
    network_share: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The engine, measured over its recent past; medians, and ``tokens_per_s`` is one user's rate.

    ``stage_compute_s``: each visit to a stage in a decode step, in ring order from the head's own blocks; the
    last is the head's again: final norm, LM head and sampling. ``kv_usage``: the fraction of all slots' tokens in use.
    """

    running: int
    waiting: int
    slots: int
    kv_usage: float
    requests: int
    tokens: int
    tokens_per_s: float | None
    ttft_s: float | None
    circuit_s: float | None
    network_share: float | None
    stage_compute_s: tuple[float, ...]


class RequestClock:
    """Collects one request's times. ``now_s`` is always the head's clock."""

    def __init__(self, now_s: float) -> None:
        self._accepted_s = now_s
        self._first_s: float | None = None
        self._newest_s: float | None = None
        self._tokens = 0
        self._steps = 0
        self._circuit_s = 0.0
        self._compute_s = 0.0

    def token(self, now_s: float) -> float | None:
        """One more token; returns the seconds since the one before."""
        gap = None if self._newest_s is None else now_s - self._newest_s
        self._newest_s = now_s
        self._tokens += 1
        return gap

    def text(self, now_s: float) -> float | None:
        """Some text goes out; returns the time to first token if it is the first."""
        if self._first_s is not None:
            return None
        self._first_s = now_s
        return now_s - self._accepted_s

    def step(self, step: Step) -> None:
        """One decode step came back."""
        self._steps += 1
        self._circuit_s += step.circuit_s
        self._compute_s += step.compute_s

    def finish(self, now_s: float) -> RequestMeasures:
        """The whole request."""
        latency_s = now_s - self._accepted_s
        ttft_s = None if self._first_s is None else self._first_s - self._accepted_s
        decode_s = latency_s - (ttft_s or 0.0)
        rated = ttft_s is not None and self._tokens > 1 and decode_s > 0
        return RequestMeasures(
            latency_s,
            ttft_s,
            (self._tokens - 1) / decode_s if rated else None,
            self._circuit_s / self._steps if self._steps else None,
            self._compute_s / self._steps if self._steps else None,
            network_share(self._compute_s, self._circuit_s),
        )


class Recent:
    """The last steps and requests, and totals."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=RECENT_STEPS)
        self._requests: deque[RequestMeasures] = deque(maxlen=RECENT_REQUESTS)
        self.requests = 0
        self.tokens = 0

    def step(self, step: Step) -> None:
        """A decode step came back."""
        self._steps.append(step)

    def finish(self, request: RequestMeasures) -> None:
        """A request came to its end."""
        self.requests += 1
        self._requests.append(request)

    @property
    def latency_s(self) -> float | None:
        """A request's, from acceptance to end."""
        return _median([request.latency_s for request in self._requests])

    def measured(self, *, running: int, waiting: int, slots: int, kv_usage: float) -> Measured:
        """All of it now; on any thread, so it looks at copies."""
        steps, ended = list(self._steps), list(self._requests)
        compute_s = sum(step.compute_s for step in steps)
        circuit_s = sum(step.circuit_s for step in steps)
        visits = zip(*(step.stages for step in steps), strict=False)
        return Measured(
            running,
            waiting,
            slots,
            kv_usage,
            self.requests,
            self.tokens,
            _median([request.tokens_per_s for request in ended]),
            _median([request.ttft_s for request in ended]),
            _median([step.circuit_s for step in steps]),
            network_share(compute_s, circuit_s),
            tuple(statistics.median(visit.compute_ns for visit in visits_of) / 1e9 for visits_of in visits),
        )


class Tempo:
    """How fast the ring turns: medians over the last TEMPO_STEPS rows; None before there are enough.

    ``circuit_s``: one row round an empty ring. ``interval_s``: what the slowest stage or edge takes between two rows,
    by the stages' own durations and by how rows that were sent in a burst came back.
    """

    def __init__(self) -> None:
        self.circuit_s: float | None = None
        self.interval_s: float | None = None
        self._circuits_s: deque[float] = deque(maxlen=TEMPO_STEPS)
        self._slowest_s: deque[float] = deque(maxlen=TEMPO_STEPS)
        self._gaps_s: deque[float] = deque(maxlen=TEMPO_STEPS)
        self._last_launched_s = self._last_returned_s = -math.inf

    @property
    def places(self) -> int:
        """Rows that the ring holds before they queue somewhere; 1 while that is not known."""
        if self.circuit_s is None or not self.interval_s:
            return 1
        return math.ceil(self.circuit_s / self.interval_s)

    def step(self, step: Step, returned_s: float) -> None:
        """A row came back at ``returned_s``."""
        head_s, *others_s = (stage.compute_ns / 1e9 for stage in step.stages)
        if others_s:
            head_s += others_s.pop()  # it is visited twice
        self._circuits_s.append(step.unqueued_s)
        self._slowest_s.append(max([head_s, *others_s]))
        self._note_gap(returned_s - step.circuit_s, returned_s)
        if len(self._circuits_s) >= _FEWEST_STEPS:
            self.circuit_s = statistics.median(self._circuits_s)
            gap_s = statistics.median(self._gaps_s) if len(self._gaps_s) >= _FEWEST_STEPS else 0.0
            self.interval_s = max(statistics.median(self._slowest_s), gap_s)

    def _note_gap(self, launched_s: float, returned_s: float) -> None:
        """Rows that were sent close together come back as far apart as the slowest place has put them."""
        gap_s = returned_s - self._last_returned_s
        if launched_s < self._last_returned_s and launched_s - self._last_launched_s < gap_s / 2:
            self._gaps_s.append(gap_s)
        self._last_launched_s, self._last_returned_s = launched_s, returned_s


def network_share(compute_s: float, circuit_s: float) -> float | None:
    """The fraction of a token's time not spent computing, at least 0; None before the first step."""
    return max(0.0, 1 - compute_s / circuit_s) if circuit_s > 0 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
