"""A session's draft model: who may be one, what it takes of the head, and how the head finds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafila_agent.config import AgentConfig
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import read_manifest
from kafila_agent.session.draft import DraftError, describe_draft, load_draft, with_guest
from kafila_proto.rendezvous_pb2 import Charter, ModelReference
from tests.agent.head.models import give_tokenizer

SIZES = {"context_tokens": 64, "concurrency": 3}


@pytest.fixture
def models(checkpoint, tmp_path):
    """(the model, its draft, the configuration of an agent that finds both)"""
    large = give_tokenizer(checkpoint("llama"), tmp_path / "models" / "large")
    small = give_tokenizer(checkpoint("llama", num_hidden_layers=2), tmp_path / "models" / "small")
    config = AgentConfig(
        "desk", tmp_path / "state", "127.0.0.1:1", model_dirs=(tmp_path / "models",), threads=1
    )
    return read_manifest(large), read_manifest(small), config


def test_the_plan_counts_the_guest_with_a_cache_for_everybody(models):
    large, small, _ = models
    facts, guest = (describe_model(each, "float32", **SIZES) for each in (large, small))
    held = with_guest(facts, guest, SIZES["concurrency"])
    kv_bytes = sum(guest.kv_bytes_per_token_per_block) * 64 * 3
    assert held == replace(
        facts, head_bytes=facts.head_bytes + sum(guest.block_bytes) + guest.head_bytes + kv_bytes
    )


def test_the_guest_takes_what_was_counted(models):
    large, small, config = models
    for dtype in ("float32", "bfloat16"):
        draft = describe_draft(small, large, dtype, config)
        facts, guest = describe_model(large, dtype, **SIZES), describe_model(small, draft.dtype, **SIZES)
        executor = load_draft(config, Charter(model=ModelReference(dtype=dtype), draft=draft, **SIZES))
        held_bytes = executor.stage.loaded_bytes + executor.kv_bytes
        assert held_bytes == with_guest(facts, guest, 3).head_bytes - facts.head_bytes


def test_a_model_of_other_tokens_is_refused_by_name(models, smollm2):
    large, _, config = models
    other = read_manifest(smollm2)
    config = replace(config, model_dirs=(*config.model_dirs, smollm2.parent))
    with pytest.raises(DraftError, match=rf"--draft {other.name}: its tokens are not those of large"):
        describe_draft(other, large, "float32", config)


def test_a_model_that_agents_would_not_find_is_refused_with_where_to_put_it(models):
    large, small, config = models
    with pytest.raises(DraftError, match="--draft small: put it below a model directory"):
        describe_draft(small, large, "float32", replace(config, model_dirs=()))


def test_a_head_without_the_draft_model_serves_without_it(models):
    large, small, config = models
    draft = describe_draft(small, large, "float32", config)
    charter = Charter(model=ModelReference(dtype="float32"), draft=draft, **SIZES)
    assert load_draft(replace(config, model_dirs=()), charter) is None
    assert load_draft(config, Charter(model=ModelReference(dtype="float32"), **SIZES)) is None
