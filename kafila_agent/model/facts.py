"""A checkpoint as the planner sees it: bytes held in memory, and bytes that one token reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafila_agent.model.errors import ModelError
from kafila_agent.model.families import causal_lm_class
from kafila_agent.model.precision import Precision, parse_precision
from kafila_agent.model.routing import HeldTensor, bytes_read
from kafila_agent.model.weights import torch_dtype
from kafila_planner.facts import ModelFacts

if TYPE_CHECKING:
    import torch

    from kafila_agent.model.manifest import Manifest
    from kafila_agent.model.tensors import TensorEntry


def describe_model(manifest: Manifest, dtype: str, *, context_tokens: int, concurrency: int) -> ModelFacts:
    """The facts of ``manifest`` served in ``dtype`` to ``concurrency`` sequences of ``context_tokens``.

    A tied embedding is held once and read whole; of an untied one a single row is read. Of a mixture of
    experts one token reads its share of the routed ones. ``dtype`` may name a packing: ``bfloat16/int8``.
    Raises ModelError for a dtype or block that is not served. (Sizes are per sequence: ``concurrency`` is
    the planner's to multiply by.)
    """
    del concurrency
    try:
        return _describe(manifest, parse_precision(dtype), context_tokens)
    except ModelError:
        raise
    except Exception as error:  # transformers' own, for a configuration that contradicts itself
        raise ModelError(
            f"{manifest.path}: its configuration makes no {manifest.family} ({type(error).__name__}: {error});"
            " fetch the model again"
        ) from error


def _describe(manifest: Manifest, precision: Precision, context_tokens: int) -> ModelFacts:
    serving = torch_dtype(precision.dtype)
    packings = manifest.packings(precision.quant)
    in_float32 = _kept_in_float32(manifest.family, serving)

    def held(entry: TensorEntry) -> HeldTensor:
        if packing := packings.get(entry.module):
            return HeldTensor(entry.name, entry.shape, packing.nbytes(*entry.shape))
        is_kept = any(name in entry.name for name in in_float32)
        return HeldTensor(entry.name, entry.shape, entry.elements * (4 if is_kept else serving.itemsize))

    blocks = [[held(e) for e in manifest.block_tensors(i, i + 1)] for i in range(manifest.blocks)]
    head = [held(entry) for entry in manifest.head_tensors()]
    return ModelFacts(
        name=manifest.name,
        blocks=manifest.blocks,
        block_bytes=tuple(sum(tensor.nbytes for tensor in block) for block in blocks),
        block_read_bytes=tuple(bytes_read(block, manifest.model_config) for block in blocks),
        head_bytes=sum(tensor.nbytes for tensor in head),
        head_read_bytes=sum(_head_read(tensor, manifest.tied) for tensor in head),
        kv_bytes_per_token_per_block=tuple(kv.elements_per_token * serving.itemsize for kv in manifest.kv),
        kv_tokens_per_block=tuple(kv.tokens_kept(context_tokens) for kv in manifest.kv),
        expected_tokens=max(1, context_tokens // 2),
    )


def _kept_in_float32(family: str, dtype: torch.dtype) -> set[str]:
    """Names of the modules that transformers holds in float32 whatever the serving dtype."""
    cls = causal_lm_class(family)
    kept = set(cls._keep_in_fp32_modules_strict or ())
    return kept | set(cls._keep_in_fp32_modules or ()) if dtype is torch_dtype("float16") else kept


def _head_read(tensor: HeldTensor, tied: bool) -> int:
    """Bytes one token reads of a head tensor: a row where it is only looked up, else all."""
    is_lookup = not tied and tensor.name.endswith("embed_tokens.weight")
    return tensor.nbytes // (tensor.shape[0] if is_lookup else 1)
