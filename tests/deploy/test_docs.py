"""README and docs say what is true: commands are what the programs take, files are there, error texts are the source's.

Run, and held against the output beside them: commands that need this machine alone (``kafila-ctl plan``, ``--help``).
Parsed by the programs' own parsers, no more: those that need other machines, an agent, root or a network.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer
from typer._click.exceptions import MissingParameter

import kafila_agent.main
import kafila_rendezvous.main
from kafila_agent.ctl.main import build_app
from tests.deploy.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What belongs to the system: that these take what they are told is not for these tests.
OF_THE_SYSTEM = {
    *(
        "apt",
        "cp",
        "curl",
        "export",
        "docker",
        "groupdel",
        "install",
        "journalctl",
        "pip",
        "pipx",
        "podman",
        "python",
        "python3",
    ),
    *("rm", "sed", "systemctl", "systemd-analyze", "systemd-sysusers", "ufw", "usermod", "uv"),
}
PARSED = ("kafila-ctl", "kafila-agent", "kafila-rendezvous")


def blocks(page: Path) -> list[str]:
    """Code blocks: fenced ones of a shell, and indented ones."""
    text = page.read_text()
    fenced = re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return fenced + [
        re.sub(r"^ {4}", "", block, flags=re.M) for block in re.findall(r"(?:^ {4}.*\n)+", rest, re.M)
    ]


def commands(page: Path) -> list[str]:
    """Every command that somebody is told to type, without its prompt and its comment."""
    found = []
    for block in blocks(page):
        prompted = [line[2:] for line in block.splitlines() if line.startswith(("$ ", "# "))]
        plain = [
            line for line in block.splitlines() if line.split(" ")[0] in {*PARSED, *OF_THE_SYSTEM, "make"}
        ]
        found += [re.sub(r"\s+# .*", "", line).strip() for line in prompted or plain]
    return found


def mentioned(page: Path) -> list[str]:
    """Commands within a sentence: what they need may be left out there."""
    return re.findall(r"`((?:kafila-\w+|make) [^`\n]+)`", page.read_text())


def stages(command: str) -> list[list[str]]:
    """The simple commands of a pipeline or list, as words."""
    command = re.sub(r"\[(--[^\]]*)\]", r"\1", command)  # [--optional 1]
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in ("|", "&&", ";", "||"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


@cache
def parser(program: str):
    apps = {
        "kafila-ctl": lambda: build_app([]),
        "kafila-agent": lambda: kafila_agent.main.app,
        "kafila-rendezvous": lambda: kafila_rendezvous.main.app,
    }
    return typer.main.get_command(apps[program]())


def parse(program: str, arguments: list[str]) -> None:
    """Raise UsageError if the program would; nothing is run."""
    command, context = parser(program), None
    while True:
        if "--help" in arguments or "--install-completion" in arguments:
            return
        context = command.make_context(program, list(arguments), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        program, command, arguments = command.resolve_command(context, rest)


@pytest.mark.parametrize(
    ("page", "command", "is_mentioned"),
    [(p.name, c, False) for p in PAGES for c in commands(p)]
    + [(p.name, c, True) for p in PAGES for c in mentioned(p)],
)
def test_every_command_is_one(page, command, is_mentioned, monkeypatch):
    monkeypatch.delenv("KAFILA_RENDEZVOUS", raising=False)
    for words in stages(command):
        program = words[0]
        if program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert {word for word in words[1:] if "=" not in word} <= set(targets), command
        elif program in PARSED:
            with contextlib.suppress(MissingParameter if is_mentioned else ()):
                parse(program, words[1:])
        else:
            assert program.rpartition("/")[2] in OF_THE_SYSTEM | {"pip"}, f"{page}: {command}"


def transcripts() -> list[tuple[str, str, str]]:
    """(page, command, what it prints) of commands that need nothing but this machine."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            for command, output in re.findall(r"^\$ (.*)\n((?:(?![$#] ).*\n?)*)", block, re.M):
                if re.search(r"kafila-ctl plan|kafila-\w+ .*--help", command):
                    found.append((page.name, command, output))
    return found


@pytest.mark.parametrize(("page", "command", "output"), transcripts())
def test_what_can_run_here_prints_what_the_page_shows(page, command, output, tmp_path):
    (tmp_path / "kafila-ctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m kafila_agent.ctl.main "$@"\n')
    (tmp_path / "kafila-ctl").chmod(0o755)
    said = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "COLUMNS": "110"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout, said.stderr
    if output:
        assert [line.rstrip() for line in said.stdout.splitlines()] == output.rstrip().splitlines()


def test_something_is_run():
    assert len(transcripts()) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:deploy|docs|tests|kafila_\w+|proto)/[\w./-]*\w)`", text):
        assert (ROOT / name).exists() or (ROOT / "tests" / name).exists(), name  # SECURITY.md cites tests
    for name in re.findall(r"/opt/kafila/share/kafila/([\w./-]*\w)", text):
        assert (ROOT / "deploy" / name).exists() or (ROOT / name).exists(), name


def sources() -> str:
    """The text of every program, with string literals that go over lines made whole."""
    packages = ("kafila_agent", "kafila_planner", "kafila_rendezvous", "proto/kafila_proto")
    text = "\n".join(path.read_text() for package in packages for path in (ROOT / package).rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_error_texts_are_those_of_the_programs():
    known = sources()
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", page)
    assert len(quoted) > 20
    missing = [text for text in quoted if text not in known]
    assert not missing


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    assert [
        p.name for p in PAGES if p.parent.name == "docs" and p.name != "README.md" and p.name not in index
    ] == []
