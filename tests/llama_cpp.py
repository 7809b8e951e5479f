"""llama.cpp beside Kafila in one run: GGUF files of the same weights, and a process that decodes them on request.

Optional: named by KAFILA_BENCH_PYTHON (a Python that has llama-cpp-python, built with ``-DGGML_RPC=ON``, with
``-DGGML_AVX512=ON`` as this machine has it and without AMX), else this Python if it has it. Where it is absent, rows
say so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Popen = Callable[..., "subprocess.Popen[Any]"]

_LIBRARY = """
import ctypes, os, socket, sys, time
import llama_cpp
def library(name):
    return ctypes.CDLL(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", f"lib{name}.so.0"))
"""
_DECODER = (
    _LIBRARY
    + """
def await_listening(server):
    host, port = server.rsplit(":", 1)
    for _ in range(600):
        try:
            return socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens at {server}")
path, threads, context, *servers = sys.argv[1:]
if servers:
    add, register = library("ggml-rpc").ggml_backend_rpc_add_server, library("ggml").ggml_backend_register
    add.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for server in servers:
    await_listening(server)
    register(add(server.encode()))
model = llama_cpp.Llama(
    path, n_ctx=int(context), n_threads=int(threads), n_threads_batch=int(threads), verbose=False, use_mlock=False,
    n_gpu_layers=-1 if servers else 0,
)
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
)
_RPC_SERVER = (
    _LIBRARY
    + """
ggml = library("ggml")
ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_name(b"CPU"))
library("ggml-rpc").ggml_backend_rpc_start_server(
    sys.argv[1].encode(), None, ctypes.c_size_t(int(sys.argv[2])), ctypes.c_size_t(1), devices
)
"""
)
CONTEXT = 512


def llama_python() -> str | None:
    """A Python that has llama-cpp-python, or None."""
    named = os.environ.get("KAFILA_BENCH_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("llama_cpp") else None)


def has_rpc(python: str) -> bool:
    """Whether that Python's llama.cpp was built with ``-DGGML_RPC=ON``."""
    asked = subprocess.run([python, "-c", _LIBRARY + 'library("ggml-rpc")'], capture_output=True, check=False)
    return asked.returncode == 0


class RpcServer:
    """llama.cpp's server of one machine's part of a model at ``endpoint`` (HOST:PORT), where ``popen`` starts it."""

    def __init__(self, python: str, endpoint: str, threads: int, popen: Popen = subprocess.Popen) -> None:
        self.endpoint = endpoint
        self._process = popen(
            [python, "-u", "-c", _RPC_SERVER, endpoint, str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(10)


class LlamaCpp:
    """One model in llama.cpp, in a process of its own; with ``servers`` its layers are theirs."""

    def __init__(
        self,
        python: str,
        file: Path,
        threads: int,
        servers: Sequence[str] = (),
        popen: Popen = subprocess.Popen,
    ) -> None:
        self._process = popen(
            [python, "-c", _DECODER, str(file), str(threads), str(CONTEXT), *servers],
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
