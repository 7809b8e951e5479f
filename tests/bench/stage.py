"""One stage against the memory it reads, transformers and llama.cpp: tokens/s, interleaved, medians of ratios.

    python -m tests.bench.stage [--rounds 5] [--tokens 24] [--only smollm2|qwen3]

llama.cpp is optional (tests/llama_cpp.py); its GGUF files are made under build/bench.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import time
from collections.abc import Callable

import torch
from transformers import CONFIG_MAPPING, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.families import causal_lm_class
from kafila_agent.model.manifest import read_manifest
from kafila_agent.model.precision import parse_precision
from kafila_agent.model.weights import WeightReader
from kafila_agent.probe.random_stage import block_read_bytes, random_stage
from kafila_agent.probe.step_time import measure_step_cost
from kafila_agent.stage.executor import StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop
from tests.bench.rows import BUILD, options_and_rows
from tests.bench.speculation import smollm2
from tests.llama_cpp import CONTEXT, LlamaCpp, convert_gguf, llama_python, random_qwen3

PROMPT_TOKENS = 16
LLAMA_FILES = BUILD / "bench"
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 256,
}
BLOCKS = 4
PROBE = "the probe's bandwidth"
# (what, against what, at least). SmolLM2 on one thread, Qwen3's blocks on two.
BARS = [
    ("smollm2 bfloat16", "smollm2 transformers bfloat16", 1.6),
    ("smollm2 bfloat16", "smollm2 llama.cpp BF16", 0.9),
    ("smollm2 bfloat16/int8", "smollm2 llama.cpp Q8_0", 0.8),
    ("smollm2 bfloat16/int4", "smollm2 llama.cpp Q4_0", None),
    ("qwen3 bfloat16", "qwen3 llama.cpp BF16", 1.0),
    ("qwen3 bfloat16/int8", "qwen3 llama.cpp Q8_0", 1.3),
    ("qwen3 float32", PROBE, 0.9),
    ("qwen3 bfloat16", PROBE, None),
    ("qwen3 bfloat16/int8", PROBE, None),
    ("qwen3 bfloat16/int4", PROBE, None),
]


class Contender:
    """Something that decodes: ``step_s()`` is seconds for a token."""

    def __init__(self, step_s: Callable[[], float], close: Callable[[], None] = lambda: None) -> None:
        self.step_s, self.close = step_s, close


def main() -> None:
    """Print one line for each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--only", choices=["smollm2", "qwen3"])
    options, rows = options_and_rows("stage", parser)
    for what, against, bar in BARS:
        if options.only and not what.startswith(options.only):
            continue
        if "llama.cpp" in against and llama_python() is None:
            print(f"{what:22} / {against:30} absent (tests/llama_cpp.py says how to have it)")
            continue
        do = functools.partial(_row, what, against, bar, options)
        rows.measure((what, against, options.rounds, options.tokens), do)


def _row(what: str, against: str, bar: float | None, options: argparse.Namespace) -> dict:
    ours = _contender(what, options.tokens)
    theirs = Contender(_probe_step_s(what)) if against == PROBE else _contender(against, options.tokens)
    try:
        seconds = _compete(ours, theirs, options.rounds)
    finally:
        ours.close()
        theirs.close()
    own_s, other_s = (statistics.median(each) for each in zip(*seconds, strict=True))
    ratio = statistics.median(other / own for own, other in seconds)
    told = (
        f"{what:22} / {against:30} {ratio:5.2f}   bar {bar or '-'}"
        f"   ({1 / own_s:.2f} and {1 / other_s:.2f} tokens/s{_bandwidth(what, own_s)})"
    )
    return {"what": what, "against": against, "ratio": ratio, "bar": bar, "seconds": seconds, "row": told}


def _compete(ours: Contender, theirs: Contender, rounds: int) -> list[tuple[float, float]]:
    """In turn, so often after once to warm up."""
    return [(ours.step_s(), theirs.step_s()) for _ in range(rounds + 1)][1:]


def _contender(name: str, tokens: int) -> Contender:
    model, _, kind = name.partition(" ")
    if kind.startswith("llama.cpp "):
        return _llama(model, kind.removeprefix("llama.cpp "), tokens)
    if model == "qwen3":
        dtype, quant = _dtype_and_quant(kind)
        return Contender(_decoder(random_stage(_qwen3_config(), BLOCKS, dtype, quant=quant), 2, tokens))
    manifest = read_manifest(smollm2())
    if kind.startswith("transformers"):
        model = _transformers(manifest)
        return Contender(lambda: _generate_s(model, tokens))
    return Contender(_decoder(load_stage(manifest, 0, 30, is_head=True, dtype=kind), 1, tokens))


def _transformers(manifest):
    """transformers' own model of the same weights."""
    reader = WeightReader(
        manifest.block_tensors(0, manifest.blocks) + manifest.head_tensors(),
        torch.bfloat16,
        None,
        manifest.transform,
    )
    cls = causal_lm_class(manifest.family)
    state = reader.state_dict()
    return cls.from_pretrained(
        None, config=manifest.model_config, state_dict=state, dtype=torch.bfloat16
    ).eval()


def _dtype_and_quant(name: str) -> tuple[torch.dtype, str]:
    precision = parse_precision(name)
    return getattr(torch, precision.dtype), precision.quant


def _qwen3_config():
    return CONFIG_MAPPING["qwen3"](num_hidden_layers=36, **QWEN3_8B)


def _read_bytes(what: str) -> int:
    """That a step of Qwen3's blocks reads."""
    return BLOCKS * block_read_bytes(_qwen3_config(), *_dtype_and_quant(what.partition(" ")[2]))


def _bandwidth(what: str, step_s: float) -> str:
    return f", {_read_bytes(what) / step_s / 1e9:.1f} GB/s" if what.startswith("qwen3") else ""


def _probe_step_s(what: str) -> Callable[[], float]:
    """Seconds that the bytes of a step take at the bandwidth that the probe finds."""
    dtype, quant = _dtype_and_quant(what.partition(" ")[2])

    def step_s() -> float:
        cost = measure_step_cost(_qwen3_config(), dtype, 2, most_bytes=2 << 30, quant=quant)
        return _read_bytes(what) / cost.bandwidth_bytes_per_s

    return step_s


def _llama(model: str, kind: str, tokens: int) -> Contender:
    python = llama_python()
    assert python is not None
    if model == "qwen3":
        file = random_qwen3(LLAMA_FILES / f"qwen3-{kind}.gguf", QWEN3_8B, BLOCKS, kind)
    else:
        file = convert_gguf(smollm2(), LLAMA_FILES / f"smollm2-{kind}.gguf", kind)
    llama = LlamaCpp(python, file, 2 if model == "qwen3" else 1)
    return Contender(lambda: llama.step_s(PROMPT_TOKENS, tokens), llama.close)


def _generate_s(model, tokens: int) -> float:
    """transformers' own greedy generate: seconds between its tokens."""

    class Clock(BaseStreamer):
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None: ...

    clock = Clock()
    torch.set_num_threads(1)
    ids = torch.full((1, PROMPT_TOKENS), 5)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=tokens + 1, min_new_tokens=tokens + 1, pad_token_id=0, eos_token_id=0
    )
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings, streamer=clock)
    return (
        clock.times[-1] - clock.times[1]
    ) / tokens  # the first call gives the prompt, the second the first token


def _decoder(stage: StageModel, threads: int, tokens: int) -> Callable[[], float]:
    """Greedy decoding (of a head), or rows through blocks, on a stage's own loop: seconds for a token."""
    executor = StageExecutor(stage, slots=1, context_tokens=CONTEXT, threads=threads)
    return lambda: asyncio.run(_decode_s(executor, tokens))


async def _decode_s(executor: StageExecutor, tokens: int) -> float:
    done: asyncio.Queue = asyncio.Queue()
    is_head = executor.stage.is_head
    loop = StageLoop(
        executor,
        epoch=0,
        is_head=is_head,
        is_last=is_head,
        send=lambda frame: done.put_nowait(0),
        sample=lambda _, logits: int(logits[-1].argmax()),
        on_sampled=lambda _, token: done.put_nowait(token),
        on_error=lambda _, error: done.put_nowait(error),
    )

    async def step(position: int, rows: int, token: int) -> int:
        if is_head:
            payload = torch.full((rows,), token, dtype=torch.int32).numpy().tobytes()
            frame = Frame(Kind.TOKENS, 0, 1, 0, position, rows, Dtype.INT32, rows_wanted=1, payload=payload)
        else:
            width = executor.stage.hidden_size
            payload = payload_of(torch.ones(rows, width, dtype=executor.stage.dtype))
            frame = Frame(
                Kind.HIDDEN,
                0,
                1,
                0,
                position,
                rows,
                executor.wire_dtype,
                width,
                rows_wanted=1,
                payload=payload,
            )
        loop.submit(frame)
        result = await done.get()
        if isinstance(result, Exception):
            raise result
        return result

    token = await step(0, PROMPT_TOKENS, 5)
    started = time.perf_counter()
    for index in range(tokens):
        token = await step(PROMPT_TOKENS + index, 1, token)
    taken = (time.perf_counter() - started) / tokens
    await loop.close()
    return taken


if __name__ == "__main__":
    main()
