from __future__ import annotations

from pathlib import Path

import pytest
import typer

from kafila_agent.ctl import chat
from kafila_agent.ctl.completions import ApiError

OURS, THEIRS = "kafila-" + "k" * 32, "openai-" + "k" * 32


@pytest.mark.parametrize(
    ("base_url", "in_file", "key"),
    [
        ("https://elsewhere.example/v1", False, THEIRS),
        ("https://elsewhere.example/v1", True, OURS),  # whoever names the file means it
        ("http://127.0.0.1:7480/v1", False, OURS),
        ("http://localhost:7480/v1", False, OURS),
    ],
)
def test_the_agents_key_goes_to_no_other_machine_by_itself(base_url, in_file, key, tmp_path, monkeypatch):
    given: list[str | None] = []

    def refuse(_base_url: str, api_key: str | None) -> str:
        given.append(api_key)
        raise ApiError("no")

    monkeypatch.setattr(chat, "served_model", refuse)
    monkeypatch.setenv("KAFILA_API_KEY", OURS)
    monkeypatch.setenv("OPENAI_API_KEY", THEIRS)
    file = tmp_path / "key"
    file.write_text(OURS)
    file.chmod(0o600)
    with pytest.raises(typer.Exit):
        chat.chat(base_url, file if in_file else None, None, 0.0, False, state_dir=Path("unused"))
    assert given == [key]
