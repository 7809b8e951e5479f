"""Every command and option says what it is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer

import kafila_agent.main
import kafila_rendezvous.main
from kafila_agent.ctl.main import build_app

APPS = {
    "kafila-ctl": build_app([]),
    "kafila-agent": kafila_agent.main.app,
    "kafila-rendezvous": kafila_rendezvous.main.app,
}


def commands(name: str, command: object) -> Iterator[tuple[str, object]]:
    yield name, command
    for child, below in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {child}", below)


ALL = [pair for name, app in APPS.items() for pair in commands(name, typer.main.get_command(app))]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_command_says_what_it_does_and_each_option_what_it_is(name, command):
    assert command.help
    assert command.help.split("\n\n")[0].rstrip().endswith((".", "…")), "a sentence"
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    assert [each.name for each in shown if not getattr(each, "help", "")] == []


def test_all_are_looked_at():
    assert len(ALL) > 12
