"""Facts from JSON: the defaults, the round trip, and a complaint that names the field for everything else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_planner.facts import (
    Behaviour,
    FleetError,
    fleet_to_json,
    member_to_json,
    model_to_json,
    parse_fleet,
    parse_member,
    parse_model,
)
from kafila_planner.planner import plan_ring
from kafila_planner.ring import Refusal, RingPlan
from tests.planner.fleets import fleet, member, proof, small_fleets


def test_defaults() -> None:
    parsed = parse_fleet(fleet([{"name": "a"}]))
    assert parsed.model.block_read_bytes == parsed.model.block_bytes == (16,) * 8
    assert parsed.model.head_read_bytes == parsed.model.head_bytes == 32
    assert parsed.model.kv_tokens_per_block is None
    one = parsed.members[0]
    assert (one.bandwidth_bytes_per_s, one.overhead_s, one.memory_bytes, one.mapping) == (None,) * 4
    assert (one.block_overhead_s, one.udp, one.room_bytes) == (0.0, True, 0)


def test_null_and_absent_are_unknown_and_numbers_may_be_written_as_floats() -> None:
    one = parse_member(member("a", bandwidth_bytes_per_s=None, memory_bytes=2.4e10, mapping="unknown"))
    assert (one.bandwidth_bytes_per_s, one.memory_bytes, one.mapping) == (None, 24_000_000_000, None)
    assert one.filtering is Behaviour.ENDPOINT_INDEPENDENT
    assert parse_model(fleet([member("a")])["model"] | {"block_bytes": 16.0}).block_bytes == (16,) * 8


@proof(100)
@given(small_fleets())
def test_round_trip(document: dict[str, Any]) -> None:
    parsed = parse_fleet(document)
    assert parse_fleet(json.loads(json.dumps(fleet_to_json(parsed)))) == parsed
    assert parse_model(model_to_json(parsed.model)) == parsed.model
    assert [parse_member(member_to_json(one)) for one in parsed.members] == list(parsed.members)


NOT_NUMBERS = [float("nan"), float("inf"), -1, "8", True, [], {}, 10**400]


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the document with the field at `members[1].name` and the like replaced."""
    whole = copy.deepcopy(document)
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    at: Any = whole
    for step in parents:
        at = at[int(step) if step.isdigit() else step]
    at[int(last) if last.isdigit() else last] = value
    return whole


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize(
    "path",
    [
        "context_tokens",
        "concurrency",
        "model.blocks",
        "model.block_bytes",
        "model.block_read_bytes",
        "model.head_bytes",
        "model.head_read_bytes",
        "model.kv_bytes_per_token_per_block",
        "model.kv_tokens_per_block",
        "model.expected_tokens",
        "members[1].bandwidth_bytes_per_s",
        "members[1].overhead_s",
        "members[1].block_overhead_s",
        "members[1].flops_per_s",
        "members[1].memory_bytes",
        "members[1].rendezvous_rtt_s",
    ],
)
def test_what_is_no_number_is_named(path: str, value: Any) -> None:
    with pytest.raises(FleetError) as error:
        parse_fleet(put(fleet([member("a"), member("b")]), path, value))
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", None),
        ("model", []),
        ("model.blocks", 0),
        ("model.blocks", 1.5),
        ("model.blocks", 10**9),
        ("model.block_bytes", 0),
        ("model.block_bytes", [16] * 7),
        ("model.block_bytes", 0.5),
        ("model.name", 7),
        ("model.full_attention", [True]),
        ("model.full_attention", [False] * 8),
        ("model.full_attention", [1] * 8),
        ("context_tokens", 0),
        ("concurrency", 0),
        ("concurrency", 10**12),
        ("anchor", "stranger"),
        ("anchor", None),
        ("anchor", 3),
        ("members", []),
        ("members", None),
        ("members", {"a": 1}),
        ("members", [member(f"m{n}") for n in range(257)]),
        ("members[1]", "b"),
        ("members[1].name", "a"),
        ("members[1].name", ""),
        ("members[1].name", "two words"),
        ("members[1].name", "x" * 33),
        ("members[1].name", None),
        ("members[1].bandwidth_bytes_per_s", 0),
        ("members[1].bandwidth_bytes_per_s", 1e30),
        ("members[1].flops_per_s", 0),
        ("members[1].memory_bytes", 10**16),
        ("members[1].rendezvous_rtt_s", 1e9),
        ("members[1].mapping", "symmetric"),
        ("members[1].filtering", 1),
        ("members[1].site", 1),
        ("members[1].nat", ""),
        ("members[1].hairpin", "yes"),
        ("members[1].hairpin_open", 1),
        ("members[1].relay_only", "no"),
        ("members[1].udp", 1),
    ],
)
def test_what_makes_no_sense_is_named(path: str, value: Any) -> None:
    with pytest.raises(FleetError) as error:
        parse_fleet(put(fleet([member("a"), member("b")]), path, value))
    parts = (path + ".name", path) if path == "members[1].name" else (path,)
    assert str(error.value).startswith(tuple(f"{part}: " for part in parts))


@pytest.mark.parametrize("text", ["\ud800", "\x1b[31mred", "two\nlines"])
@pytest.mark.parametrize("path", ["model.name", "members[0].site", "members[0].name", "anchor"])
def test_text_that_a_terminal_cannot_show_is_named(path: str, text: str) -> None:
    document = fleet([member("a")])
    {"model.name": document["model"], "anchor": document}.get(path, document["members"][0])[
        path.rpartition(".")[2]
    ] = text
    with pytest.raises(FleetError) as caught:
        parse_fleet(document)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


def test_a_strange_name_of_a_field_is_not_shown() -> None:
    document = fleet([member("a")])
    document["context_token\ud800"] = document.pop("context_tokens")
    with pytest.raises(FleetError, match=r"^context_tokens: is required$"):
        parse_fleet(document)


def test_an_entry_of_a_list_is_named() -> None:
    with pytest.raises(FleetError, match=r"^model\.block_bytes\[3\]: must be between 1 and 1e\+15, not -2$"):
        parse_fleet(fleet([member("a")], {"block_bytes": [16, 16, 16, -2, 16, 16, 16, 16]}))


def test_a_misspelt_field_is_a_mistake_and_a_strange_one_is_someone_elses() -> None:
    assert parse_fleet(fleet([member("a", note="mine")], comment="a test")).members[0].name == "a"
    misspelt = {"name": "a", "bandwith_bytes_per_s": 8.0}
    with pytest.raises(
        FleetError, match=r"^members\[0\]\.bandwith_bytes_per_s: no such field; did you mean bandw"
    ):
        parse_fleet(fleet([misspelt]))


def test_who_sends_thousands_of_strange_fields_is_not_helped_to_spell_them(monkeypatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda key, *_, **__: looked_at.append(key))
    strange = {f"bandwith_{n}": 1 for n in range(5000)}
    assert parse_fleet(fleet([member("a", **strange)])).members[0].name == "a"
    assert len(looked_at) < 50


@pytest.mark.parametrize("document", [None, 3, "fleet", [], True])
def test_what_is_no_object_is_no_fleet(document: Any) -> None:
    with pytest.raises(FleetError, match=r"^document: must be an object"):
        parse_fleet(document)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([1e-6, 1e9, 1e15, 1e21, 10**15, 2**63, -(2**63), 1e300, float("nan"), 0.1]),
    st.sampled_from(["", "a", "m0", "endpoint-independent"]),
    st.lists(st.integers(0, 9), max_size=8),
)
PATHS = st.sampled_from(
    [
        *("context_tokens", "concurrency", "anchor", "model.blocks", "model.head_bytes"),
        *(
            f"model.{key}"
            for key in ("block_bytes", "block_read_bytes", "head_read_bytes", "expected_tokens")
        ),
        *("model.kv_bytes_per_token_per_block", "model.kv_tokens_per_block"),
        *(f"members[{n}].{key}" for n in range(3) for key in member("a")),
        *(f"members[{n}].{key}" for n in range(3) for key in ("block_overhead_s", "site", "nat", "udp")),
    ]
)


def answer_to(document: dict[str, Any]) -> RingPlan | Refusal | str:
    try:
        return plan_ring(parse_fleet(document))
    except FleetError as complaint:
        return str(complaint)


@proof(500)
@given(st.lists(st.tuples(PATHS, JUNK), min_size=1, max_size=6))
def test_every_input_has_a_plan_a_refusal_or_a_field_to_blame(changes: list[tuple[str, Any]]) -> None:
    document = fleet([member("m0"), member("m1"), member("m2")])
    for path, value in changes:
        document = put(document, path, value)
    plan = answer_to(document)
    if isinstance(plan, str):
        assert plan.startswith(tuple(document)), "a complaint begins with the path of a field"
        return
    if isinstance(plan, RingPlan):
        assert all(stage.needs_bytes <= stage.room_bytes for stage in plan.stages)
    else:
        assert plan.refused
