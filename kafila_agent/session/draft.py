"""The session's draft model: a guest in the head's memory, whose guesses the ring checks (see ``head/draft.py``).

Any member may become the head, so the plan counts the guest at the head whoever that is. A head that does not find the
draft model serves without it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kafila_planner.facts import ModelFacts
from kafila_proto.rendezvous_pb2 import Charter, ModelReference

if TYPE_CHECKING:
    from kafila_agent.config import AgentConfig
    from kafila_agent.model.manifest import Manifest
    from kafila_agent.stage.executor import StageExecutor

log = structlog.get_logger()


class DraftError(ValueError):
    """A model that cannot guess for this one; the message says why, and what would do."""


def describe_draft(draft: Manifest, model: Manifest, dtype: str, config: AgentConfig) -> ModelReference:
    """What the charter says of ``draft`` beside a ``model`` served in ``dtype``: in 4 bits, which guesses can bear.

    Raises DraftError if it cannot guess for ``model``, or agents would not find it.
    """
    from kafila_agent.head.text import Text
    from kafila_agent.model.precision import Precision, parse_precision

    if _find(draft.digest, draft.name, config) is None:
        raise DraftError(
            f"--draft {draft.name}: put it below a model directory (kafila-agent --model-dir), where agents look for it"
        )
    if Text.from_model(draft).vocabulary != Text.from_model(model).vocabulary:
        raise DraftError(
            f"--draft {draft.name}: its tokens are not those of {model.name}; take a smaller model of that family"
        )
    computed_in = parse_precision(dtype).dtype
    held_in = Precision(computed_in, "int4" if computed_in == "bfloat16" else "none")
    return ModelReference(name=draft.name, digest=draft.digest, dtype=str(held_in))


def with_guest(facts: ModelFacts, guest: ModelFacts, concurrency: int) -> ModelFacts:
    """``facts`` of a model whose head also holds ``guest`` and a KV cache of it for so many sequences."""
    tokens = guest.kv_tokens_per_block or ()
    kv_bytes = sum(a * b for a, b in zip(guest.kv_bytes_per_token_per_block, tokens, strict=True))
    held_bytes = sum(guest.block_bytes) + guest.head_bytes + kv_bytes * concurrency
    return replace(facts, head_bytes=facts.head_bytes + held_bytes)


def load_draft(config: AgentConfig, charter: Charter) -> StageExecutor | None:
    """The charter's draft model whole, as the head runs it; None if there is none, or none on this machine.

    Raises ModelError if its files cannot be read.
    """
    from kafila_agent.model.blocks import load_stage
    from kafila_agent.model.manifest import read_manifest
    from kafila_agent.stage.executor import StageExecutor

    if not charter.draft.digest:
        return None
    path = _find(charter.draft.digest, charter.draft.name, config)
    if path is None:
        log.warning("serves without the draft model: put it below a model directory", name=charter.draft.name)
        return None
    manifest = read_manifest(path, digest_cache=config.digest_cache)
    model = load_stage(
        manifest, 0, manifest.blocks, is_head=True, dtype=charter.draft.dtype, device=config.device
    )
    return StageExecutor(
        model, slots=charter.concurrency, context_tokens=charter.context_tokens, threads=config.threads
    )


def _find(digest: str, name: str, config: AgentConfig) -> Path | None:
    from kafila_agent.model.locate import find_by_digest

    return find_by_digest(digest, name, config.model_dirs, digest_cache=config.digest_cache)
