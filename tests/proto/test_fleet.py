import json

import pytest

from kafila_planner.facts import FleetError, parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.fleet import (
    canonical_json,
    check_charter_facts,
    check_member_json,
    compose_fleet,
    first_difference,
    parse_json,
    plan_fleet,
)

MODEL = {"name": "m", "blocks": 6, "block_bytes": 10, "head_bytes": 5, "kv_bytes_per_token_per_block": 1}


def charter_of(*names: str, **changes) -> pb.Charter:
    fields = {
        "context_tokens": 16,
        "concurrency": 2,
        "model": pb.ModelReference(facts_json=json.dumps(MODEL)),
        "roster": [pb.RosterEntry(name=name) for name in names],
    }
    return pb.Charter(**fields | changes)


def report_of(name: str, **facts) -> pb.Report:
    measured = {"name": name, "bandwidth_bytes_per_s": 1e9, "overhead_s": 1e-4, "memory_bytes": 10**6}
    return pb.Report(member_json=json.dumps(measured | facts))


def test_a_fleet_is_what_a_planning_file_says():
    reports = [report_of("desk"), report_of("lap", rendezvous_rtt_s=None)]
    fleet = compose_fleet(charter_of("desk", "lap"), reports)
    assert fleet["model"] == MODEL
    assert (fleet["context_tokens"], fleet["concurrency"], fleet["anchor"]) == (16, 2, "desk")
    assert fleet["members"] == [json.loads(report.member_json) for report in reports]
    assert parse_fleet(fleet).anchor == "desk"


@pytest.mark.parametrize("objective", ["", "throughput", "latency", "mixed:0.5"])
def test_the_plan_is_the_planners_for_that_fleet(objective):
    charter = charter_of("desk", "lap", objective=objective)
    reports = [report_of("desk", rendezvous_rtt_s=0.01), report_of("lap", rendezvous_rtt_s=0.02)]
    fleet_json, plan_json = plan_fleet(charter, reports)
    plan = plan_ring(parse_fleet(json.loads(fleet_json)), objective=objective or "throughput")
    assert json.loads(plan_json) == json.loads(json.dumps(plan_to_json(plan)))
    assert plan_fleet(charter, reports) == (fleet_json, plan_json)


@pytest.mark.parametrize("division", ["uniform", "memory"])
def test_blocks_are_divided_by_the_rule_that_the_charter_names(division):
    reports = [report_of("desk", bandwidth_bytes_per_s=1e8), report_of("lap", memory_bytes=500)]
    charter = charter_of("desk", "lap", division=division)
    plan = json.loads(plan_fleet(charter, reports)[1])
    assert plan["division"] == division
    assert plan["stages"] != json.loads(plan_fleet(charter_of("desk", "lap"), reports)[1])["stages"]


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([report_of("desk")], "1 reports for 2 members"),
        ([report_of("lap"), report_of("desk")], "report of desk: it is about 'lap'"),
        ([report_of("desk"), report_of("lap", memory_bytes="much")], r"report of lap\.memory_bytes"),
        ([report_of("desk"), pb.Report(member_json="[]")], "report of lap: not a JSON object"),
        ([report_of("desk"), pb.Report(member_json="{")], "report of lap: not JSON"),
    ],
)
def test_what_makes_no_fleet_is_named(reports, why):
    with pytest.raises(FleetError, match=why):
        compose_fleet(charter_of("desk", "lap"), reports)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"objective": "speed"}, "objective: .*speed"),
        ({"division": "fair"}, "division: .*fair"),
        ({"model": pb.ModelReference(facts_json="{}")}, r"model\."),
    ],
)
def test_charters_of_which_no_fleet_can_come(changes, why):
    with pytest.raises(FleetError, match=why):
        check_charter_facts(charter_of("desk", **changes))
    check_charter_facts(charter_of("desk"))
    check_member_json(report_of("desk").member_json, "desk")


@pytest.mark.parametrize(
    ("theirs", "ours", "difference"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, None),
        ({"a": 1.0}, {"a": 1.001}, "a is 1.0 there, 1.001 here"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b[1] is 2 there, 3 here"),
        ({"a": [1]}, {"a": [1, 2]}, "a is [1] there, [1, 2] here"),
        ({"a": 1}, {}, "a is 1 there, None here"),
        ({"a": None}, {}, None),
        ({"a": True}, {"a": 1}, "a is True there, 1 here"),
        ([1], {"a": 1}, "it is [1] there, {'a': 1} here"),
    ],
)
def test_the_first_difference_is_named(theirs, ours, difference):
    assert first_difference(theirs, ours) == difference


def test_one_text_for_one_value():
    assert canonical_json({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", "\x00"])
def test_json_that_cannot_be_read_is_one_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)
    with pytest.raises(FleetError, match="not JSON"):
        check_member_json(text, "desk")
