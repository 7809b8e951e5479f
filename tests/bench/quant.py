"""What each precision costs in quality: SmolLM2 against itself in float32, over text.

    python -m tests.bench.quant [--tokens 256]

Every row of logits of a text is compared: the mean and the 99th percentile of KL(float32 || precision), and how often
the best token is the same. The packaged file is itself of 4 bits in groups of 32, which int4 takes over without loss;
so the model is measured again with its channels in another order, which changes no output but every group.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.manifest import Manifest, read_manifest
from kafila_agent.model.weights import read_tensor
from kafila_agent.stage.kv_cache import KvReservation
from tests.bench.rows import BUILD, options_and_rows
from tests.bench.speculation import smollm2

PRECISIONS = ("bfloat16", "bfloat16/int8", "bfloat16/int4")
SHUFFLED = BUILD / "bench/shuffled"
CHUNK = 64


def main() -> None:
    """Print one line for each model and precision."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=256)
    options, rows = options_and_rows("quant", parser)
    for label, model in (("as packaged", _packaged), ("channels shuffled", _shuffled)):
        expected = functools.cache(lambda model=model: _log_probabilities(model(), "float32", options.tokens))
        for precision in PRECISIONS:
            do = functools.partial(_row, label, model, precision, options.tokens, expected)
            rows.measure((label, precision, options.tokens), do)


def _row(
    label: str,
    model: Callable[[], Manifest],
    precision: str,
    tokens: int,
    expected: Callable[[], torch.Tensor],
) -> dict:
    compared = _compare(expected(), _log_probabilities(model(), precision, tokens))
    told = (
        f"{label:18} {precision:14} KL mean {compared['kl_mean']:.5f} p99 {compared['kl_p99']:.4f} nats,"
        f" same best token {compared['agreement']:.1%}"
    )
    return compared | {"row": told}


@functools.cache
def _packaged() -> Manifest:
    return read_manifest(smollm2())


@functools.cache
def _ids(tokens: int) -> list[int]:
    """English prose that lies at hand: this project's own pages."""
    from kafila_agent.head.text import Text

    prose = "\n".join(Path(name).read_text() for name in ("README.md", "ARCHITECTURE.md"))
    return Text.from_model(_packaged()).encode(prose)[:tokens]


def _log_probabilities(manifest: Manifest, precision: str, tokens: int) -> torch.Tensor:
    ids = _ids(tokens)
    stage: StageModel = load_stage(manifest, 0, manifest.blocks, is_head=True, dtype=precision)
    kv = KvReservation(stage.kv, slots=1, context_tokens=len(ids), dtype=stage.dtype, device=stage.device)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(ids), CHUNK):
            hidden = stage.embed(torch.tensor(ids[start : start + CHUNK]))
            kv.slots[0].seek(0, start)
            hidden = stage.forward(hidden, start, kv.slots[0])
            kv.slots[0].advance(len(hidden))
            rows.append(stage.logits(hidden).log_softmax(-1))
    return torch.cat(rows)


def _compare(expected: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    divergence = (expected.exp() * (expected - other)).sum(-1)
    return {
        "kl_mean": divergence.mean().item(),
        "kl_p99": divergence.quantile(0.99).item(),
        "agreement": (expected.argmax(-1) == other.argmax(-1)).float().mean().item(),
    }


@functools.cache
def _shuffled() -> Manifest:
    """The same llama with hidden, inner and value channels in another order, as bfloat16 safetensors; made once."""
    if not (SHUFFLED / "config.json").exists():
        _shuffle(_packaged())
    return read_manifest(SHUFFLED)


def _shuffle(manifest: Manifest) -> None:
    config, generator = manifest.model_config, torch.Generator().manual_seed(11)
    hidden = torch.randperm(config.hidden_size, generator=generator)
    inner = torch.randperm(config.intermediate_size, generator=generator)
    dim, queries = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    value = torch.randperm(dim, generator=generator)
    rows = (torch.arange(config.num_key_value_heads)[:, None] * dim + value).flatten()
    columns = (torch.arange(config.num_key_value_heads * queries)[:, None] * dim + value).flatten()
    state = {}
    for entry in manifest.tensors:
        tensor = read_tensor(entry, torch.float32)
        tensor = manifest.transform(entry.stored_name, tensor) if manifest.transform else tensor
        if entry.name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor = tensor[hidden][:, columns if "o_proj" in entry.name else inner]
        else:
            tensor = tensor[..., hidden]  # what reads the residual stream, and the norms
        if "v_proj" in entry.name:
            tensor = tensor[rows]
        if entry.name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensor = tensor[inner]
        state[entry.name] = tensor.bfloat16().contiguous()
    SHUFFLED.mkdir(parents=True, exist_ok=True)
    save_file(state, SHUFFLED / "model.safetensors", metadata={"format": "pt"})
    (SHUFFLED / "config.json").write_text(json.dumps(manifest.config | {"torch_dtype": "bfloat16"}))


if __name__ == "__main__":
    main()
