"""The list of metrics is whole, and the metrics keep Prometheus's conventions."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client import generate_latest

from tests.tidy.metrics_table import PAGE, agent_registry, families, page, rendezvous_registry

REGISTRIES = {"agent": agent_registry, "rendezvous": rendezvous_registry}
LABELS = {
    "version",
    "member",
    "peer",
    "path",
    "predicted",
    "proposer",
    "kind",
    "state",
    "reason",
    "direction",
    "code",
    "cause",
}


def test_the_page_is_what_is_served():
    assert PAGE.read_text() == page(), "make generated"


@pytest.mark.parametrize("program", REGISTRIES)
def test_names_units_and_labels(program):
    for family in families(REGISTRIES[program]()):
        assert re.match(r"(kafila|process)_[a-z0-9_]+$", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.text.endswith("."), family.name
        assert not re.search(r"_(ms|millis\w*|kb|mb|percent|s)(_|$)", family.name)
        assert set(family.labels) <= LABELS, "a label must be bounded: members' names or a few fixed words"


@pytest.mark.parametrize("program", REGISTRIES)
@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (make tools)")
def test_promtool_finds_nothing_to_say(program):
    text = generate_latest(REGISTRIES[program]())
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
