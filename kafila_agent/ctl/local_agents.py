"""Several agents on one machine, forked from one process that has imported torch and transformers once.

On machines of their own agents import them side by side; here they would take turns on the same cores.

A program for a fleet's owner, ``python -m kafila_agent.ctl.local_agents LIFELINE``. It reads lines of JSON,
``{name: {"arguments": [...], "log": path}}``, starts these agents, answers each line with one, ``{name: pid}``, and
writes ``{name: exit status}`` whenever an agent ends. The agents watch the descriptor LIFELINE: when its other end
closes they end by themselves. After the end of its standard input this program ends with the last of them.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

_IMPORTS = ("kafila_agent.main", "kafila_agent.agent", "kafila_agent.imports")


def main(settle: Callable[[dict[str, Any]], None] = lambda agent: None) -> None:
    """Entry point. ``settle`` is called in each agent's process first, with what was asked for it."""
    for name in _IMPORTS:
        importlib.import_module(name)
    lifeline = int(sys.argv[1])
    ended = _watch_children()
    names: dict[int, str] = {}
    awaited = [sys.stdin.fileno(), ended]
    while names or len(awaited) > 1:
        for ready in select.select(awaited, [], [])[0]:
            if ready == ended:
                os.read(ended, 4096)
            elif line := sys.stdin.readline():
                started = {name: _fork(agent, lifeline, settle) for name, agent in json.loads(line).items()}
                names |= {pid: name for name, pid in started.items()}
                print(json.dumps(started), flush=True)
            else:
                awaited.remove(ready)
        for pid in list(names):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                print(json.dumps({names.pop(pid): os.waitstatus_to_exitcode(status)}), flush=True)


def _watch_children() -> int:
    """A descriptor that can be read when a child has ended."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return readable


def _fork(agent: dict[str, Any], lifeline: int, settle: Callable[[dict[str, Any]], None]) -> int:
    """The process id of a new agent."""
    if pid := os.fork():
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(agent["log"], "ab") as stderr, open(os.devnull, "wb") as stdout:
        os.dup2(lifeline, sys.stdin.fileno())
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        os.dup2(stdout.fileno(), sys.stdout.fileno())
    settle(agent)
    from kafila_agent.main import app

    app(["--until-stdin-closes", *agent["arguments"]])  # ends the process
    raise AssertionError("typer returned")


if __name__ == "__main__":
    main()
