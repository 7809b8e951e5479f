"""What a one-row step costs: b, d and o of the cost model, through the kernels and the loop that will serve.

A stage of n blocks takes ``o + n * d + bytes / b`` seconds (design: cost of a stage). Blocks without weights, few and
many, give d (the slope) and o (what is left at none); the model's own blocks then give b.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from kafila_agent.edge.frame import Frame, Kind
from kafila_agent.model.blocks import StageModel
from kafila_agent.probe.random_stage import (
    block_read_bytes,
    block_tensors,
    bounded_block,
    random_stage,
    shrunken,
)
from kafila_agent.stage.errors import StageError
from kafila_agent.stage.executor import StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Distinct weights that one step must read, so that no cache holds them from step to step.
_WORKING_SET_BYTES = 128 << 20
_MOST_BLOCK_BYTES = 512 << 20
_CONTEXT_TOKENS = 64
_MANY_BLOCKS = 12
_WARM_UP_STEPS, _LEAST_STEPS = 2, 5
_BUDGET_S = 0.5


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost model's three numbers."""

    bandwidth_bytes_per_s: float
    block_overhead_s: float
    overhead_s: float


def measure_step_cost(
    config: PreTrainedConfig,
    dtype: torch.dtype,
    threads: int,
    *,
    most_bytes: int,
    device: str = "cpu",
    quant: str = "none",
) -> StepCost:
    """b, d and o of ``config``'s blocks on ``threads`` threads, in at most ``most_bytes`` of memory.

    Takes about a second. Raises RuntimeError if the times contradict each other (the machine is too busy).
    """
    small = shrunken(config)
    config = bounded_block(config, dtype, min(_MOST_BLOCK_BYTES, most_bytes), quant)
    held = sum(tensor.nbytes for tensor in block_tensors(config, dtype, quant))
    blocks = max(1, min(config.num_hidden_layers, -(-_WORKING_SET_BYTES // held), most_bytes // held))
    wanted = ((small, 1), (small, _MANY_BLOCKS), (config, blocks))
    stages = [random_stage(shape, count, dtype, device, quant) for shape, count in wanted]
    one_s, many_s, real_s = asyncio.run(_step_times(stages, threads))
    # On a busy machine either drowns in the noise of the other: some microseconds beside some milliseconds.
    block_overhead_s = max(0.0, (many_s - one_s) / (_MANY_BLOCKS - 1))
    overhead_s = max(0.0, one_s - block_overhead_s)
    reading_s = real_s - overhead_s - blocks * block_overhead_s
    if reading_s <= 0:
        raise RuntimeError("times of shrunken and of real blocks contradict each other: is the machine busy?")
    bandwidth = blocks * block_read_bytes(config, dtype, quant) / reading_s
    return StepCost(bandwidth, block_overhead_s, overhead_s)


async def _step_times(stages: list[StageModel], threads: int) -> list[float]:
    """Median seconds of a one-row step of each stage. They take turns, so that a busy moment hits all alike."""
    steppers = [_Stepper(stage, threads) for stage in stages]
    times: list[list[float]] = [[] for _ in stages]
    deadline = time.monotonic() + _BUDGET_S
    try:
        for position in range(_CONTEXT_TOKENS):
            for stepper, own in zip(steppers, times, strict=True):
                seconds = await stepper.step(position)
                if position >= _WARM_UP_STEPS:
                    own.append(seconds)
            if position >= _WARM_UP_STEPS + _LEAST_STEPS and time.monotonic() > deadline:
                break
    finally:
        for stepper in steppers:
            await stepper.loop.close()
    return [statistics.median(own) for own in times]


class _Stepper:
    """One stage at work, stepped one row at a time through its loop."""

    def __init__(self, stage: StageModel, threads: int) -> None:
        executor = StageExecutor(stage, slots=1, context_tokens=_CONTEXT_TOKENS, threads=threads)
        row = payload_of(torch.randn(1, stage.hidden_size).to(stage.dtype))
        self._frame = Frame(
            Kind.HIDDEN, 0, 1, 0, 0, 1, executor.wire_dtype, stage.hidden_size, rows_wanted=1, payload=row
        )
        self._done: asyncio.Queue[Frame | StageError] = asyncio.Queue()
        self.loop = StageLoop(
            executor,
            epoch=0,
            is_head=False,
            is_last=False,
            send=self._done.put_nowait,
            on_error=lambda _, error: self._done.put_nowait(error),
        )

    async def step(self, position: int) -> float:
        """Seconds that the stage took, as it would report them."""
        self.loop.submit(replace(self._frame, position=position))
        result = await self._done.get()
        if isinstance(result, StageError):
            raise result
        return result.stage_times[0].compute_ns / 1e9
