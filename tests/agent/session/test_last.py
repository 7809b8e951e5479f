"""What an agent says after a restart of the session it was in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import typer

from kafila_agent.ctl.main import build_app
from kafila_agent.session.last import FILE, keep, recall
from kafila_agent.session.lifecycle import State
from kafila_proto.rendezvous_pb2 import Charter

CHARTER = Charter(expected_members=3, context_tokens=1024, concurrency=2, objective="latency")
CHARTER.model.name, CHARTER.model.dtype = "tiny", "bfloat16/int8"
for name in ("desk", "laptop", "tower"):
    CHARTER.roster.add(name=name)


def parse_command(command: str) -> None:
    """As `kafila-ctl` takes it: raises UsageError if it would not."""
    create = typer.main.get_command(build_app(["session"])).commands["session"].commands["create"]
    create.make_context("create", command.split()[3:])


def at(state: State, epoch: int) -> SimpleNamespace:
    return SimpleNamespace(charter=CHARTER, state=state, epoch=epoch)


def test_the_host_gets_the_very_command_and_the_others_whom_to_ask(tmp_path):
    keep(tmp_path, at(State.SERVING, 1), "desk")
    assert recall(tmp_path) == (
        "its session of tiny ended when this agent stopped: create it anew with `kafila-ctl session create"
        " --model tiny --members 3 --context 1024 --concurrency 2 --dtype bfloat16 --quant int8 --objective latency`"
    )
    parse_command(recall(tmp_path).split("`")[1])
    keep(tmp_path, at(State.SERVING, 1), "tower")
    assert recall(tmp_path).endswith(
        "ended when this agent stopped: desk creates it anew, then join with its new code"
    )


def test_one_that_was_never_planned_or_is_over_is_not_told(tmp_path):
    keep(tmp_path, at(State.WAITING, 0), "desk")
    keep(tmp_path, None, "desk")
    assert recall(tmp_path) == ""
    keep(tmp_path, at(State.LOADING, 1), "desk")
    assert recall(tmp_path)
    keep(tmp_path, at(State.LEFT, 1), "desk")
    assert recall(tmp_path) == ""
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"model": 1}'])
def test_a_damaged_note_says_nothing(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert recall(tmp_path) == ""
