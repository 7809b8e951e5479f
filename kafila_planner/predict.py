"""Figures for people: the formulas, in one place, for plans, status, the demo and measurements alike.

With c_i the seconds of stage i, k_i its seconds of KV-cache reading at the expected context, e_j the
round trip of edge j (a hop takes half of it) and n the users:

    circuit     T  = sum(c_i + k_i) + sum(e_j) / 2       one user's time per token
    bottleneck  t  = max(c_i + k_i)                      time between tokens of a full ring
    one user       = 1 / T tokens per second
    n users        = min(n / T, 1 / t)
    network share  = (sum(e_j) / 2) / T

A prompt of p tokens goes round in chunks of r rows that follow one another through the stages:

    chunk at i     q_i = o_i + n_i d_i + max(bytes read / b_i, r * bytes read / F_i)
    TTFT           = sum(q_i) + (ceil(p / r) - 1) * max(q_i) + head bytes read / b_head + sum(e_j) / 2

taking one floating-point operation per byte and token (two per 16-bit weight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from kafila_planner.facts import Fleet, MemberFacts
from kafila_planner.memory import chain_of
from kafila_planner.ring import Prediction, RingPlan, Stage, Tier

PROMPT_TOKENS = 512
CHUNK_TOKENS = 128
"""Rows of a prefill frame: predictions and the head that sends the frames mean the same number."""


def kv_read_bytes(fleet: Fleet, start: int, end: int) -> int:
    """KV cache that blocks [start, end) read for one token at the expected context."""
    model = fleet.model
    expected = fleet.context_tokens // 2 if model.expected_tokens is None else model.expected_tokens
    kept = model.kv_tokens_per_block or (fleet.context_tokens,) * model.blocks
    return sum(
        model.kv_bytes_per_token_per_block[block] * min(expected, kept[block]) for block in range(start, end)
    )


def predict_tokens(stage_s: Sequence[float], network_s: float, users: int) -> Prediction:
    """Rates from the seconds of each stage (KV reading included) and of all hops together."""
    circuit_s, bottleneck_s = sum(stage_s) + network_s, max(stage_s)
    if circuit_s <= 0 or bottleneck_s <= 0:
        return Prediction()
    return Prediction(
        tokens_per_s_one_user=1 / circuit_s,
        tokens_per_s_all_users=min(users / circuit_s, 1 / bottleneck_s),
        network_share=network_s / circuit_s,
        circuit_s=circuit_s,
        bottleneck_s=bottleneck_s,
    )


def predict_ttft_s(
    fleet: Fleet, stages: Sequence[Stage], network_s: float, prompt_tokens: int, chunk_tokens: int
) -> float | None:
    """Seconds from a prompt of so many tokens to its first token; None where FLOP/s are unknown."""
    members = {member.name: member for member in fleet.members}
    chain = chain_of(fleet)
    rows = min(prompt_tokens, chunk_tokens)
    chunks = []
    for stage in stages:
        seconds = _chunk_s(
            members[stage.member],
            stage.end - stage.start,
            chain.stage_read_bytes(stage.start, stage.end),
            rows,
        )
        if seconds is None:
            return None
        chunks.append(seconds)
    head = members[stages[0].member]
    assert head.bandwidth_bytes_per_s is not None
    head_s = chain.head_read_bytes / head.bandwidth_bytes_per_s
    return sum(chunks) + (ceil(prompt_tokens / rows) - 1) * max(chunks) + head_s + network_s


def _chunk_s(member: MemberFacts, blocks: int, read_bytes: float, rows: int) -> float | None:
    if member.flops_per_s is None or member.bandwidth_bytes_per_s is None or member.overhead_s is None:
        return None
    busy_s = max(read_bytes / member.bandwidth_bytes_per_s, rows * read_bytes / member.flops_per_s)
    return member.overhead_s + blocks * member.block_overhead_s + busy_s


def predict_session(
    fleet: Fleet,
    tier: Tier,
    stages: Sequence[Stage],
    edge_rtts_s: Sequence[float] | None,
    *,
    prompt_tokens: int | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Prediction:
    """All figures for these stages over edges with these round trips; empty where nothing is priced."""
    if tier is not Tier.COST_MODEL or edge_rtts_s is None:
        return Prediction()
    members = {member.name: member for member in fleet.members}
    stage_s = [_stage_with_kv_s(fleet, members[stage.member], stage) for stage in stages]
    network_s = sum(edge_rtts_s) / 2
    tokens = predict_tokens(stage_s, network_s, fleet.concurrency)
    prompt = min(PROMPT_TOKENS, fleet.context_tokens) if prompt_tokens is None else prompt_tokens
    spread = [_edge_range_s(members[a.member], members[b.member]) for a, b in _ring_pairs(stages)]
    rates = [
        predict_tokens(stage_s, sum(edge[end] for edge in spread) / 2, fleet.concurrency) for end in (1, 0)
    ]
    slow, fast = (rate.tokens_per_s_one_user for rate in rates)
    return replace(
        tokens,
        ttft_s=predict_ttft_s(fleet, stages, network_s, prompt, chunk_tokens),
        prompt_tokens=prompt,
        tokens_per_s_one_user_range=None if slow is None or fast is None else (slow, fast),
    )


def restate(fleet: Fleet, plan: RingPlan, measured_rtts_s: Mapping[tuple[str, str], float]) -> Prediction:
    """The plan's figures with what its edges really measure; an edge not in the mapping keeps its price.

    The mapping's keys are (from, to) names as in the plan's edges. A measured ring has no range.
    """
    rtts_s = [measured_rtts_s.get((edge.source, edge.target), edge.cost_s) for edge in plan.edges]
    known_s = [rtt for rtt in rtts_s if rtt is not None]
    prediction = predict_session(
        fleet, plan.tier, plan.stages, known_s if len(known_s) == len(rtts_s) else None
    )
    measured = all((edge.source, edge.target) in measured_rtts_s for edge in plan.edges)
    return replace(prediction, tokens_per_s_one_user_range=None) if measured else prediction


def _stage_with_kv_s(fleet: Fleet, member: MemberFacts, stage: Stage) -> float:
    assert stage.predicted_s is not None
    assert member.bandwidth_bytes_per_s is not None
    return stage.predicted_s + kv_read_bytes(fleet, stage.start, stage.end) / member.bandwidth_bytes_per_s


def _ring_pairs(stages: Sequence[Stage]) -> list[tuple[Stage, Stage]]:
    return [] if len(stages) == 1 else list(zip(stages, [*stages[1:], stages[0]], strict=True))


def _edge_range_s(a: MemberFacts, b: MemberFacts) -> tuple[float, float]:
    """Shortest and longest round trip an edge can have, by its ends' distances to the rendezvous."""
    near, far = a.rendezvous_rtt_s or 0.0, b.rendezvous_rtt_s or 0.0
    return abs(near - far), near + far
