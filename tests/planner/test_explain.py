"""Sentences and advice: each says what the plan does, and every figure is a plan of the changed fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_planner.advice import front, gains, outlooks, without_each
from kafila_planner.explain import explain
from kafila_planner.facts import Fleet, parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import Refusal, RingPlan
from tests.planner.fleets import fleet, member, proof, small_fleets


def planned(document: dict[str, Any], **options: str) -> tuple[Fleet, RingPlan]:
    parsed = parse_fleet(document)
    plan = plan_ring(parsed, **options)
    assert isinstance(plan, RingPlan)
    return parsed, plan


@proof(100)
@given(small_fleets(), st.sampled_from(["throughput", "latency", "mixed:0.5"]))
def test_every_answer_can_be_explained(document: dict[str, Any], objective: str) -> None:
    parsed = parse_fleet(document)
    plan = plan_ring(parsed, objective=objective)
    text = explain(parsed, plan)
    assert all(sentence.endswith(".") and "None" not in sentence for sentence in text)
    if isinstance(plan, RingPlan):
        for name in plan.ring:
            assert any(sentence.startswith(f"{name} holds ") for sentence in text)
        for edge in plan.edges:
            assert any(s.startswith(f"{edge.source} to {edge.target} should be {edge.path}: ") for s in text)
    else:
        for one in plan.refused:
            assert any(sentence.startswith(f"{one.member} would need ") for sentence in text)
    for out in plan.unseated:
        assert any(sentence.startswith(f"{out.member} has no seat: ") for sentence in text)


@pytest.mark.parametrize(
    ("members", "options", "sentence"),
    [
        ([member("a")], {}, "a is alone, so it is the head."),
        ([member("a"), member("b")], {}, "no other head makes the slowest stage shorter"),
        ([member("a", overhead_s=16.0), member("b")], {}, "b is the head: with it the slowest stage is"),
        (
            [member("a", memory_bytes=40), member("b")],
            {},
            "b is the head: a, who opened the session, has no room",
        ),
        ([member("a"), member("b", memory_bytes=45)], {}, "its room is full"),
        ([member("a"), member("b")], {"division": "uniform"}, "by the uniform rule"),
        ([member("a", overhead_s=None, flops_per_s=None)], {}, "in proportion to its room"),
        ([member("a", overhead_s=None)], {}, "by its arithmetic throughput"),
        ([member("a", udp=False), member("b")], {}, "a to b should be relayed: a has no UDP"),
        ([member("a"), member("b", memory_bytes=3)], {}, "b has no seat: its room (3 bytes)"),
        (
            [member("a", memory_bytes=180), member("b", memory_bytes=60)],
            {},
            "a is needed: the model does not fit",
        ),
        ([member("a", memory_bytes=100)], {}, "It would fit with 92 bytes more room on a"),
    ],
)
def test_reasons(members: list[dict[str, Any]], options: dict[str, str], sentence: str) -> None:
    parsed = parse_fleet(fleet(members))
    text = explain(parsed, plan_ring(parsed, **options))
    assert any(sentence in line for line in text), text


def test_without_a_member_the_session_is_the_plan_of_the_others() -> None:
    parsed, plan = planned(fleet([member("a"), member("b"), member("c", rendezvous_rtt_s=2.0)]))
    for one in without_each(parsed, plan):
        others = tuple(m for m in parsed.members if m.name != one.member)
        anchor = "a" if one.member != "a" else plan.ring[(plan.ring.index("a") + 1) % 3]
        alone = plan_ring(replace(parsed, members=others, anchor=anchor))
        assert isinstance(alone, RingPlan)
        assert one.tokens_per_s_one_user == alone.predicted.tokens_per_s_one_user
        assert one.tokens_per_s_all_users == alone.predicted.tokens_per_s_all_users


def test_another_anchor_that_would_do_better_is_found() -> None:
    """4 blocks each take 8 s; the head's 1/8 s is better spent by b, but only by 1.5 %."""
    members = [member("a", overhead_s=0.25), member("b", overhead_s=0.125)]
    parsed, plan = planned(fleet(members, {"head_bytes": 1}))
    assert (plan.head, plan.bottleneck_s) == ("a", 8.375)
    assert any("would shorten the slowest stage by 1.5% only" in line for line in explain(parsed, plan))
    found = gains(parsed, plan)
    assert [gain.change for gain in found] == ["b as anchor"]
    assert found[0].share == pytest.approx(1 - 8.25 / 8.375)


def test_another_order_that_would_do_better_is_found() -> None:
    """Two large blocks lie side by side; in the cheapest ring the two fast members do not."""
    members = [
        member(f"m{n}", rendezvous_rtt_s=n / 8, bandwidth_bytes_per_s=64.0 if n in (0, 2) else 8.0)
        for n in range(4)
    ]
    parsed, plan = planned(fleet(members, {"blocks": 4, "block_bytes": [64, 64, 16, 16], "head_bytes": 0}))
    assert plan.bottleneck_s == 8.125
    order = gains(parsed, plan)[0]
    assert order.change.startswith("the order ")
    assert order.share == pytest.approx(1 - 2.125 / 8.125)


def test_both_objectives_are_shown_whichever_was_asked_for() -> None:
    document = fleet([member("a"), member("b", rendezvous_rtt_s=9.0)])
    for objective in ("throughput", "latency", "mixed:0.5"):
        parsed, plan = planned(document, objective=objective)
        found = {one.objective: one for one in outlooks(parsed, plan)}
        assert found["throughput"].ring == ("a", "b")
        assert found["latency"].ring == ("a",)
        assert found["latency"].circuit_s < found["throughput"].circuit_s
    assert outlooks(*planned(fleet([member("a", overhead_s=None)]))) == []


def test_the_front_runs_from_the_quickest_circuit_to_the_shortest_stage() -> None:
    parsed, _ = planned(fleet([member("a"), member("b", rendezvous_rtt_s=1.0)]))
    points = front(parsed)
    ends = (plan_ring(parsed, objective="latency"), plan_ring(parsed, objective="mixed:1"))
    assert all(isinstance(end, RingPlan) for end in ends)
    assert points[0][0] == ends[0].circuit_s  # type: ignore[union-attr]
    assert points[-1][1] == ends[1].bottleneck_s  # type: ignore[union-attr]
    assert front(parse_fleet(fleet([member("a")], {"block_bytes": [16, 8] * 4}))) == []


def test_a_refusal_is_explained_with_its_remedies() -> None:
    parsed = parse_fleet(fleet([member("a", memory_bytes=224)], context_tokens=5, concurrency=3))
    plan = plan_ring(parsed)
    assert isinstance(plan, Refusal)
    text = explain(parsed, plan)
    assert "It would fit with context_tokens = 2, everything else the same." in text
    assert "It would fit with concurrency = 1, everything else the same." in text
