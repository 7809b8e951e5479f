"""Requests to an agent's API from the machine that it runs on, timed there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.natlab.lab import Lab

# One streamed request for each line of standard input, one after the other or all at once.
_SCRIPT = """
import json, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(line):
    headers = {"Content-Type": "application/json"}
    ids, times, how = [], [time.monotonic()], {}
    with opener.open(urllib.request.Request(sys.argv[1], line.encode(), headers)) as reply:
        for event in reply:
            if event.startswith(b"data: {"):
                chunk = json.loads(event[6:])
                choices, how = chunk["choices"], chunk.get("kafila", how)
                new = [token for choice in choices for token in choice.get("token_ids", [])]
                ids += new
                times += [time.monotonic()] * bool(new)
    guesses = [how["guesses"], how["right_guesses"]]
    return json.dumps([ids, times[1] - times[0], times[-1] - times[1], *guesses])
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    for answer in pool.map(ask, sys.stdin):
        print(answer, flush=True)
"""


@dataclass(frozen=True)
class Answer:
    """``decode_s``: from the first token to the last. ``right_guesses`` of the ``guesses`` ahead that were judged."""

    token_ids: tuple[int, ...]
    ttft_s: float
    decode_s: float
    guesses: int
    right_guesses: int

    @property
    def tokens_per_s(self) -> float:
        """Of those after the first."""
        return (len(self.token_ids) - 1) / self.decode_s


def ask(lab: Lab, node: str, api_url: str, bodies: Sequence[dict], *, at_once: int = 1) -> list[Answer]:
    """Ask ``api_url`` from ``node`` for chat completions, ``at_once`` of them at a time; answers in the same order."""
    common = {"temperature": 0, "stream": True, "return_token_ids": True}
    lines = "\n".join(json.dumps(common | body) for body in bodies)
    command = [sys.executable, "-c", _SCRIPT, f"{api_url}/chat/completions", str(at_once)]
    said = [json.loads(line) for line in lab.run(node, command, lines).splitlines()]
    return [Answer(tuple(ids), *measures) for ids, *measures in said]
