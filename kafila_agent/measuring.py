"""What a member reports: is the model here, and what does this machine measure with it. Never a guess."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafila_agent.machine import Machine
from kafila_agent.probe.reachability import measure_reachability
from kafila_planner.facts import MemberFacts, member_to_json
from kafila_proto.rendezvous_pb2 import Candidate, ModelReference

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest


@dataclass(frozen=True)
class Measured:
    """``problem`` says why this member cannot take part, and what to do; empty if it can."""

    member_json: str
    candidates: tuple[Candidate, ...]
    manifest: Manifest | None
    problem: str = ""


async def measure_member(
    machine: Machine, reference: ModelReference, manifest: Manifest | None = None
) -> Measured:
    """Find the model of ``reference`` (unless the host's ``manifest`` is given) and measure with its blocks."""
    if manifest is None:
        manifest, problem = await asyncio.to_thread(_find, machine, reference)
        if problem:
            return Measured("", (), None, problem)
    facts, candidates = await measure_machine(machine, manifest, reference.dtype)
    return Measured(json.dumps(member_to_json(facts)), candidates, manifest)


async def measure_machine(
    machine: Machine, manifest: Manifest | None, dtype: str
) -> tuple[MemberFacts, tuple[Candidate, ...]]:
    """This machine's facts, and where it can be reached."""
    from kafila_agent.probe.capability import measure_capability

    config = machine.config
    capability = await asyncio.to_thread(
        measure_capability,
        manifest.config if manifest else None,
        dtype,
        config.threads,
        device=config.device,
        limit_bytes=config.memory_limit_bytes,
    )
    attachment = machine.link.attachment
    reach = (
        await measure_reachability(machine.endpoint, attachment.host, attachment.udp_port)
        if attachment
        else None
    )
    facts = MemberFacts(
        name=machine.identity.name,
        bandwidth_bytes_per_s=capability.bandwidth_bytes_per_s,
        overhead_s=capability.overhead_s,
        block_overhead_s=capability.block_overhead_s or 0.0,
        flops_per_s=capability.flops_per_s,
        memory_bytes=capability.memory_bytes,
        rendezvous_rtt_s=reach.rendezvous_rtt_s if reach else None,
        mapping=reach.mapping if reach else None,
        nat=reach.nat if reach else None,
    )
    candidates = [
        Candidate(kind=c.kind.name, host=c.host, port=c.port) for c in (reach.candidates if reach else ())
    ]
    return facts, tuple(candidates)


def _find(machine: Machine, reference: ModelReference) -> tuple[Manifest | None, str]:
    """The manifest of the session's model on this machine, or why there is none."""
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.locate import find_by_digest, locate_model
    from kafila_agent.model.manifest import read_manifest

    dirs = machine.config.model_dirs
    cache = machine.config.digest_cache
    path = find_by_digest(reference.digest, reference.name, dirs, digest_cache=cache)
    try:
        if path is not None:
            return read_manifest(path, digest_cache=cache), ""
        other = locate_model(reference.name, dirs)
    except ModelError:
        where = ", ".join(str(directory) for directory in dirs)
        return None, (
            f"has no {reference.name} in {where} or the hub's cache: put the host's files there "
            "(a directory of safetensors or the same GGUF file), or start its agent with --model-dir"
        )
    return None, f"has another version of {reference.name} at {other}: replace it with the host's files"
