"""What a member reports: is the model here, and what does this machine measure with it. Never a guess."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafila_agent.config import AgentConfig
from kafila_agent.machine import Machine
from kafila_agent.nat.reachability import Reachability, measure_reachability
from kafila_agent.nat.words import no_udp
from kafila_planner.facts import MemberFacts, member_to_json
from kafila_proto.rendezvous_pb2 import Candidate, ModelReference

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest
    from kafila_agent.pace import Pace
    from kafila_agent.probe.capability import Capability


@dataclass(frozen=True)
class Measured:
    """``problem`` says why this member cannot take part, and what to do; empty if it can."""

    facts: MemberFacts | None
    candidates: tuple[Candidate, ...]
    manifest: Manifest | None
    problem: str = ""

    @property
    def member_json(self) -> str:
        """The facts as a "members" object of a planning file; empty if there are none."""
        return json.dumps(member_to_json(self.facts)) if self.facts is not None else ""


async def measure_member(
    machine: Machine,
    reference: ModelReference,
    known: Measured | None = None,
    *,
    path: Path | None = None,
    needs_udp: bool,
    found: Callable[[tuple[Candidate, ...]], None],
    find_site: Callable[[], Awaitable[str]],
) -> Measured:
    """Find the model of ``reference`` and measure with its blocks, except what is ``known``.

    What a machine can do is measured once, before it holds blocks; where it is reached, each time. ``path`` is where
    the model lay before. ``found`` hears where this machine is reached as soon as that is known; ``find_site`` is asked
    last.
    """
    manifest = known.manifest if known is not None else None
    if manifest is None:
        manifest, problem = await asyncio.to_thread(_find, machine, reference, path)
        if problem:
            return Measured(None, (), None, problem)
    reach = await measure_network(machine)
    if needs_udp and not reach.udp:
        return Measured(None, (), None, no_udp(machine.link.attachment))
    candidates = tuple(Candidate(kind=c.kind.name, host=c.host, port=c.port) for c in reach.candidates)
    found(candidates)
    if known is None or known.facts is None:
        facts = await measure_machine(machine, manifest, reference.dtype, reach)
    else:
        facts = _reached(machine.config, _pace(machine.config), known.facts, reach)
    return Measured(replace(facts, site=await find_site()), candidates, manifest)


async def measure_network(machine: Machine) -> Reachability:
    """Where this machine stands on the network; nothing is known of it without a rendezvous."""
    attachment = machine.link.attachment
    if attachment is None:
        return Reachability(())
    return await measure_reachability(
        machine.endpoint,
        attachment.host,
        attachment.udp_port,
        stun_servers=machine.config.stun_servers,
        mapped_port=await machine.port_mapping.first_address() if machine.port_mapping else None,
    )


async def measure_machine(
    machine: Machine, manifest: Manifest | None, dtype: str, reach: Reachability
) -> MemberFacts:
    """This machine's facts, those of its network from ``reach``."""
    config = machine.config
    pace = _pace(config)
    capability = await asyncio.to_thread(_capability, config, pace, manifest, dtype)
    facts = MemberFacts(
        name=machine.identity.name,
        bandwidth_bytes_per_s=capability.bandwidth_bytes_per_s,
        overhead_s=capability.overhead_s,
        block_overhead_s=capability.block_overhead_s or 0.0,
        flops_per_s=capability.flops_per_s,
        memory_bytes=capability.memory_bytes,
    )
    return _reached(config, pace, facts, reach)


def _pace(config: AgentConfig) -> Pace | None:
    """Of the machine that this one pretends to be, if it does."""
    from kafila_agent.pace import read_pace

    return read_pace(config.pace) if config.pace is not None else None


def _reached(config: AgentConfig, pace: Pace | None, facts: MemberFacts, reach: Reachability) -> MemberFacts:
    """``facts`` of a machine that is reached so."""
    facts = replace(
        facts,
        rendezvous_rtt_s=reach.rendezvous_rtt_s,
        mapping=reach.mapping,
        filtering=reach.filtering,
        nat=reach.nat,
        hairpin=reach.hairpin,
        hairpin_open=reach.hairpin_open,
        relay_only=config.relay_only,
        udp=reach.udp,
        ipv4=reach.ipv4,
        ipv6=reach.ipv6,
    )
    return pace.forget(facts) if pace is not None else facts


def _capability(config: AgentConfig, pace: Pace | None, manifest: Manifest | None, dtype: str) -> Capability:
    from kafila_agent.probe.capability import measure_capability
    from kafila_agent.probe.room import measure_room_bytes

    if pace is not None:
        return pace.capability(measure_room_bytes(config.device, limit_bytes=config.memory_limit_bytes))
    return measure_capability(
        manifest.config if manifest else None,
        dtype,
        config.threads,
        device=config.device,
        limit_bytes=config.memory_limit_bytes,
    )


def _find(machine: Machine, reference: ModelReference, before: Path | None) -> tuple[Manifest | None, str]:
    """The manifest of the session's model on this machine, looked for first where it lay ``before``; or why none."""
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.locate import find_by_digest, locate_model
    from kafila_agent.model.manifest import read_manifest

    dirs = machine.config.model_dirs
    cache = machine.config.digest_cache
    if before is not None:
        with suppress(ModelError):
            if (manifest := read_manifest(before, digest_cache=cache)).digest == reference.digest:
                return manifest, ""
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
