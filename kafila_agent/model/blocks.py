"""A stage: one contiguous range of transformers' own decoder blocks, and at the head what surrounds them.

The family's ``*ForCausalLM`` is built whole on the meta device, so that every block knows its true
index; foreign modules become identities, transformers' loader fills the rest (with its weight
conversions and tying), and the block list is then compacted to the stage's range.
"""

from __future__ import annotations

import copy
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kafila_agent.kernels.linear import ALIKE_ROWS, use_kernels
from kafila_agent.model.errors import ModelError
from kafila_agent.model.families import FAMILIES, Family, causal_lm_class
from kafila_agent.model.kv import BlockKv, narrow
from kafila_agent.model.large_pages import use_large_pages
from kafila_agent.model.packed import PackedReader, put_packed, tie_packed_head
from kafila_agent.model.precision import parse_precision
from kafila_agent.model.program import positions_are_apart, stage_program, tail_program
from kafila_agent.model.rotary import RotaryTable
from kafila_agent.model.weights import torch_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from kafila_agent.kernels.packing import Packing
    from kafila_agent.model.manifest import Manifest
    from kafila_agent.stage.kv_cache import SlotCache

_PLAIN: Mapping[str, Packing] = {}
_FILLING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one sequence from ``position`` on; their keys and values go to ``cache``."""

    position: int
    rows: int
    cache: SlotCache


class StageModel:
    """Blocks ``[start, end)`` of a model in one dtype on one device; with the head's parts if ``is_head``.

    Hidden states are ``[rows, hidden_size]`` of the compute dtype. Run it under ``torch.inference_mode``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        kv: tuple[BlockKv, ...],
        start: int,
        end: int,
        *,
        is_head: bool,
    ) -> None:
        """Take ``model`` apart; it has weights for the range (and the head), and ``kv`` is the range's."""
        self.start, self.end, self.is_head = start, end, is_head
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        use_large_pages([*model.parameters(), *model.buffers()])
        use_kernels(model)
        from kafila_agent.model.attention import use_row_attention  # transformers takes a second to import

        tie_packed_head(model)
        base = model.base_model
        self._embed_tokens = base.embed_tokens
        self._embedding_scale = 1.0
        if family.embedding_scale:
            # What enters was embedded, and so scaled, at the head.
            self._embedding_scale = getattr(base, family.embedding_scale)
            setattr(base, family.embedding_scale, 1.0)
        self._tail = _tail(model) if is_head else None
        self._body = _body(model, start, end)
        self.config: PreTrainedConfig = self._body.config
        use_row_attention(self.config)
        self._program = stage_program(self._body) if family.is_standard else None
        self._head_program = tail_program(self._tail) if family.is_standard and is_head else None
        programs = [self._program, self._head_program] if is_head else [self._program]
        is_apart = self._program is not None and positions_are_apart(self._body)
        self._is_alike = None not in programs and is_apart
        self._rotary = RotaryTable(self._body.rotary_emb, self.dtype, self.device) if is_apart else None
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self.kv = kv
        self.loaded_bytes = sum(t.nbytes for t in self._held())

    def _held(self) -> Iterator[torch.Tensor]:
        """Every loaded tensor once: parameters and the buffers a checkpoint stores."""
        modules = [self._body] + ([self._tail] if self._tail is not None else [])
        held = {t.data_ptr(): t for module in modules for t in module.state_dict().values() if t.numel()}
        return iter(held.values())

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids ``[rows]`` (int) to hidden states. Head only."""
        hidden = self._embed_tokens(ids)
        return hidden if self._embedding_scale == 1.0 else hidden * self._embedding_scale

    @property
    def rows_together(self) -> int:
        """How many rows of several sequences can go through in one step, each as if it were alone to the last bit."""
        return ALIKE_ROWS if self._is_alike else 1

    def forward(self, hidden: torch.Tensor, position: int, cache: SlotCache) -> torch.Tensor:
        """Rows at ``position ...`` through the stage's blocks; their keys and values go to ``cache``.

        May write its result over ``hidden``.
        """
        if self._program is not None and hidden.shape[0] <= ALIKE_ROWS:
            return self.forward_together(hidden, [Run(position, hidden.shape[0], cache)])
        out = self._body(
            inputs_embeds=hidden[None],
            position_ids=self._positions(Run(position, hidden.shape[0], cache))[None],
            past_key_values=cache,
            use_cache=True,
        )
        return out.last_hidden_state[0]

    def forward_together(self, hidden: torch.Tensor, runs: Sequence[Run]) -> torch.Tensor:
        """As ``forward``, with the rows of several sequences one after the other, at most ``rows_together``."""
        assert self._program is not None
        cosine, sine = self._turns(hidden, runs)
        places, counts = array("q"), array("q")
        for run in runs:
            places += run.cache.places(run.position, run.rows)
            counts.append(run.rows)
        return self._program(hidden, cosine, sine, places, counts)

    def _turns(self, hidden: torch.Tensor, runs: Sequence[Run]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine ``[rows, dim]`` of the rows' positions."""
        if self._rotary is None:
            positions = torch.cat([self._positions(run) for run in runs])
            cosine, sine = self._body.rotary_emb(hidden[None], positions[None])
            return cosine[0], sine[0]
        pieces = [piece for run in runs for piece in self._rotary.rows(run.position, run.rows)]
        if len(pieces) == 1:
            return pieces[0]
        cosines, sines = zip(*pieces, strict=True)
        return torch.cat(cosines), torch.cat(sines)

    def _positions(self, run: Run) -> torch.Tensor:
        return torch.arange(run.position, run.position + run.rows, device=self.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and LM head by the family's own forward: float32 ``[rows, vocab_size]``. Head only."""
        if self._tail is None:
            raise RuntimeError("only the head holds the LM head")
        if self._head_program is not None and hidden.shape[0] <= ALIKE_ROWS:
            return self._head_program(hidden).float()
        positions = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=self.device)
        return (
            self._tail(inputs_embeds=hidden[None], position_ids=positions, use_cache=False).logits[0].float()
        )


def load_stage(
    manifest: Manifest,
    start: int,
    end: int,
    *,
    is_head: bool,
    dtype: str,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> StageModel:
    """Read the tensors of blocks ``[start, end)`` (and the head's, if ``is_head``) and no others.

    ``dtype`` may name a packing too, as in ``bfloat16/int8``: matrices are then packed as they are read.
    ``on_progress(loaded, total)`` is in bytes of the checkpoint, from worker threads. Raises ModelError
    if the range is not in the model, a file changed since the manifest was read, or a tensor the family
    needs is missing.
    """
    if not 0 <= start < end <= manifest.blocks:
        raise ModelError(
            f"{manifest.name}: blocks [{start}, {end}) are not within its {manifest.blocks} blocks"
        )
    entries = manifest.block_tensors(start, end) + (manifest.head_tensors() if is_head else [])
    wanted = parse_precision(dtype)
    packings = manifest.packings(wanted.quant)
    reader = PackedReader(packings, entries, torch_dtype(wanted.dtype), on_progress, manifest.transform)
    stage_class = stage_of(causal_lm_class(manifest.family), start, end, is_head=is_head, packings=packings)
    model, info = _from_pretrained(manifest, stage_class, torch_dtype(wanted.dtype), reader)
    wrong = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise ModelError(f"{manifest.path}: lacks or misshapes {wrong[0]}; fetch the model again")
    family, kv = FAMILIES[manifest.family], manifest.kv[start:end]
    return StageModel(model.to(device), family, kv, start, end, is_head=is_head)


def _from_pretrained(
    manifest: Manifest, stage_class: type[PreTrainedModel], dtype: torch.dtype, reader: PackedReader
) -> tuple[PreTrainedModel, dict[str, Any]]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return fill(stage_class, manifest.model_config, reader.state_dict(), dtype)
    except Exception as error:
        if reader.error is not None:
            raise _as_model_error(reader.error, manifest) from error
        raise _as_model_error(error, manifest) from error


def fill(
    stage_class: type[PreTrainedModel], config: PreTrainedConfig, state: Mapping[str, Any], dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model with the tensors of ``state`` by transformers' loader, and what the loader says of them.

    The loader changes transformers' own classes while it works, and puts them back: two at once leave them changed for
    good. So there is one at a time.
    """
    with _FILLING:
        return stage_class.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
        )


def _as_model_error(error: Exception, manifest: Manifest) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return ModelError(
        f"{manifest.path}: cannot be loaded as {manifest.family}: {type(error).__name__}: {error}"
    )


def stage_of(
    cls: type[PreTrainedModel],
    start: int,
    end: int,
    *,
    is_head: bool,
    packings: Mapping[str, Packing] = _PLAIN,
) -> type[PreTrainedModel]:
    """``cls`` with every module foreign to the stage an identity, and matrices packed, before anything is allocated."""
    from transformers.distributed.pipeline_parallel import PipelineIdentityLayer
    from transformers.initialization import no_init_weights

    def __init__(self: Any, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        with no_init_weights():  # every one is read, or told to be missing
            cls.__init__(self, config, *args, **kwargs)
        base = self.base_model
        for index in range(len(base.layers)):
            if not start <= index < end:
                base.layers[index] = PipelineIdentityLayer()
        if not is_head:
            base.embed_tokens, base.norm, self.lm_head = (PipelineIdentityLayer() for _ in range(3))
            self.all_tied_weights_keys = {}
        put_packed(self, packings)

    # The same name, for transformers looks conversions and report texts up by it.
    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


def _body(model: PreTrainedModel, start: int, end: int) -> nn.Module:
    """The base model with only the stage's blocks, numbered from 0 (as its cache is), and no final norm."""
    from transformers.distributed.pipeline_parallel import PipelineIdentityLayer

    base = model.base_model
    base.layers = nn.ModuleList(list(base.layers)[start:end])
    base.norm = PipelineIdentityLayer()
    for module in base.layers.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx -= start
    narrow(base.config, start, end)
    return base


def _tail(model: PreTrainedModel) -> nn.Module:
    """The causal model with no blocks: final norm, LM head, and what the family does to logits."""
    tail, base = _shallow(model), _shallow(model.base_model)
    setattr(tail, model.base_model_prefix, base)
    base.layers = nn.ModuleList()
    tail.config = base.config = copy.deepcopy(model.config)
    narrow(base.config, 0, 0)
    return tail


def _shallow(module: nn.Module) -> Any:
    """A module of its own that shares every child and parameter."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
