"""The words of a session code completed, in the shell and at the prompt."""

from __future__ import annotations

import contextlib

import typer

from kafila_proto.session_code import WORDS_IN_CODE, word_list


def complete_code(incomplete: str) -> list[str]:
    """What ``incomplete`` can become: its last word's letters completed. Nothing before a letter is typed."""
    before, _, letters = incomplete.rpartition("-")
    if not letters or not 1 <= len(before.split("-")) <= WORDS_IN_CODE or not before[:1].isdigit():
        return []
    return [f"{before}-{word}" for word in word_list() if word.startswith(letters.lower())]


def ask_for_code() -> str:
    """Ask for a code; Tab completes its words where the terminal has readline. It stays out of `ps`."""
    with contextlib.suppress(ImportError):
        import readline

        readline.set_completer_delims("")
        readline.set_completer(lambda text, place: (complete_code(text) + [None] * (place + 1))[place])
        editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if editline else "tab: complete")
    return typer.prompt("Session code", err=True)
