"""What the planner is told: a model, a fleet of measured members, and the session it should serve.

Facts are flat and frozen; the unit ends the name; *unknown* is a value (None), never a guess.
Absent and null mean the same in JSON, the form of `kafila-ctl plan` and of every report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from kafila_planner.fields import MAX_BYTES, MAX_SECONDS, FieldError, Fields

MAX_BLOCKS = 512
MAX_MEMBERS = 64
"""Several times the deepest model and the largest circle of friends: what is legal is also planned in seconds."""
MAX_TOKENS = 10**9
MAX_CONCURRENCY = 10**6
MIN_RATE, MAX_RATE = 1e-6, 1e21
"""Bytes or FLOP per second: wide enough for any machine, and for toy numbers in a file."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}")


class FleetError(FieldError):
    """The input is not a fleet; the message begins with the path of the field at fault."""


class Behaviour(StrEnum):
    """NAT mapping or filtering behaviour (RFC 4787, sections 4.1 and 5)."""

    ENDPOINT_INDEPENDENT = "endpoint-independent"
    ADDRESS_DEPENDENT = "address-dependent"
    ADDRESS_AND_PORT_DEPENDENT = "address-and-port-dependent"


@dataclass(frozen=True)
class ModelFacts:
    """A model's sizes as they will be held in memory, from its manifest.

    The tuples have one entry per block. *Held* and *read* differ: a mixture of experts reads only the
    routed ones for a token, an untied embedding is held but one row of it is read.
    """

    name: str
    blocks: int
    block_bytes: tuple[int, ...]
    block_read_bytes: tuple[float, ...]
    head_bytes: int
    head_read_bytes: float
    kv_bytes_per_token_per_block: tuple[int, ...]
    kv_tokens_per_block: tuple[int, ...] | None = None
    """Tokens whose keys and values a block keeps, per sequence (a sliding window keeps its window);
    None: the whole context."""
    expected_tokens: int | None = None
    """Typical length of a sequence, for the KV reading in predictions; None: half the context."""
    full_attention: tuple[bool, ...] | None = None
    """Of a hybrid model: which blocks keep a growing KV cache. Every stage must hold one of them.
    None: the model is no hybrid, any range will do."""


@dataclass(frozen=True)
class MemberFacts:
    """What one member measured of itself before any weight was loaded; None is unknown."""

    name: str
    bandwidth_bytes_per_s: float | None = None
    overhead_s: float | None = None
    block_overhead_s: float = 0.0
    flops_per_s: float | None = None
    memory_bytes: int | None = None
    """Room for weights and KV cache. Unknown room is no room: nothing may be promised on it."""
    rendezvous_rtt_s: float | None = None
    mapping: Behaviour | None = None
    filtering: Behaviour | None = None
    site: str | None = None
    nat: str | None = None
    hairpin: bool | None = None
    hairpin_open: bool | None = None
    """Whether what its outermost NAT sends back inside gets in from addresses it never sent to."""
    relay_only: bool = False
    """Its owner wants no direct edge."""
    udp: bool = True
    ipv4: bool = True
    """Whether it can be reached over IPv4 at all; mapping, filtering, nat and hairpin are about that."""
    ipv6: bool = False
    """Whether it is seen from outside at its own IPv6 address: then only firewalls are in the way."""

    @property
    def room_bytes(self) -> int:
        """Bytes a plan may fill on this member."""
        return self.memory_bytes or 0


@dataclass(frozen=True)
class Fleet:
    """Everything one plan is made from: who, what model, and for how many users at which context."""

    model: ModelFacts
    context_tokens: int
    concurrency: int
    anchor: str
    members: tuple[MemberFacts, ...]


_MODEL_FIELDS = [field.name for field in fields(ModelFacts)]
_MEMBER_FIELDS = [field.name for field in fields(MemberFacts)]
_FLEET_FIELDS = [field.name for field in fields(Fleet)]


def parse_model(value: object, path: str = "model") -> ModelFacts:
    """A model from JSON; FleetError names the field at fault."""
    try:
        return _model(Fields(value, path, _MODEL_FIELDS))
    except FleetError:
        raise
    except FieldError as error:
        raise FleetError(str(error)) from None


def _model(of: Fields) -> ModelFacts:
    blocks: int = of.whole("blocks", 1, MAX_BLOCKS)
    block_bytes = of.per_block("block_bytes", blocks, 1, MAX_BYTES)
    head_bytes = of.whole("head_bytes", 0, MAX_BYTES)
    flags = of.items("full_attention", None)
    if flags is not None:
        if len(flags) != blocks or not all(isinstance(flag, bool) for flag in flags):
            raise FieldError(f"{of.path('full_attention')}: must be {blocks} times true or false")
        if not any(flags):
            raise FieldError(f"{of.path('full_attention')}: needs at least one block that is true")
    return ModelFacts(
        name=of.text("name", "model"),
        blocks=blocks,
        block_bytes=block_bytes,
        block_read_bytes=of.per_block("block_read_bytes", blocks, 1e-6, MAX_BYTES, block_bytes, whole=False),
        head_bytes=head_bytes,
        head_read_bytes=of.number("head_read_bytes", 0, MAX_BYTES, head_bytes),
        kv_bytes_per_token_per_block=of.per_block("kv_bytes_per_token_per_block", blocks, 0, MAX_BYTES),
        kv_tokens_per_block=of.per_block("kv_tokens_per_block", blocks, 0, MAX_TOKENS, None),
        expected_tokens=of.whole("expected_tokens", 0, MAX_TOKENS, None),
        full_attention=None if flags is None else tuple(flags),
    )


def parse_member(value: object, path: str = "member") -> MemberFacts:
    """A member from JSON; FleetError names the field at fault."""
    try:
        return _member(Fields(value, path, _MEMBER_FIELDS))
    except FleetError:
        raise
    except FieldError as error:
        raise FleetError(str(error)) from None


def _member(of: Fields) -> MemberFacts:
    name: str = of.text("name")
    if not _NAME.fullmatch(name):
        raise FieldError(f"{of.path('name')}: must be 1 to 32 of A-Z a-z 0-9 . _ -, not {name[:40]!r}")
    behaviours = [behaviour.value for behaviour in Behaviour]
    mapping = of.choice("mapping", [*behaviours, "unknown"], None)
    filtering = of.choice("filtering", [*behaviours, "unknown"], None)
    memory_bytes = of.number("memory_bytes", 0, MAX_BYTES, None)
    return MemberFacts(
        name=name,
        bandwidth_bytes_per_s=of.number("bandwidth_bytes_per_s", MIN_RATE, MAX_RATE, None),
        overhead_s=of.number("overhead_s", 0, MAX_SECONDS, None),
        block_overhead_s=of.number("block_overhead_s", 0, MAX_SECONDS, 0.0),
        flops_per_s=of.number("flops_per_s", MIN_RATE, MAX_RATE, None),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        rendezvous_rtt_s=of.number("rendezvous_rtt_s", 0, MAX_SECONDS, None),
        mapping=Behaviour(mapping) if mapping in behaviours else None,
        filtering=Behaviour(filtering) if filtering in behaviours else None,
        site=of.text("site", None),
        nat=of.text("nat", None),
        hairpin=of.flag("hairpin", None),
        hairpin_open=of.flag("hairpin_open", None),
        relay_only=of.flag("relay_only", False),
        udp=of.flag("udp", True),
        ipv4=of.flag("ipv4", True),
        ipv6=of.flag("ipv6", False),
    )


def parse_fleet(value: object) -> Fleet:
    """A fleet from JSON (design of `kafila-ctl plan`); FleetError names the field at fault."""
    try:
        return _fleet(Fields(value, "", _FLEET_FIELDS))
    except FleetError:
        raise
    except FieldError as error:
        raise FleetError(str(error)) from None


def _fleet(of: Fields) -> Fleet:
    model = parse_model(of.value("model"))
    listed: Sequence[object] = of.items("members")
    if not 1 <= len(listed) <= MAX_MEMBERS:
        raise FieldError(f"members: must list 1 to {MAX_MEMBERS} members, not {len(listed)}")
    members = tuple(parse_member(member, f"members[{index}]") for index, member in enumerate(listed))
    names = [member.name for member in members]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise FieldError(f"members[{index}].name: {name} is already members[{names.index(name)}]")
    anchor: str = of.text("anchor")
    if anchor not in names:
        raise FieldError(f"anchor: {anchor[:40]!r} is not a member; members are {', '.join(names)}")
    return Fleet(
        model=model,
        context_tokens=of.whole("context_tokens", 1, MAX_TOKENS),
        concurrency=of.whole("concurrency", 1, MAX_CONCURRENCY),
        anchor=anchor,
        members=members,
    )


def _per_block_json(values: tuple[float, ...]) -> float | list[float]:
    """One number where all blocks are alike: lists are for models that need them."""
    return values[0] if len(set(values)) == 1 else list(values)


def model_to_json(model: ModelFacts) -> dict[str, Any]:
    """The JSON form that `parse_model` reads back to the same facts."""
    result: dict[str, Any] = {
        "name": model.name,
        "blocks": model.blocks,
        "block_bytes": _per_block_json(model.block_bytes),
        "block_read_bytes": _per_block_json(model.block_read_bytes),
        "head_bytes": model.head_bytes,
        "head_read_bytes": model.head_read_bytes,
        "kv_bytes_per_token_per_block": _per_block_json(model.kv_bytes_per_token_per_block),
    }
    if model.kv_tokens_per_block is not None:
        result["kv_tokens_per_block"] = _per_block_json(model.kv_tokens_per_block)
    if model.expected_tokens is not None:
        result["expected_tokens"] = model.expected_tokens
    if model.full_attention is not None:
        result["full_attention"] = list(model.full_attention)
    return result


def member_to_json(member: MemberFacts) -> dict[str, Any]:
    """The JSON form that `parse_member` reads back to the same facts."""
    values = ((name, getattr(member, name)) for name in _MEMBER_FIELDS)
    return {name: str(value) if isinstance(value, Behaviour) else value for name, value in values}


def fleet_to_json(fleet: Fleet) -> dict[str, Any]:
    """The JSON form that `parse_fleet` reads back to the same fleet."""
    return {
        "model": model_to_json(fleet.model),
        "context_tokens": fleet.context_tokens,
        "concurrency": fleet.concurrency,
        "anchor": fleet.anchor,
        "members": [member_to_json(member) for member in fleet.members],
    }
