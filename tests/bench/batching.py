"""Whether a stage may run rows that wait for it together: are they bit for bit those of single rows, and what it gains.

    python -m tests.bench.batching [--dtype bfloat16] [--threads 1] [--blocks 10]

A stage of SmolLM2 runs rows of one sequence in one frame, and again in a frame each. Rows of several sequences could be
no more alike than that: their linear layers are the same, and their attention would have to be padded as well.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from kafila_agent.edge.frame import Frame, Kind
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import StageExecutor, payload_of
from tests.bench.speculation import smollm2

ROWS = (2, 4, 8)
BEFORE = 64  # rows that the sequence has already
REPEATS = 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    stage = load_stage(read_manifest(smollm2()), 10, 10 + options.blocks, is_head=False, dtype=options.dtype)
    executor = StageExecutor(stage, slots=1, context_tokens=128, threads=options.threads)
    executor.bind_thread()
    rows = torch.randn(BEFORE + max(ROWS), stage.hidden_size).to(stage.dtype)

    def run(start: int, end: int) -> torch.Tensor:
        kind, payload = Kind.HIDDEN, payload_of(rows[start:end])
        dtype, width = executor.wire_dtype, stage.hidden_size
        return executor.run_blocks(
            Frame(kind, 0, 1, 0, start, end - start, dtype, width, payload=payload)
        ).clone()

    run(0, BEFORE)
    for count in ROWS:
        together_s, apart_s = [], []
        for _ in range(REPEATS):
            began = time.perf_counter()
            together = run(BEFORE, BEFORE + count)
            together_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            apart = torch.cat([run(BEFORE + i, BEFORE + i + 1) for i in range(count)])
            apart_s.append(time.perf_counter() - began)
        alike = (together == apart).float().mean().item()
        gain = statistics.median(apart_s) / statistics.median(together_s)
        print(
            f"{options.dtype}, {count} rows together: {gain:4.2f} times as fast, {alike:6.1%} of the numbers alike"
        )


if __name__ == "__main__":
    main()
