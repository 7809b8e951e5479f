"""What the Containerfile names is there. No image is built here: that takes a base image from elsewhere."""

from __future__ import annotations

import json
import re
import tomllib

import typer
from packaging.specifiers import SpecifierSet

from kafila_agent.main import app as agent
from kafila_rendezvous.main import app as rendezvous
from tests.deploy.conftest import ROOT

FILE = (ROOT / "deploy/Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_it_copies_is_here_and_the_tree_s_own_environment_stays_behind():
    copied = re.findall(r"^COPY (?!--from)(\S+) ", FILE, re.MULTILINE)
    assert copied == [".", "deploy/rendezvous-requirements.txt", "deploy/agent-requirements.txt"]
    assert all((ROOT / source).exists() for source in copied)
    assert {".git", ".venv", "build", "dist"} <= set((ROOT / ".dockerignore").read_text().split())


def test_its_python_is_one_that_the_project_takes():
    versions = set(re.findall(r"^FROM python:([\d.]+)-", FILE, re.MULTILINE))
    assert len(versions) == 1
    assert versions.pop() in SpecifierSet(PROJECT["requires-python"])


def test_its_programs_take_their_arguments_and_its_ports_are_theirs():
    entries = [json.loads(entry) for entry in re.findall(r"^ENTRYPOINT (.+)$", FILE, re.MULTILINE)]
    assert [entry[0] for entry in entries] == ["kafila-rendezvous", "kafila-agent"]
    assert {entry[0] for entry in entries} <= PROJECT["scripts"].keys()
    typer.main.get_command(rendezvous).make_context("rendezvous", entries[0][1:])
    typer.main.get_command(agent).make_context("agent", [*entries[1][1:], "--rendezvous", "h:7470"])
    (ports,) = re.findall(r"^EXPOSE (.+)$", FILE, re.MULTILINE)
    defaults = {p.name: p.default for p in typer.main.get_command(rendezvous).params}
    port = defaults["port"]
    assert ports.split() == [f"{port}/tcp", f"{port}/udp", f"{port + 1}/udp"]
