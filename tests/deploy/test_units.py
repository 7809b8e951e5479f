"""The systemd units: what systemd's own tools say of them, and that an installed one leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.queries import DEPLOY

UNITS = DEPLOY / "systemd"
# The score of `systemd-analyze security`, 0 ... 10; it may only fall. What is left is the network, mostly.
EXPOSURE = {"kafila-rendezvous.service": 1.1, "kafila-agent.service": 1.2}
pytestmark = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd is not installed (make tools)"
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def root(tmp_path) -> Path:
    """A machine's root, with the units where they are installed."""
    system = tmp_path / "etc/systemd/system"
    system.mkdir(parents=True)
    for unit in EXPOSURE:
        shutil.copy(UNITS / unit, system)
    (system / "kafila-agent.service.d").mkdir()
    shutil.copy(UNITS / "gpu.conf", system / "kafila-agent.service.d")
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    for target in ("multi-user", "network-online", "sysinit", "basic", "shutdown"):
        (tmp_path / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\nDescription=x\n")
    return tmp_path


@pytest.mark.parametrize("unit", EXPOSURE)
def test_systemd_has_nothing_to_say_of_a_unit(unit):
    said = run("systemd-analyze", "verify", "--man=no", str(UNITS / unit))
    assert (said.returncode, said.stderr) == (0, "")  # it returns 0 for a key it does not know


def test_nor_of_the_addition_for_a_gpu(tmp_path):
    shutil.copy(UNITS / "kafila-agent.service", tmp_path)
    (tmp_path / "kafila-agent.service.d").mkdir()
    shutil.copy(UNITS / "gpu.conf", tmp_path / "kafila-agent.service.d")
    said = run("systemd-analyze", "verify", "--man=no", str(tmp_path / "kafila-agent.service"))
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("unit", EXPOSURE)
def test_a_call_that_is_not_allowed_fails_and_does_not_kill(unit):
    """Libraries try some and go on without: numpy's OpenBLAS has mbind, which @resources holds."""
    assert "\nSystemCallErrorNumber=EPERM\n" in (UNITS / unit).read_text()


@pytest.mark.parametrize(("unit", "most"), EXPOSURE.items())
def test_a_unit_is_as_closed_as_its_program_allows(unit, most):
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit))
    score = re.search(r"exposure level for \S+ ([0-9.]+)", said.stdout)
    assert score, said.stderr
    assert float(score[1]) <= most


def test_a_unit_enabled_and_disabled_again_leaves_nothing(root):
    before = sorted(root.rglob("*"))
    assert run("systemctl", f"--root={root}", "enable", *EXPOSURE).returncode == 0
    assert len(list((root / "etc/systemd/system/multi-user.target.wants").iterdir())) == 2
    assert run("systemctl", f"--root={root}", "disable", *EXPOSURE).returncode == 0
    assert [path for path in sorted(root.rglob("*")) if not path.name.endswith(".wants")] == before


def test_the_group_is_made(tmp_path):
    (tmp_path / "etc").mkdir()
    said = run("systemd-sysusers", f"--root={tmp_path}", str(UNITS / "sysusers.conf"))
    assert said.returncode == 0, said.stderr
    assert re.search(r"^kafila:", (tmp_path / "etc/group").read_text(), re.M)


@pytest.mark.parametrize("unit", EXPOSURE)
def test_what_the_programs_are_told_is_what_they_take(unit):
    """Options of ExecStart, by the programs' own parsers; ports as Prometheus scrapes them."""
    text = (UNITS / unit).read_text()
    line = re.search(r"^ExecStart=/usr/bin/env (\S+) (.*)$", text, re.M)
    options = re.findall(r"--[a-z-]+", line[2])
    if line[1] == "kafila-agent":
        from kafila_agent.main import app
    else:
        from kafila_rendezvous.main import app
    import typer

    known = {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
    assert options
    assert set(options) <= known
    port = re.search(r"--metrics-port (\d+)", line[2])[1]
    assert f"127.0.0.1:{port}" in (DEPLOY / "prometheus/prometheus.yml").read_text()
