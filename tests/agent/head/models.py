"""Models whose text side is real: SmolLM2's GGUF file, and tiny checkpoints given a tokenizer of their size."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kafila_agent.head.text import Text
from kafila_agent.model.manifest import read_manifest

TINY_VOCAB = 128
TINY_TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"


@functools.cache
def smollm2_text(file: Path) -> Text:
    """Read once for all tests: it takes most of a second."""
    return Text.from_model(read_manifest(file))


def give_tokenizer(
    checkpoint: Path,
    directory: Path,
    *,
    eos_token: str | None = None,
    generation_eos: list[int] | None = None,
    template: str | None = None,
) -> Path:
    """A copy of a tiny checkpoint with a byte-level tokenizer; its ids 2 and 3 are ``</s>`` and ``<end>``."""
    shutil.copytree(checkpoint, directory, dirs_exist_ok=True)
    alphabet = ["<pad>", "<s>", "</s>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet[:TINY_VOCAB])}, []))
    backend.add_special_tokens(alphabet[:4])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos_token, chat_template=template)
    tokenizer.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if generation_eos is not None:
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    return directory


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's is built: words begin with U+2581, other characters are bytes, decoding strips one space."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh"]
    merges = [("▁", letter) for letter in "abcdefgh"]
    vocab = {piece: i for i, piece in enumerate([*pieces, *(first + second for first, second in merges)])}
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
