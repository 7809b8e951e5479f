"""Fleets for tests: a builder with round numbers, and a strategy that invents small ones full of ties.

Everything invented is a dyadic rational, so float arithmetic is exact and ties are ties, not accidents.
"""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

BEHAVIOURS = ["endpoint-independent", "address-dependent", "address-and-port-dependent"]


def proof(examples: int) -> settings:
    """The fixed profile of the planner's proofs: the same examples every time, however long one takes."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


def member(name: str, **facts: Any) -> dict[str, Any]:
    """A fully measured member: bandwidth 8 bytes/s, overhead 1/8 s, room 1000 bytes, RTT 1/4 s, all open."""
    return {
        "name": name,
        "bandwidth_bytes_per_s": 8.0,
        "overhead_s": 0.125,
        "flops_per_s": 16.0,
        "memory_bytes": 1000,
        "rendezvous_rtt_s": 0.25,
        "mapping": "endpoint-independent",
        "filtering": "endpoint-independent",
    } | facts


def fleet(members: list[dict[str, Any]], model: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """A fleet of 8 blocks of 16 bytes, KV cache 1 byte per token, head 32 bytes, one user of 4 tokens."""
    sizes = {
        "name": "toy",
        "blocks": 8,
        "block_bytes": 16,
        "head_bytes": 32,
        "kv_bytes_per_token_per_block": 1,
    }
    return {
        "model": sizes | (model or {}),
        "context_tokens": 4,
        "concurrency": 1,
        "anchor": members[0]["name"],
        "members": members,
    } | facts


@functools.lru_cache(maxsize=None, typed=True)
def _one_of(*choices: Any) -> st.SearchStrategy[Any]:
    """One strategy for all fleets: to make it takes longer than to draw from it."""
    return st.sampled_from(choices)


@st.composite
def small_fleets(
    draw: st.DrawFn,
    *,
    max_members: int = 6,
    max_blocks: int = 12,
    unequal: bool | None = None,
    full: bool = False,
) -> dict[str, Any]:
    """Fleets that brute force can check: tight rooms, ties, hybrids, and (unless `full`) missing measurements."""
    count = draw(st.integers(1, max_members))
    blocks = draw(st.integers(1, max_blocks))
    lists = draw(st.booleans()) if unequal is None else unequal

    def sizes(choices: list[int]) -> Any:
        one = _one_of(*choices)
        return draw(st.lists(one, min_size=blocks, max_size=blocks) if lists else one)

    model = {
        "name": "toy",
        "blocks": blocks,
        "block_bytes": sizes([8, 16, 16, 24]),
        "head_bytes": draw(_one_of(0, 8, 40)),
        "kv_bytes_per_token_per_block": draw(_one_of(0, 1)),
    }
    if draw(st.booleans()):
        model["block_read_bytes"] = sizes([4, 8, 16])
        model["head_read_bytes"] = draw(_one_of(0, 8, 16))
    if lists and draw(st.integers(0, 3)) == 0:
        flags = draw(st.lists(st.booleans(), min_size=blocks, max_size=blocks))
        flags[draw(st.integers(0, blocks - 1))] = True
        model["full_attention"] = flags
    missing = _one_of(None, 1, 1, 1, 1, 1, 1, 1) if not full else st.just(1)
    rtts = _one_of(0.0, 0.03125, 0.03125, 0.0625, 0.125, 0.25)
    members = [
        member(
            f"m{index}",
            bandwidth_bytes_per_s=draw(missing) and draw(_one_of(4.0, 8.0, 16.0, 64.0)),
            overhead_s=draw(_one_of(0.0, 0.125, 0.5)),
            block_overhead_s=draw(_one_of(0.0, 0.0, 0.25)),
            flops_per_s=draw(missing) and draw(_one_of(8.0, 16.0, 32.0)),
            memory_bytes=draw(_one_of(0, 20, 48, 80, 120, 200, 400, 400, 1000, 1000)),
            rendezvous_rtt_s=draw(missing) and draw(rtts),
            mapping=draw(_one_of(*BEHAVIOURS, None)),
            filtering=draw(_one_of(*BEHAVIOURS, None)),
            site=draw(_one_of(None, None, "home")),
            nat=draw(_one_of(None, None, "carrier")),
            hairpin=draw(_one_of(None, True)),
            hairpin_open=draw(_one_of(None, False, True)),
            relay_only=draw(_one_of(False, False, False, True)),
            udp=draw(_one_of(True, True, True, False)),
        )
        for index in draw(st.permutations(range(count)))
    ]
    anchor = f"m{draw(st.integers(0, count - 1))}"
    return fleet(members, model, context_tokens=4, concurrency=draw(_one_of(1, 2)), anchor=anchor)
