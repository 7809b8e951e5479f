"""The JSON contract: plans and refusals read back to what they were, and nonsense is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import PlanError, RingPlan, plan_from_json, plan_to_json
from tests.planner.fleets import fleet, member, proof, small_fleets


@proof(150)
@given(small_fleets(), st.sampled_from(["throughput", "latency", "mixed:0.5"]))
def test_round_trip(document: dict[str, Any], objective: str) -> None:
    plan = plan_ring(parse_fleet(document), objective=objective)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan), allow_nan=False))) == plan


def test_the_keys_of_the_contract() -> None:
    plan = plan_ring(parse_fleet(fleet([member("a"), member("b")])))
    document = plan_to_json(plan)
    assert isinstance(plan, RingPlan)
    assert document.keys() >= {
        *(
            "tier",
            "objective",
            "proven",
            "ring",
            "head",
            "bottleneck_s",
            "sum_s",
            "circuit_s",
            "stages",
            "edges",
        ),
        *("ring_cost_s", "ring_separation_s", "relayed_edges", "unseated", "predicted"),
    }
    assert document["ring"] == ["a", "b"]
    assert document["stages"][0].keys() == {"member", "blocks", "predicted_s", "needs_bytes", "room_bytes"}
    assert document["edges"][1] == {"from": "b", "to": "a", "path": "direct", "cost_s": 0.0}
    assert document["predicted"].keys() >= {
        *("tokens_per_s_one_user", "tokens_per_s_all_users", "network_share", "ttft_s")
    }


def test_the_keys_of_a_refusal() -> None:
    document = plan_to_json(plan_ring(parse_fleet(fleet([member("a", memory_bytes=100)]))))
    assert document["refused"] == [{"member": "a", "needs_bytes": 192, "room_bytes": 100}]
    assert document["remedies"] == [{"change": "memory_bytes", "to": 192, "member": "a", "more_bytes": 92}]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tier": "best"}, "tier: must be one of"),
        ({"ring": ["b", "a"]}, "ring: must name"),
        ({"head": "b"}, "ring: must name"),
        ({"stages": []}, "stages: block ranges"),
        (
            {"stages": [{"member": "a", "blocks": [1, 2], "needs_bytes": 1, "room_bytes": 1}]},
            "stages: block ranges",
        ),
        ({"stages": [{"member": "a", "blocks": [2, 2]}]}, r"stages\[0\].blocks: must be"),
        ({"stages": [3]}, r"stages\[0\]: must be an object"),
        ({"bottleneck_s": float("nan")}, "bottleneck_s: must be between"),
        ({"edges": [{"from": "a", "to": "b", "path": "teleported"}]}, r"edges\[0\].path: must be one of"),
        ({"predicted": None}, "predicted: is required"),
    ],
)
def test_nonsense_is_named(change: dict[str, Any], complaint: str) -> None:
    document = plan_to_json(plan_ring(parse_fleet(fleet([member("a"), member("b")]))))
    with pytest.raises(PlanError, match=complaint):
        plan_from_json(document | change)


@pytest.mark.parametrize("document", [None, 7, [], "plan"])
def test_what_is_no_object_is_no_plan(document: Any) -> None:
    with pytest.raises(PlanError, match="must be an object"):
        plan_from_json(document)
