"""Whether a stage may run rows that wait for it together: are they bit for bit those of single rows, and what it gains.

    python -m tests.bench.batching [--precisions bfloat16 ...] [--threads 1] [--blocks 10] [--repeats 40]

A stage of SmolLM2 runs rows together, and again in a frame each: of one sequence (a line of guesses), and of as many
sequences in slots of their own (users). Together and apart take turns; of each the least time counts, which another
program on the machine can only miss.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch

from kafila_agent.edge.frame import Frame, Kind
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import StageExecutor, payload_of
from tests.bench.rows import options_and_rows
from tests.bench.speculation import smollm2

ROWS = (2, 3, 4, 6, 8)
BEFORE = 64  # rows that each sequence has already
CONTEXT_TOKENS = 128


class Stage:
    """Blocks from the middle of SmolLM2 with a slot for each row."""

    def __init__(self, precision: str, blocks: int, threads: int) -> None:
        stage = load_stage(read_manifest(smollm2()), 10, 10 + blocks, is_head=False, dtype=precision)
        self._executor = StageExecutor(stage, slots=max(ROWS), context_tokens=CONTEXT_TOKENS, threads=threads)
        self._executor.bind_thread()
        self._rows = torch.randn(max(ROWS), BEFORE + max(ROWS), stage.hidden_size).to(stage.dtype)
        for slot in range(max(ROWS)):
            self._run([(slot, 0, BEFORE)])

    def of_one(self, count: int) -> list[tuple[int, int, int]]:
        """(slot, first, end) of so many rows of one sequence."""
        return [(0, BEFORE + index, BEFORE + index + 1) for index in range(count)]

    def of_several(self, count: int) -> list[tuple[int, int, int]]:
        """The same of a sequence each."""
        return [(slot, BEFORE, BEFORE + 1) for slot in range(count)]

    def together(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """One step."""
        return self._run(rows)

    def apart(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """A step each."""
        return torch.cat([self._run([row]) for row in rows])

    def _run(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        return torch.cat(self._executor.run([self._executor.admit(self._frame(*row)) for row in rows]))

    def _frame(self, slot: int, start: int, end: int) -> Frame:
        payload = payload_of(self._rows[slot, start:end])
        dtype, width = self._executor.wire_dtype, self._rows.shape[-1]
        return Frame(Kind.HIDDEN, 0, slot, slot, start, end - start, dtype, width, payload=payload)


def compare(stage: Stage, rows: list[tuple[int, int, int]], repeats: int) -> tuple[float, float, bool]:
    """The least seconds apart and together, and whether the results were always alike to the bit."""
    apart_s, together_s, alike = [], [], True
    for _ in range(repeats):
        began = time.perf_counter()
        apart = stage.apart(rows)
        between = time.perf_counter()
        together = stage.together(rows)
        together_s.append(time.perf_counter() - between)
        apart_s.append(between - began)
        alike = alike and torch.equal(apart, together)
    return min(apart_s), min(together_s), alike


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "bfloat16/int8", "bfloat16/int4"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=40)
    options, rows = options_and_rows("batching", parser)
    torch.manual_seed(0)
    for precision in options.precisions:
        stage = functools.cache(Stage)
        for count in ROWS:
            for whose in ("of one", "of several"):
                rows.measure(
                    (precision, options.threads, options.blocks, count, whose),
                    functools.partial(_row, precision, options, count, whose, stage),
                )


def _row(
    precision: str, options: argparse.Namespace, count: int, whose: str, stage_of: Callable[..., Stage]
) -> dict:
    stage = stage_of(precision, options.blocks, options.threads)
    which = stage.of_one(count) if whose == "of one" else stage.of_several(count)
    apart_s, together_s, alike = compare(stage, which, options.repeats)
    told = (
        f"{precision:14} {count} rows {whose:10}  {apart_s / together_s:4.2f} times as fast"
        f" ({together_s * 1e3:.2f} ms)  {'alike to the bit' if alike else 'NOT ALIKE'}"
    )
    return {"apart_s": apart_s, "together_s": together_s, "alike": alike, "row": told}


if __name__ == "__main__":
    main()
