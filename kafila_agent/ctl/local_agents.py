"""Several agents on one machine, forked from one process that has imported torch and transformers once.

On machines of their own agents import them side by side; here they would take turns on the same cores.

A program for local_fleet.py alone. It reads one line of JSON, ``{name: {"arguments": [...], "log": path}}``, answers
with one, ``{name: pid}``, and then writes ``{name: exit status}`` whenever an agent ends; when all have, it ends too.
The agents watch its standard input: when that closes they end by themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

_IMPORTS = ("kafila_agent.main", "kafila_agent.agent", "kafila_agent.imports")


def main() -> None:
    """Entry point."""
    for name in _IMPORTS:
        importlib.import_module(name)
    names = {_fork(agent): name for name, agent in json.loads(sys.stdin.readline()).items()}
    print(json.dumps({name: pid for pid, name in names.items()}), flush=True)
    while names:
        pid, status = os.wait()
        print(json.dumps({names.pop(pid): os.waitstatus_to_exitcode(status)}), flush=True)


def _fork(agent: dict[str, Any]) -> int:
    """The process id of a new agent."""
    if pid := os.fork():
        return pid
    with open(agent["log"], "wb") as stderr, open(os.devnull, "wb") as stdout:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        os.dup2(stdout.fileno(), sys.stdout.fileno())
    from kafila_agent.main import app

    app(["--until-stdin-closes", *agent["arguments"]])  # ends the process
    raise AssertionError("typer returned")


if __name__ == "__main__":
    main()
