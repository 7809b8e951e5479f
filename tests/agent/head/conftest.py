from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kafila_agent.head.engine import Engine
from kafila_agent.head.text import Text
from kafila_agent.model.manifest import read_manifest
from tests.agent.head.simulated_ring import SimulatedRing


@pytest.fixture(scope="session")
def text(smollm2) -> Text:
    return Text.from_model(read_manifest(smollm2))


@pytest.fixture
def make_engine(text) -> Callable[..., Engine]:
    """``make_engine(ring, ...)``: an engine on a simulated ring."""

    def make(ring: SimulatedRing, **options: object) -> Engine:
        settings = {"epoch": 7, "slots": 4, "context_tokens": 256, "prefill_chunk": 8, "clock": ring.clock}
        ring.engine = Engine(ring.launch, text, **(settings | options))
        return ring.engine

    return make


@pytest.fixture
def checkpoint_with_tokenizer(checkpoint, tmp_path) -> Callable[..., Path]:
    """A tiny llama (128 tokens, end 2 in config.json) with a byte-level tokenizer of its size, whose end is 3."""

    def make(*, generation_eos: list[int] | None, eos_token: str | None = "<end>") -> Path:
        directory = tmp_path / f"eos-{generation_eos}"
        shutil.copytree(checkpoint("llama"), directory, dirs_exist_ok=True)
        alphabet = ["<pad>", "<s>", "</s>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet[:128])}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos_token).save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        if generation_eos is not None:
            generation = {"eos_token_id": generation_eos}
            (directory / "generation_config.json").write_text(json.dumps(generation))
        return directory

    return make
