"""Where the API's key comes from, and what is refused as one; no message shows it."""

from __future__ import annotations

import os

import pytest

from kafila_agent.api_key import ApiKeyError, read_api_key

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
