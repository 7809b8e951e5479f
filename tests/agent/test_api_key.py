"""Where the API's key comes from, and what is refused as one; no message shows it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kafila_agent.api_key import ApiKeyError, read_api_key, require_api_key

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("KAFILA_API_KEY", raising=False)


def test_from_a_file_that_is_not_everybodys(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o640)
    assert read_api_key(file) == KEY
    file.chmod(0o644)
    with pytest.raises(ApiKeyError, match="chmod"):
        read_api_key(file)


def test_from_the_environment_which_children_do_not_inherit(monkeypatch):
    assert read_api_key(None) is None
    monkeypatch.setenv("KAFILA_API_KEY", KEY)
    assert read_api_key(None) == KEY
    assert "KAFILA_API_KEY" not in os.environ


@pytest.mark.parametrize(
    "text", ["", "short", "with a space in between", "0123456789abcdef\n0123", "ключ" * 9]
)
def test_what_is_no_key_is_not_shown(tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ApiKeyError, match=str(file)) as refused:
        read_api_key(file)
    assert not text or text not in str(refused.value)


def test_no_file_is_named(tmp_path):
    with pytest.raises(ApiKeyError, match="No such file"):
        read_api_key(tmp_path / "none")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.example"])
def test_other_machines_need_a_key(host):
    with pytest.raises(ApiKeyError, match=f"{host}.*--api-key-file"):
        require_api_key(host, None)
    require_api_key(host, KEY)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_none(host):
    require_api_key(host, None)


def test_a_missing_key_is_said_before_anything_heavy_is_imported(tmp_path):
    """The modules that a session needs take seconds; -X importtime lists every one that was imported."""
    asked = ["--rendezvous", "127.0.0.1:1", "--state-dir", str(tmp_path), "--api-host", "0.0.0.0"]
    agent = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kafila_agent.main", *asked],
        env={name: value for name, value in os.environ.items() if name != "KAFILA_API_KEY"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert agent.returncode == 1
    assert "kafila-agent: other machines reach the API at 0.0.0.0: give it a key" in agent.stderr
    imported = {line.rsplit("|", 1)[1].strip() for line in agent.stderr.splitlines() if "|" in line}
    assert "typer" in imported
    assert not imported & {"torch", "transformers", "aioquic", "grpc", "fastapi", "kafila_agent.agent"}
    assert not list(tmp_path.iterdir())
