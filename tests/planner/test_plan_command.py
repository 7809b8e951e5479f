"""`kafila-ctl plan`: exit statuses, standard input, lists of fleets, errors that name the field, speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kafila_agent.ctl.plan import plan
from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from tests.planner.fleets import fleet, member

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(plan)
GOOD = fleet([member("a"), member("b")])
TIGHT = fleet([member("a", memory_bytes=100)])
BAD = fleet([member("a"), member("b", bandwidth_bytes_per_s=-3)])


def run(document: Any, *options: str) -> Any:
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return CliRunner().invoke(APP, ["-", *options], input=text)


def test_a_plan_on_standard_output(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(GOOD))
    result = CliRunner().invoke(APP, [str(file), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == plan_to_json(plan_ring(parse_fleet(GOOD)))
    assert json.loads(run(GOOD, "--json").stdout) == json.loads(result.stdout)


def test_a_refusal_exits_3() -> None:
    result = run(TIGHT, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["refused"] == [{"member": "a", "needs_bytes": 192, "room_bytes": 100}]
    assert run(fleet([member("a", memory_bytes=0)]), "--json").exit_code == 3
    assert "a would need 192 bytes and has 100 bytes: 92 bytes too little." in run(TIGHT).stdout


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (BAD, "members[1].bandwidth_bytes_per_s: must be between"),
        (GOOD | {"anchor": "c"}, "anchor: 'c' is not a member"),
        ("{", "-: is not JSON"),
        (b"\xff\xfe\xfa", "-: is not JSON"),
        ("[" * 100_000, "-: is not JSON that can be read: it is nested too deeply"),
        ("7", "document: must be an object"),
        ('{"context_tokens": NaN}', "model: is required"),
    ],
)
def test_what_is_no_fleet_exits_2_and_is_named_on_standard_error(document: Any, named: str) -> None:
    result = run(document, "--json")
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [(("--division", "fair"), "division: must be"), (("--objective", "mixed:9"), "objective: must be")],
)
def test_words_that_mean_nothing_exit_2(options: tuple[str, str], named: str) -> None:
    result = run(GOOD, *options)
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_file_that_is_not_there_exits_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(APP, [str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "none.json: No such file" in result.stderr


def test_a_list_of_fleets_has_one_object_each() -> None:
    result = run([GOOD, TIGHT, BAD, 7], "--json")
    assert result.exit_code == 0
    plan_of, refusal, error, nothing = json.loads(result.stdout)
    assert plan_of["ring"] == ["a", "b"]
    assert refusal["refused"][0]["member"] == "a"
    assert error["error"].startswith("members[1].bandwidth_bytes_per_s: ")
    assert nothing["error"].startswith("document: ")
    assert json.loads(run([], "--json").stdout) == []
    assert "error: members[1]" in run([GOOD, BAD]).stdout


def test_options_reach_the_planner() -> None:
    assert json.loads(run(GOOD, "--json", "--division", "uniform").stdout)["division"] == "uniform"
    latency = json.loads(run(GOOD, "--json", "--objective", "latency").stdout)
    assert (latency["objective"], latency["gap"]) == ("latency", 0.0)
    refusal = run(GOOD, "--json", "--objective", "latency", "--division", "memory")
    assert refusal.exit_code == 3
    assert json.loads(refusal.stdout)["refused"] == []


def test_people_get_a_table_both_objectives_and_reasons() -> None:
    far = fleet([member("a"), member("b", rendezvous_rtt_s=9.0)])
    shown = run(far).stdout
    assert "a (head)" in shown
    assert "planned for latency:" in shown
    assert "a is the head" not in shown
    assert "a is the head" in run(far, "--explain").stdout


def test_explained_json_has_sentences_and_figures() -> None:
    document = json.loads(run(GOOD, "--json", "--explain").stdout)
    assert document["explanation"][0].startswith("a holds ")
    assert [one["member"] for one in document["without"]] == ["a", "b"]
    assert {one["objective"] for one in document["outlooks"]} == {"throughput", "latency"}
    assert document["front"]
    assert json.loads(run(TIGHT, "--json", "--explain").stdout)["explanation"][0].startswith("No plan: ")


def test_it_starts_and_answers_quickly() -> None:
    """8 members and 80 blocks, in processor time, the best of a few: the machine may be busy with other things."""
    members = [
        member(
            f"m{n}", bandwidth_bytes_per_s=5e10 + 7e9 * n, memory_bytes=16 * 10**9, rendezvous_rtt_s=n / 100
        )
        for n in range(8)
    ]
    sizes = {
        "blocks": 80,
        "block_bytes": 10**9,
        "head_bytes": 2 * 10**9,
        "kv_bytes_per_token_per_block": 4096,
    }
    document = json.dumps(fleet(members, sizes, context_tokens=4096))
    program = (
        "import typer; from kafila_agent.ctl.plan import plan; a = typer.Typer(); a.command()(plan); a()"
    )
    seconds = [float("inf")]
    while min(seconds) >= 0.5 and len(seconds) <= 16:
        before = getrusage(RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program, "-", "--json"],
            input=document,
            capture_output=True,
            text=True,
            check=True,
        )
        after = getrusage(RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert len(json.loads(done.stdout)["stages"]) == 8
    assert min(seconds) < 0.5, seconds


def test_the_command_imports_nothing_heavy() -> None:
    program = "import sys, kafila_agent.ctl.plan; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "transformers", "grpc", "aioquic", "asyncio", "numpy", "pydantic"}
