"""What a log looks like, and what ends a program."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys

import pytest
import structlog

from kafila_proto.program import Ending, configure_logs

EVIL = "\x1b]0;owned\x07\nattached member=desk"


class Stderr(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def logged(monkeypatch):
    """``logged(is_terminal)`` is what a line with another's words looks like."""

    def log(is_terminal: bool) -> str:
        stderr = Stderr(is_terminal)
        monkeypatch.setattr(sys, "stderr", stderr)
        configure_logs()
        structlog.get_logger().info("refused", detail=EVIL)
        structlog.get_logger().debug("not asked for")
        return stderr.getvalue()

    yield log
    structlog.reset_defaults()


def test_a_log_is_a_line_of_json_for_each_event(logged):
    (line,) = logged(False).splitlines()
    assert json.loads(line)["detail"] == EVIL
    assert line.isprintable()


def test_on_a_terminal_the_words_of_others_cannot_drive_it(logged):
    (line,) = logged(True).splitlines()
    assert "\x07" not in line
    assert "\x1b]" not in line
    assert r"\x1b]0;owned\x07" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_end_a_program(number):
    ending = Ending()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(ending.asked.wait(), 10)


async def test_the_end_of_standard_input_does_if_asked(monkeypatch):
    ours, theirs = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(ours))
    ending = Ending(until_stdin_closes=True)
    os.write(theirs, b"not yet")
    await asyncio.sleep(0.05)
    assert not ending.asked.is_set()
    os.close(theirs)
    await asyncio.wait_for(ending.asked.wait(), 10)


@pytest.mark.parametrize("then", [[signal.SIGTERM], [signal.SIGINT], []])
async def test_sigterm_leaves_time_until_a_second_signal(then):
    ending, done = Ending(), asyncio.Event()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(ending.asked.wait(), 10)
    waiting = asyncio.create_task(ending.unless_hurried(done.wait()))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    if not then:
        done.set()
    for number in then:
        os.kill(os.getpid(), number)
    await asyncio.wait_for(waiting, 10)
