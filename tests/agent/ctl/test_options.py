from __future__ import annotations

from kafila_agent.ctl.options import from_here


def test_a_path_is_told_as_the_agent_finds_it_and_a_name_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "models/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert from_here("models/tiny") == from_here("~/models/tiny") == str(tmp_path / "models/tiny")
    for name in ("", "tiny", "friends/tiny", "x" * 300, str(tmp_path / "elsewhere")):
        assert from_here(name) == name
