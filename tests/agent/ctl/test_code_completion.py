"""Words of a code complete in the shell and at the prompt."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kafila_agent.ctl.code_completion import complete_code
from kafila_proto.session_code import word_list

CTL = Path(sys.executable).with_name("kafila-ctl")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("123456-waln", ["123456-walnut"]),
        ("123456-WALN", ["123456-walnut"]),
        ("123456-walnut-ott", ["123456-walnut-otter"]),
        ("123456-zzzz", []),
        ("", []),
        ("123456", []),
        ("123456-", []),
        ("walnut-ott", []),
        ("123456-walnut-otter-lam", []),
    ],
)
def test_the_last_word_is_completed(typed, completed):
    assert complete_code(typed) == completed


def test_letters_that_several_words_share_give_them_all():
    words = [word for word in word_list() if word.startswith("wa")]
    assert complete_code("123456-wa") == [f"123456-{word}" for word in words]
    assert len(words) > 1


def test_in_the_shell():
    asked = {
        "_KAFILA_CTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "kafila-ctl session join 123456-waln",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [CTL], env=os.environ | asked, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["123456-walnut"], done.stderr


def test_at_the_prompt(tmp_path):
    ours, theirs = pty.openpty()
    command = [CTL, "session", "join", "--state-dir", tmp_path]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        screen = b""
        while b"Session code" not in screen:
            screen += os.read(ours, 1024)
        os.write(ours, b"123456-waln\t-ott\t\n")
        try:
            while b"walnut-otter" not in screen:
                screen += os.read(ours, 1024)
        except OSError:
            pytest.fail(f"not completed: {screen!r}")
        assert process.wait(60) == 3  # no agent runs there
    os.close(ours)
