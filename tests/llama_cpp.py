"""llama.cpp beside Kafila in one run: GGUF files of the same weights, and a process that decodes them on request.

Optional: named by KAFILA_BENCH_PYTHON (a Python that has llama-cpp-python, built with ``-DGGML_AVX512=ON`` as this
machine has it and without AMX), else this Python if it has it. Where it is absent, rows say so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SERVER = """
import sys, time
from llama_cpp import Llama
path, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False, use_mlock=False)
print("ready", flush=True)
for line in sys.stdin:
    prompt, tokens = map(int, line.split())
    model.reset()
    model.eval([5] * prompt)
    started = time.perf_counter()
    for _ in range(tokens):
        model.eval([7])
    print((time.perf_counter() - started) / tokens, flush=True)
"""
CONTEXT = 512


def llama_python() -> str | None:
    """A Python that has llama-cpp-python, or None."""
    named = os.environ.get("KAFILA_BENCH_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("llama_cpp") else None)


class LlamaCpp:
    """One model in llama.cpp, in a process of its own."""

    def __init__(self, python: str, file: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, "-c", _SERVER, str(file), str(threads), str(CONTEXT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._answer() != "ready":
            raise RuntimeError(f"llama.cpp cannot load {file}")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def step_s(self, prompt: int, tokens: int) -> float:
        """Seconds for a token, over ``tokens`` after ``prompt``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{prompt} {tokens}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def convert_gguf(source: Path, target: Path, kind: str) -> Path:
    """``source`` with its matrices as ``kind`` (BF16, Q8_0, Q4_0), from the values that it holds; made once."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.constants import GGUFValueType
    from gguf.quants import dequantize, quantize

    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    made = target.with_suffix(".part")
    writer = GGUFWriter(made, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        chosen = GGMLQuantizationType[kind] if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, chosen), raw_dtype=chosen)
    _finish(writer)
    made.rename(target)
    return target


def random_qwen3(target: Path, shape: dict[str, int], blocks: int, kind: str) -> Path:
    """Qwen3 blocks of ``shape`` with random matrices of ``kind`` and next to no vocabulary; made once."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(".part")
    writer = GGUFWriter(made, "qwen3")
    writer.add_block_count(blocks)
    writer.add_context_length(40960)
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_tokenizer_model("none")
    chosen = GGMLQuantizationType[kind]
    for name, size in _qwen3_tensors(shape, blocks):
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
            continue
        # One random run of rows, repeated: what is in them costs nothing to multiply with.
        rows = min(256, size[0])
        run = np.random.default_rng(1).standard_normal((rows, size[1]), np.float32) * 0.02
        some = quantize(run, chosen)
        writer.add_tensor(name, np.tile(some, (size[0] // rows, 1)), raw_dtype=chosen)
    _finish(writer)
    made.rename(target)
    return target


def _qwen3_tensors(shape: dict[str, int], blocks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    yield "token_embd.weight", (shape["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for block in range(blocks):
        for name, size in (
            ("attn_norm", (hidden,)),
            ("attn_q", (queries, hidden)),
            ("attn_k", (keys, hidden)),
            ("attn_v", (keys, hidden)),
            ("attn_q_norm", (dim,)),
            ("attn_k_norm", (dim,)),
            ("attn_output", (hidden, queries)),
            ("ffn_norm", (hidden,)),
            ("ffn_gate", (inner, hidden)),
            ("ffn_up", (inner, hidden)),
            ("ffn_down", (hidden, inner)),
        ):
            yield f"blk.{block}.{name}.weight", size


def _finish(writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
