"""Predictions by hand: rates, network share, KV-cache reading, time to first token, ranges, restating."""

from __future__ import annotations

from typing import Any

import pytest

from kafila_planner.facts import Fleet, parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.predict import kv_read_bytes, predict_session, predict_tokens, restate
from kafila_planner.ring import Prediction, RingPlan
from tests.planner.fleets import fleet, member


def planned(document: dict[str, Any]) -> tuple[Fleet, RingPlan]:
    parsed = parse_fleet(document)
    plan = plan_ring(parsed)
    assert isinstance(plan, RingPlan)
    return parsed, plan


def test_the_example_of_the_contract() -> None:
    """30 ms of compute and 60 ms of round trips: 50 ms a token, four users as fast as the ring allows."""
    predicted = predict_tokens([0.012, 0.008], 0.03, 4)
    assert predicted.tokens_per_s_one_user == pytest.approx(20)
    assert predicted.tokens_per_s_all_users == pytest.approx(80)
    assert predicted.network_share == pytest.approx(0.6)
    assert predict_tokens([0.012, 0.008], 0.03, 5).tokens_per_s_all_users == pytest.approx(1 / 0.012)


def test_nothing_to_wait_for_predicts_nothing() -> None:
    assert predict_tokens([0.0], 0.0, 1) == Prediction()


def test_a_plan_s_circuit_is_compute_and_half_of_every_round_trip() -> None:
    facts = {"kv_bytes_per_token_per_block": 0, "blocks": 2, "block_bytes": 16, "head_bytes": 0}
    members = [member("a", rendezvous_rtt_s=0.5, udp=False), member("b", rendezvous_rtt_s=0.25)]
    _, plan = planned(fleet(members, facts, concurrency=3))
    assert (plan.sum_s, plan.ring_cost_s, plan.circuit_s) == (4.25, 1.5, 5.0)
    assert plan.predicted.tokens_per_s_one_user == 1 / 5.0
    assert plan.predicted.tokens_per_s_all_users == min(3 / 5.0, 1 / 2.125)
    assert plan.predicted.network_share == 0.75 / 5.0
    assert plan.predicted.tokens_per_s_one_user_range == (1 / 5.0, 1 / 4.5)


def test_kv_reading_at_the_expected_context_is_counted() -> None:
    """Half of 100 tokens where the whole context is kept, the window of 10 where it is not."""
    model = {"kv_bytes_per_token_per_block": 2, "kv_tokens_per_block": [100, 10] * 4}
    parsed, plan = planned(fleet([member("a", memory_bytes=10**6)], model, context_tokens=100))
    assert kv_read_bytes(parsed, 0, 8) == 4 * 2 * 50 + 4 * 2 * 10
    assert plan.bottleneck_s == plan.circuit_s == 0.125 + (8 * 16 + 32) / 8
    assert plan.predicted.circuit_s == plan.circuit_s + 480 / 8
    told, _ = planned(
        fleet([member("a", memory_bytes=10**6)], model | {"expected_tokens": 5}, context_tokens=100)
    )
    assert kv_read_bytes(told, 0, 8) == 8 * 2 * 5


def test_time_to_first_token_of_a_prompt_in_chunks() -> None:
    """Chunks of 4 rows: 4 * 64 bytes at 16 FLOP/s is 16 s, more than 64 bytes at 8 bytes/s, 8 s."""
    members = [member("a", flops_per_s=16.0, block_overhead_s=0.25), member("b", flops_per_s=1024.0)]
    parsed, plan = planned(fleet(members, {"head_bytes": 0}, context_tokens=64))
    stages = {stage.member: stage.end - stage.start for stage in plan.stages}
    assert stages == {"a": 4, "b": 4}
    slow, quick = 0.125 + 4 * 0.25 + 16, 0.125 + 8
    assert plan.ring_cost_s == 0
    for prompt, chunks in ((4, 1), (9, 3)):
        ttft = predict_session(
            parsed, plan.tier, plan.stages, [0.0, 0.0], prompt_tokens=prompt, chunk_tokens=4
        ).ttft_s
        assert ttft == slow + quick + (chunks - 1) * slow


def test_no_time_to_first_token_where_arithmetic_was_not_measured() -> None:
    _, plan = planned(fleet([member("a", flops_per_s=None)]))
    assert plan.predicted.ttft_s is None
    assert plan.predicted.tokens_per_s_one_user is not None


def test_without_every_rtt_no_circuit_and_no_rate_but_a_bottleneck() -> None:
    _, plan = planned(fleet([member("a"), member("b", rendezvous_rtt_s=None)]))
    assert plan.bottleneck_s is not None
    assert (plan.circuit_s, plan.ring_cost_s, plan.ring_separation_s) == (None, None, None)
    assert {edge.cost_s for edge in plan.edges} == {None}
    assert plan.predicted == Prediction()


def test_measured_edges_restate_the_figures() -> None:
    parsed, plan = planned(fleet([member("a", udp=False), member("b")]))
    measured = {("a", "b"): 0.125, ("b", "a"): 0.375}
    restated = restate(parsed, plan, measured)
    assert plan.predicted.circuit_s is not None
    assert restated.circuit_s == plan.predicted.circuit_s - 0.5 + 0.25
    assert restated.tokens_per_s_one_user_range is None
    half = restate(parsed, plan, {("a", "b"): 0.125})
    assert half.circuit_s == plan.predicted.circuit_s - 0.5 + 0.3125
    assert half.tokens_per_s_one_user_range == plan.predicted.tokens_per_s_one_user_range
    assert restate(*planned(fleet([member("a", overhead_s=None)])), {}) == Prediction()
