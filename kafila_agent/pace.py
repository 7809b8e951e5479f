"""A member that stands for another machine: its stages take as long as that machine's would. For the laboratory alone.

`kafila-agent --pace FILE`, and nothing else, turns it on. FILE is one JSON object of Pace's fields. The probe reports
them instead of measuring, and every stage, having really run, waits on its worker thread until, on the median, the time
is up that

    o + n * d + max(bytes read / b, rows * bytes read / F)

implies, with the head's bytes likewise. FILE is read anew for each probe and each stage that is loaded. The emulation
holds as long as this machine computes a stage faster than the one it stands for.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
import torch

from kafila_agent.edge.frame import Frame
from kafila_agent.model.blocks import StageModel
from kafila_agent.probe.capability import Capability
from kafila_agent.stage.executor import Admitted, StageExecutor
from kafila_planner.facts import MemberFacts, ModelFacts

log = structlog.get_logger()

_WAITS_REMEMBERED = 31


class PaceError(ValueError):
    """The file names no machine that could be emulated."""


@dataclass(frozen=True)
class Pace:
    """The machine stood for. ``unmeasured`` names what of its MemberFacts it fails to measure."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    overhead_s: float = 0.0
    block_overhead_s: float = 0.0
    unmeasured: tuple[str, ...] = ()

    def stage_s(self, read_bytes: float, rows: int, blocks: int = 0) -> float:
        """Seconds to read so many bytes for ``rows`` rows; a whole stage's where it has blocks."""
        fixed_s = self.overhead_s + blocks * self.block_overhead_s if blocks else 0.0
        return fixed_s + max(read_bytes / self.bandwidth_bytes_per_s, rows * read_bytes / self.flops_per_s)

    def capability(self, memory_bytes: int | None) -> Capability:
        """What the probe finds."""
        return Capability(
            self.bandwidth_bytes_per_s,
            self.overhead_s,
            self.block_overhead_s,
            self.flops_per_s,
            memory_bytes,
        )

    def forget(self, facts: MemberFacts) -> MemberFacts:
        """``facts`` as this member reports them."""
        unknown: dict[str, Any] = dict.fromkeys(self.unmeasured)
        return replace(facts, **unknown)


def read_pace(file: Path) -> Pace:
    """The machine of a file. Raises PaceError; says loudly what this agent pretends to be."""
    try:
        pace = Pace(**json.loads(file.read_bytes()))
        rates = (pace.bandwidth_bytes_per_s, pace.flops_per_s)
        if min(rates) <= 0 or min(pace.overhead_s, pace.block_overhead_s) < 0:
            raise ValueError("rates must be above zero and overheads not below")
    except (OSError, TypeError, ValueError) as error:
        raise PaceError(f"--pace {file}: {error}") from error
    log.warning(
        "PACED: THIS AGENT PRETENDS TO BE ANOTHER MACHINE; none of its speeds is this one's", to=str(pace)
    )
    return pace


class PacedExecutor(StageExecutor):
    """Runs each frame as any executor does, then waits until the emulated machine would be done."""

    def __init__(
        self,
        stage: StageModel,
        pace: Pace,
        model: ModelFacts,
        *,
        slots: int,
        context_tokens: int,
        threads: int,
    ) -> None:
        super().__init__(stage, slots=slots, context_tokens=context_tokens, threads=threads)
        self._pace = pace
        self._read_bytes = sum(model.block_read_bytes[stage.start : stage.end])
        self._head_read_bytes = model.head_read_bytes
        self._begun_s: float | None = None
        self._late_s: deque[float] = deque([0.0], maxlen=_WAITS_REMEMBERED)

    def admit(self, frame: Frame) -> Admitted:
        """See StageExecutor. A step's time begins with the first frame that it takes."""
        begun_s = self._begun_s or time.monotonic()
        admitted = super().admit(frame)
        self._begun_s = begun_s
        return admitted

    def run(self, admitted: Sequence[Admitted]) -> list[torch.Tensor]:
        """See StageExecutor."""
        begun_s, self._begun_s = self._begun_s or time.monotonic(), None
        hidden = super().run(admitted)
        blocks, rows = self.stage.end - self.stage.start, sum(map(len, hidden))
        self._wait_until(begun_s + self._pace.stage_s(self._read_bytes, rows, blocks))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See StageExecutor."""
        begun_s = time.monotonic()
        logits = super().logits(hidden)
        self._wait_until(begun_s + self._pace.stage_s(self._head_read_bytes, hidden.shape[0]))
        return logits

    def _wait_until(self, due_s: float) -> None:
        """Until then, on the median: a thread is woken late, so it asks for that much earlier."""
        wake_s = due_s - statistics.median(self._late_s)
        if (left_s := wake_s - time.monotonic()) > 0:
            time.sleep(left_s)
            self._late_s.append(time.monotonic() - wake_s)
        elif time.monotonic() < due_s:
            self._late_s.append(0.0)  # else a lateness as long as the whole step would never be unlearnt
