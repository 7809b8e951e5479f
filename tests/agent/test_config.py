"""Where an agent keeps its things, and where `kafila-ctl` looks for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafila_agent import config
from kafila_agent.config import (
    AgentConfig,
    default_control_dir,
    default_model_dirs,
    default_state_dir,
    url_here,
)

UNDER_SYSTEMD = ("STATE_DIRECTORY", "CACHE_DIRECTORY", "RUNTIME_DIRECTORY")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in (*UNDER_SYSTEMD, "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(config, "SERVICE_DIR", tmp_path / "run")
    return tmp_path


def make_socket(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "control.sock").touch()


def test_a_user_has_it_all_at_home(home):
    assert default_state_dir() == home / ".local/state/kafila"
    assert default_model_dirs() == (home / ".local/share/kafila/models",)
    assert AgentConfig("a", home / "s", "rv:1").control_socket == home / "s/control.sock"


def test_a_service_has_it_where_systemd_says(home, monkeypatch):
    for name in UNDER_SYSTEMD:
        monkeypatch.setenv(name, f"/x/{name[0].lower()}:/else/where")
    assert default_state_dir() == Path("/x/s")
    assert default_model_dirs() == (Path("/x/c/models"),)
    assert AgentConfig("a", Path("/x/s"), "rv:1").control_socket == Path("/x/r/control.sock")


def test_ones_own_agent_comes_before_the_service_and_that_before_none(home):
    assert default_control_dir() == home / ".local/state/kafila"
    make_socket(home / "run")
    assert default_control_dir() == home / "run"
    make_socket(home / ".local/state/kafila")
    assert default_control_dir() == home / ".local/state/kafila"


def test_a_service_that_may_not_be_looked_at_is_left_alone(home, monkeypatch):
    # An error other than "no such file", as permission would be, but for root too.
    monkeypatch.setattr(config, "SERVICE_DIR", home / ("x" * 300))
    assert default_control_dir() == home / ".local/state/kafila"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("100.64.0.5", "http://100.64.0.5:9"),
    ],
)
def test_how_this_machine_reaches_what_it_serves(host, url):
    assert url_here(host, 9) == url
