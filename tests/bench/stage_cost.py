"""How well the probe predicts a stage: predicted over measured seconds of one-row steps, nothing fitted.

    python -m tests.bench.stage_cost [--families llama ...] [--precisions bfloat16 ...] [--threads 1 2] [--seconds 120]

Stages of SmolLM2, with the head and without, and of random blocks of ordinary shape of other families, mixtures among
them, each with little and with much context behind it. Of each model, precision and number of threads the probe runs
before the stages and after, for a busy machine changes by the second, and the stages take turns. Then the error over
all that is kept: the median, where it is worst, and by each circumstance.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.kv import BlockKv
from kafila_agent.model.manifest import read_manifest
from kafila_agent.model.precision import parse_precision
from kafila_agent.probe.random_stage import block_read_bytes, random_stage
from kafila_agent.probe.step_time import measure_step_cost
from kafila_agent.stage.executor import StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop
from tests.bench.rows import Rows, options_and_rows
from tests.bench.speculation import smollm2
from tests.checkpoints import tiny_config

SMOLLM2 = "smollm2"
FAMILIES = (SMOLLM2, "llama", "qwen2", "qwen3", "gemma3_text", "olmo2", "phi3", "mixtral", "qwen3_moe")
PRECISIONS = ("bfloat16", "float32", "bfloat16/int8", "bfloat16/int4")  # the last of SmolLM2 alone
RANGES = ((0, 30), (0, 10), (10, 30))  # of SmolLM2; those from 0 have the head
BLOCKS = (2, 6)  # of the others
CONTEXTS = (32, 512)
STEPS, ROUNDS = 8, 3
# About 10 million numbers a block, 28 in a mixture, of which a token reads 8.
ORDINARY = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 8,
    "num_local_experts": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 4096,
    "mlp_only_layers": [],
    "initializer_range": 0.02,
}
WORST = 8


@dataclass(frozen=True)
class Model:
    """``stage(start, end)`` makes one; ``read_bytes(start, end)`` are those of its weights, the head's included."""

    config: PreTrainedConfig
    ranges: tuple[tuple[int, int], ...]
    stage: Callable[[int, int], StageModel]
    read_bytes: Callable[[int, int], int]


def model_of(family: str, precision: str) -> Model:
    if family == SMOLLM2:
        manifest = read_manifest(smollm2())
        facts = describe_model(manifest, precision, context_tokens=max(CONTEXTS), concurrency=1)
        return Model(
            manifest.model_config,
            RANGES,
            lambda start, end: load_stage(manifest, start, end, is_head=start == 0, dtype=precision),
            lambda start, end: (
                sum(facts.block_read_bytes[start:end]) + (facts.head_read_bytes if start == 0 else 0)
            ),
        )
    known = CONFIG_MAPPING[family]()
    shape = {name: value for name, value in ORDINARY.items() if hasattr(known, name)}
    config = tiny_config(family, tied=False, **shape)
    held = parse_precision(precision)
    dtype = getattr(torch, held.dtype)
    return Model(
        config,
        tuple((0, blocks) for blocks in BLOCKS),
        lambda start, end: random_stage(config, end, dtype, quant=held.quant),
        lambda start, end: end * block_read_bytes(config, dtype, held.quant),
    )


def key_of(family: str, precision: str, threads: int, start: int, end: int, context: int) -> tuple:
    return family, precision, f"{threads} threads", f"blocks {start}-{end}", f"context {context}"


def measure_all(family: str, precision: str, threads: int, rows: Rows) -> None:
    """The stages of one model, precision and number of threads that are still due."""
    ranges = RANGES if family == SMOLLM2 else tuple((0, blocks) for blocks in BLOCKS)
    keys = {
        (start, end, context): key_of(family, precision, threads, start, end, context)
        for (start, end), context in itertools.product(ranges, CONTEXTS)
    }
    if not rows.are_due(*keys.values()):
        rows.show(*keys.values())
        return
    seen = asyncio.run(_compare(model_of(family, precision), precision, threads, list(keys)))
    for at, key in keys.items():
        rows.keep(key, _row(key, *seen[at]))


def _row(key: tuple, predicted_s: float, measured_s: float) -> dict:
    ratio = predicted_s / measured_s
    told = f"{', '.join(key):66} predicted {predicted_s * 1e3:7.2f} ms, measured {measured_s * 1e3:7.2f}: {ratio:5.3f}"
    return {"predicted_s": predicted_s, "measured_s": measured_s, "row": told}


async def _compare(
    model: Model, precision: str, threads: int, places: list[tuple[int, int, int]]
) -> dict[tuple[int, int, int], tuple[float, float]]:
    """(predicted, measured) seconds of each (start, end, context)."""
    held = parse_precision(precision)
    dtype = getattr(torch, held.dtype)
    stages = {range_: model.stage(*range_) for range_ in {(start, end) for start, end, _ in places}}
    steppers = {
        (start, end, context): Stepper(stages[start, end], threads, context) for start, end, context in places
    }
    costs = []
    for round_ in range(ROUNDS):
        if round_ != 1:
            cost = await asyncio.to_thread(
                measure_step_cost, model.config, dtype, threads, most_bytes=1 << 30, quant=held.quant
            )
            costs.append(cost)
        for stepper in steppers.values():
            await stepper.step_often()
    result = {}
    for (start, end, context), stepper in steppers.items():
        read = model.read_bytes(start, end) + kv_bytes(stages[start, end].kv, context, dtype)
        predicted_s = statistics.mean(
            cost.overhead_s + (end - start) * cost.block_overhead_s + read / cost.bandwidth_bytes_per_s
            for cost in costs
        )
        result[start, end, context] = predicted_s, await stepper.close()
    return result


def kv_bytes(blocks: Iterable[BlockKv], context: int, dtype: torch.dtype) -> int:
    """What one row reads of the keys and values of so many tokens."""
    return sum(kv.elements_per_token * min(context, kv.window or context) * dtype.itemsize for kv in blocks)


class Stepper:
    """A stage at work, one row at a time, with ``context`` tokens behind each."""

    def __init__(self, stage: StageModel, threads: int, context: int) -> None:
        self._executor = StageExecutor(
            stage, slots=1, context_tokens=context + STEPS * ROUNDS, threads=threads
        )
        self._position = context
        slot = self._executor._kv.slots[0]
        slot.seek(1, 0)
        slot.advance(context)  # zeros, which take as long as anything
        self._done: asyncio.Queue[object] = asyncio.Queue()
        self._loop = StageLoop(
            self._executor,
            epoch=0,
            is_head=stage.is_head,
            is_last=True,
            send=self._done.put_nowait,
            sample=lambda _, logits: int(logits[-1].argmax()),
            on_sampled=lambda frame, _: self._done.put_nowait(frame),
            on_error=lambda _, error: self._done.put_nowait(error),
        )

    async def step_often(self) -> None:
        """STEPS steps."""
        for _ in range(STEPS):
            self._loop.submit(self._frame())
            self._position += 1
            if isinstance(result := await self._done.get(), Exception):
                raise result

    def _frame(self) -> Frame:
        stage = self._executor.stage
        if stage.is_head:
            token = b"\5\0\0\0"
            return Frame(Kind.TOKENS, 0, 1, 0, self._position, 1, Dtype.INT32, rows_wanted=1, payload=token)
        row = payload_of(torch.randn(1, stage.hidden_size).to(stage.dtype))
        dtype, width = self._executor.wire_dtype, stage.hidden_size
        return Frame(Kind.HIDDEN, 0, 1, 0, self._position, 1, dtype, width, rows_wanted=1, payload=row)

    async def close(self) -> float:
        """Median seconds of a step, as the stage itself reports them."""
        await self._loop.close()
        measured_s = self._loop.measured_stage_s
        assert measured_s is not None
        return measured_s


def summary(records: dict[str, dict]) -> list[str]:
    """The median error of all, by circumstance, and the worst."""
    errors = {key: record["predicted_s"] / record["measured_s"] - 1 for key, record in records.items()}
    by: dict[str, list[float]] = {}
    for key, error in errors.items():
        has_head = key.startswith(SMOLLM2) and "blocks 0-" in key
        for part in (*key.split(", "), "with the head" if has_head else "without the head"):
            by.setdefault(part, []).append(abs(error))
    lines = [f"{len(errors)} stages, median error {statistics.median(map(abs, errors.values())):.1%}"]
    lines += [
        f"    {part:28} {statistics.median(own):6.1%} of {len(own)}" for part, own in sorted(by.items())
    ]
    worst = sorted(errors.items(), key=lambda each: -abs(each[1]))[:WORST]
    return [*lines, "worst:", *(f"    {key}: {error:+.1%}" for key, error in worst)]


def main() -> None:
    """Print one line for each stage, then the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options, rows = options_and_rows("stage_cost", parser)
    for family, precision, threads in itertools.product(
        options.families, options.precisions, options.threads
    ):
        if family == SMOLLM2 or precision != PRECISIONS[-1]:
            measure_all(family, precision, threads, rows)
    if rows.records:
        print(*summary(rows.records), sep="\n")


if __name__ == "__main__":
    main()
