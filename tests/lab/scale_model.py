"""Scale models: checkpoints in which every byte stands for many, so that small machines can hold a large model's shape.

A scale model has as many blocks, and a row of its hidden states as many bytes on the wire: half as many numbers, in
float32, which processors compute quickest. Inner widths, vocabulary and KV heads are narrowed until weights of a block,
of the head and the cache of a token are all the same share of the large model's. To the product it is a checkpoint like
any other: it reads these sizes from the tensors' own headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BYTES_STOOD_FOR = 256
"""How many bytes of the large model one byte of its scale model stands for."""

DTYPE = "float32"
_HEADS, _HEAD_WIDTH = 1, 2  # the narrowest there are: 16 bytes of cache a token and block, of 4096
_WEIGHT_BYTES = 2  # the large model's, in bfloat16


@dataclass(frozen=True)
class LargeModel:
    """What matters here of a published model's configuration."""

    name: str
    blocks: int
    hidden: int
    heads: int
    inner: int
    kv_heads: int = 8
    head_width: int = 128
    vocabulary: int = 151936

    @property
    def block_width(self) -> float:
        """Numbers that a block holds for each of the hidden ones: attention, gated feed-forward, two norms."""
        return 2 * (self.heads + self.kv_heads) * self.head_width + 3 * self.inner + 2

    @property
    def block_bytes(self) -> float:
        """Of one block."""
        return self.block_width * self.hidden * _WEIGHT_BYTES

    @property
    def head_bytes(self) -> float:
        """Of embedding and LM head, which are not tied."""
        return 2 * self.vocabulary * self.hidden * _WEIGHT_BYTES

    @property
    def kv_bytes_per_token(self) -> float:
        """Of one block's keys and values."""
        return 2 * self.kv_heads * self.head_width * _WEIGHT_BYTES


QWEN3_8B = LargeModel("Qwen3-8B", blocks=36, hidden=4096, heads=32, inner=12288)
QWEN3_14B = LargeModel("Qwen3-14B", blocks=40, hidden=5120, heads=40, inner=17408)
QWEN3_32B = LargeModel("Qwen3-32B", blocks=64, hidden=5120, heads=64, inner=25600)
MODELS = {model.name: model for model in (QWEN3_8B, QWEN3_14B, QWEN3_32B)}


def make_scale_model(model: LargeModel, directory: Path) -> Path:
    """Write the scale model of ``model`` with random weights and a tokenizer, unless it is there; its directory."""
    target = directory / model.name
    if (target / "tokenizer.json").exists():
        return target
    import torch
    from transformers import OlmoConfig, OlmoForCausalLM

    attention = 4 * _HEADS * _HEAD_WIDTH
    vocabulary = round(model.vocabulary / BYTES_STOOD_FOR)
    config = OlmoConfig(
        hidden_size=model.hidden // 2,
        intermediate_size=round((model.block_width / BYTES_STOOD_FOR - attention) / 3),
        num_hidden_layers=model.blocks,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        head_dim=_HEAD_WIDTH,
        vocab_size=vocabulary,
        max_position_embeddings=40960,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    OlmoForCausalLM(config).save_pretrained(target)
    _give_tokenizer(target, vocabulary)
    return target


def _give_tokenizer(directory: Path, vocabulary: int) -> None:
    """Every token is a word of its own, so that each token sent is a piece of text received."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
