"""What a session is proposed with: the model and its draft model, as they lie on the host's machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kafila_agent.config import AgentConfig
from kafila_agent.control.local import AgentError, Fault
from kafila_agent.session.draft import DraftError, describe_draft, with_guest
from kafila_planner.facts import ModelFacts, model_to_json
from kafila_planner.objective import parse_objective
from kafila_proto import agent_pb2 as pb
from kafila_proto.fleet import check_division
from kafila_proto.rendezvous_pb2 import ModelReference

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest

DEFAULT_OBJECTIVE = "throughput"


def read_precision(dtype: str, quant: str) -> str:
    """``dtype`` and ``quant`` of a request in one word; bfloat16 and none if empty. Raises AgentError."""
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.precision import DTYPES, parse_precision

    try:
        return str(parse_precision(f"{dtype or DTYPES[0]}/{quant}"))
    except ModelError as error:
        raise AgentError(Fault.INVALID, str(error)) from error


def find_manifest(model: str, config: AgentConfig) -> Manifest:
    """The model that a request names, on this machine. Raises AgentError."""
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.locate import locate_model
    from kafila_agent.model.manifest import read_manifest

    try:
        return read_manifest(locate_model(model, config.model_dirs), digest_cache=config.digest_cache)
    except ModelError as error:
        raise AgentError(Fault.NOT_FOUND, str(error)) from error


def describe_proposal(
    request: pb.CreateRequest, config: AgentConfig
) -> tuple[Manifest, ModelReference, ModelReference | None]:
    """The model, and what the charter says of it and of its draft model. Raises AgentError."""
    from kafila_agent.model.errors import ModelError

    dtype = read_precision(request.dtype, request.quant)
    try:
        parse_objective(request.objective or DEFAULT_OBJECTIVE)
        check_division(request.division)
    except ValueError as error:
        raise AgentError(Fault.INVALID, f"--{error}") from error
    manifest = find_manifest(request.model, config)
    try:
        if not request.draft:
            return manifest, _refer_to(manifest, dtype, request), None
        draft = find_manifest(request.draft, config)
        reference = describe_draft(draft, manifest, dtype, config)
        guest = _facts(draft, reference.dtype, request)
        return manifest, _refer_to(manifest, dtype, request, guest), reference
    except (ModelError, DraftError) as error:
        raise AgentError(Fault.REFUSED, str(error)) from error


def _facts(manifest: Manifest, dtype: str, request: pb.CreateRequest) -> ModelFacts:
    from kafila_agent.model.facts import describe_model

    sizes = {"context_tokens": request.context_tokens, "concurrency": request.concurrency}
    return describe_model(manifest, dtype, **sizes)


def _refer_to(
    manifest: Manifest, dtype: str, request: pb.CreateRequest, guest: ModelFacts | None = None
) -> ModelReference:
    """What the charter says of the model, with a ``guest`` at its head.

    Raises ModelError, or AgentError for a context it was not made for.
    """
    limit = getattr(manifest.model_config, "max_position_embeddings", None)
    if limit is not None and request.context_tokens > limit:
        raise AgentError(
            Fault.INVALID,
            f"--context {request.context_tokens}: {manifest.name} was made for at most {limit} tokens",
        )
    facts = _facts(manifest, dtype, request)
    if guest is not None:
        facts = with_guest(facts, guest, request.concurrency)
    return ModelReference(
        name=manifest.name,
        digest=manifest.digest,
        dtype=dtype,
        facts_json=json.dumps(model_to_json(facts)),
    )
