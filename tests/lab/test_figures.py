"""Figures, tables and bars, from records made up so that the answers are known."""

from __future__ import annotations

import json

import pytest

from tests.lab.bars import bars
from tests.lab.client import Answer
from tests.lab.figures import Served, Spread, served
from tests.lab.fleets import FLEETS, SMALL_ANCHOR, SMOKE, TWO_HOUSES
from tests.lab.measure import edge_setups_s
from tests.lab.planned import head_pinned_fits, orders_not_optimal, users_admitted
from tests.lab.tables import divisions_table, table
from tests.lab.trials import trials_of

EVERY = [*FLEETS.values(), SMALL_ANCHOR, TWO_HOUSES]


def record(division: str, stages_ms: list[float], one: float, many: float, **changes) -> dict:
    """A session of two members, in seconds of a laboratory three times slower."""
    scale = SMOKE.time_scale
    stages = [
        {"member": name, "blocks": 3, "predicted_s": ms / 1e3 * scale, "measured_s": ms / 1e3 * scale}
        for name, ms in zip("ab", stages_ms, strict=True)
    ]
    edges = [
        {"from": a, "to": b, "predicted": path, "actual": path, "rtt_s": 0.01 * scale, "sent_bytes": size}
        for a, b, path, size in (("a", "b", "direct", 100), ("b", "a", "relayed", 300))
    ]
    users = [{"tokens_per_s": many / 2 / scale}] * 2
    return {
        "trial": {
            "purpose": "division",
            "model": "Qwen3-8B",
            "division": division,
            "objective": "throughput",
        },
        "formed": True,
        "plan": {"tier": "cost-model", "ring": ["a", "b"]},
        "stages": stages,
        "edges": edges,
        "network_share": 0.2,
        "one_user": [{"tokens_per_s": one / scale}],
        "many_users": {"users": users, "stages": stages},
    } | changes


def test_figures_are_of_the_machines_stood_for():
    session = Served(record("planner", [10.0, 8.0], one=25.0, many=50.0), SMOKE.time_scale)
    assert session.bottleneck_s == pytest.approx(0.010)
    assert session.imbalance == pytest.approx(1.25)
    assert session.utilisation == pytest.approx(0.9)
    assert session.one_user == pytest.approx(25.0)
    assert session.gain == pytest.approx(2.0)
    assert session.possible_gain == pytest.approx(2.0)  # two users; the circuit would have room for four
    assert session.own_rate_change == pytest.approx(0.0)
    assert session.relayed_share == pytest.approx(0.75)
    assert session.predicted_one_user == pytest.approx(1 / (0.018 + 0.010))


def test_a_single_user_is_measured_over_all_windows():
    """Nine tokens in nine seconds and nine in eighteen."""
    windows = [{"tokens_per_s": 1.0}, {"tokens_per_s": 0.5}]
    seen = record("planner", [10.0, 8.0], one=1.0, many=1.0, one_user=windows)
    assert Served(seen, 1.0).one_user == pytest.approx(18 / 27)


def test_bars_are_judged_by_medians_and_say_what_stands_between():
    records = [record("planner", [10.0, 8.0], 25.0, 50.0), record("uniform", [30.0, 3.0], 20.0, 25.0)]
    found = {bar.what: bar for bar in bars([(SMOKE, records)], [], [])}
    name = f"{SMOKE.title}, Qwen3-8B"
    assert found[f"imbalance, {name}"].met
    assert found[f"bottleneck shorter than uniform, {name}"].ours == "3.0 ×"
    assert not found[f"bottleneck shorter than uniform, {name}"].met
    assert "3.0 ×" in found[f"bottleneck shorter than uniform, {name}"].limit
    assert found[f"2 users of min(2, T/τ), {name}"].met
    (paths,) = [
        b
        for b in bars([], [{"actual": "direct", "predicted": "relayed", "took_s": 1, "rtt_s": 0.1}], [])
        if "wrongly" in b.what
    ]
    assert not paths.met


def test_a_division_that_formed_no_session_is_in_the_table_as_refused():
    records = [record("planner", [10.0, 8.0], 25.0, 50.0), record("uniform", [0, 0], 0, 0, formed=False)]
    lines = divisions_table(SMOKE, records).splitlines()
    assert "| planner | 1 | 10.0 | 1.25 | 1.25 | 90 |" in lines[2]
    assert "| uniform | refused |" in lines[3]
    assert [s.bottleneck_s for s in served(SMOKE, records, division="uniform")] == []


def test_a_spread_shows_its_range_only_where_there_is_one():
    assert Spread((3.0, 1.0, 2.0)).show(1) == "2.0 (1.0–3.0)"
    assert Spread((2.0, 2.001)).show(1) == "2.0"
    assert table(["a"], [(1,), ("x",)]) == "| a |\n| --- |\n| 1 |\n| x |"


def test_users_together_make_what_each_of_them_gets():
    """Also where their tokens come at different times: three tokens in three seconds, and three in six."""
    early, late = (
        Answer((1, 2, 3, 4), (0.0, 1.0, 2.0, 3.0), 0.0),
        Answer((1, 2, 3, 4), (1.0, 3.0, 5.0, 7.0), 1.0),
    )
    users = [{"tokens_per_s": answer.tokens_per_s} for answer in (early, late)]
    seen = record("planner", [10, 20], one=1.0, many=1.0)
    seen["many_users"]["users"] = users
    (session,) = served(SMOKE, [seen], division="planner")
    assert session.many_users == pytest.approx(1.5 * SMOKE.time_scale)


def test_an_edge_is_timed_from_the_plan_of_the_last_session():
    said = [
        ("member", {"state": "connecting"}, "00"),
        ("edge open", {"peer": "b"}, "09"),
        ("member", {"state": "connecting"}, "20"),
        ("edge open", {"peer": "b"}, "22"),
    ]
    lines = [
        json.dumps({"event": event, "timestamp": f"2026-01-01T00:00:{at}Z"} | fields)
        for event, fields, at in said
    ]
    assert edge_setups_s("\n".join(["no JSON", *lines])) == {"b": 2.0}


def facts(**rooms: int) -> dict:
    model = {"name": "m", "blocks": 4, "block_bytes": 10, "head_bytes": 15, "kv_bytes_per_token_per_block": 1}
    members = [
        {
            "name": name,
            "memory_bytes": room,
            "bandwidth_bytes_per_s": 1e3,
            "overhead_s": 0.0,
            "rendezvous_rtt_s": 0.01,
        }
        for name, room in rooms.items()
    ]
    return {
        "model": model,
        "context_tokens": 1,
        "concurrency": 1,
        "anchor": next(iter(rooms)),
        "members": members,
    }


def test_users_are_admitted_up_to_the_last_that_fits():
    # The head and two blocks leave 100 - 15 = 85 bytes: 42 a block, 10 of them weights.
    assert users_admitted(facts(a=100, b=100), "uniform") == 32
    assert users_admitted(facts(a=20, b=20), "uniform") == 0


def test_a_head_is_pinned_only_where_it_fits():
    assert head_pinned_fits(facts(a=100, b=100))
    assert not head_pinned_fits(facts(a=20, b=100))


def test_a_ring_dearer_than_the_cheapest_is_counted():
    fleet = facts(a=100, b=100, c=100, d=100)
    for member, site in zip(fleet["members"], "xyxy", strict=True):
        member["site"] = site
    near = {"formed": True, "facts": fleet, "plan": {"ring": ["a", "c", "b", "d"]}}
    apart = {"formed": True, "facts": fleet, "plan": {"ring": ["a", "b", "c", "d"]}}
    assert orders_not_optimal([near]) == (1, 0)
    assert orders_not_optimal([near, apart]) == (2, 1)


@pytest.mark.parametrize("fleet", EVERY, ids=lambda fleet: fleet.name)
def test_every_trial_has_a_key_of_its_own(fleet):
    keys = [trial.key for trial in trials_of(fleet)]
    assert len(keys) == len(set(keys))
