"""What fills a ring: guesses for one user, four users against one. Real stages in one process, hops that only wait.

    python -m tests.bench.full_ring guesses [--delays-ms 0 5 20 40 50] [--draft] [--tokens 60]
    python -m tests.bench.full_ring users [--shares 0.12 0.5 0.9] [--tokens 30]

SmolLM2 in three stages. *guesses*: the same request without and with, in turn, which must answer alike; ratios of
tokens/s after the first; with ``--draft`` the model guesses for itself in 4 bits. *users*: stages paced as slow
machines (``kafila_agent/pace.py``), guesses off; four users can have min(4, T / tau) times what one has, T the circuit
and tau the slowest stage, if each row goes alone; rows that wait go together, which may give more.
``tests.bench.speculation`` and ``tests.bench.users`` measure the same over real edges.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import torch

from kafila_agent.head.draft import DraftModel
from kafila_agent.head.generation import Request
from kafila_agent.head.prompt_lookup import PromptLookup
from kafila_agent.head.sampler import Sampling
from kafila_agent.head.speculation import Speculation
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.pace import Pace
from kafila_agent.stage.executor import StageExecutor
from kafila_planner.predict import CHUNK_TOKENS
from tests.agent.head.real_ring import RealRing
from tests.bench.rows import Rows, options_and_rows
from tests.bench.speculation import PROMPTS, smollm2

RANGES = [(0, 8), (8, 19), (19, 30)]
STAGE_S = 0.06
USERS = 4
SIZES = {"slots": USERS, "context_tokens": 768}


async def answer(ring: RealRing, words: str, tokens: int, *, speculation: bool) -> tuple[list[int], float]:
    """The tokens, and how many came a second after the first."""
    prompt = ring.engine.text.encode_chat([{"role": "user", "content": words}])
    request = Request(
        tuple(prompt), tokens, Sampling(temperature=0), ignore_eos=True, speculation=speculation
    )
    ids, times = [], []
    async for event in ring.engine.generate(request):
        ids += [each.token for each in event.tokens]
        times += [time.monotonic()] * len(event.tokens)
    return ids, (len(ids) - 1) / (times[-1] - times[0])


def start(delay_s: float, draft: bool) -> tuple[RealRing, DraftModel | None]:
    rings: list[RealRing] = []
    proposers, model = [PromptLookup], None
    if draft:
        manifest = read_manifest(smollm2())
        stage = load_stage(manifest, 0, manifest.blocks, is_head=True, dtype="bfloat16/int4")
        executor = StageExecutor(stage, threads=1, **SIZES)
        model = DraftModel(executor, lambda each: rings[0].engine.on_guess(each), vocab_size=stage.vocab_size)
        proposers.append(lambda: model)
    speculation = Speculation(proposers=proposers)
    options = {
        "dtype": "bfloat16",
        "delay_s": delay_s,
        "prefill_chunk": CHUNK_TOKENS,
        "speculation": speculation,
    }
    rings.append(RealRing(smollm2(), RANGES, **SIZES, **options))
    return rings[0], model


async def measure_guesses(delay_ms: float, options: argparse.Namespace, rows: Rows) -> None:
    way = "draft" if options.draft else "lookup"
    keys = {name: ("guesses", way, f"{delay_ms:g} ms", name, f"{options.tokens} tokens") for name in PROMPTS}
    if not rows.are_due(*keys.values()):
        rows.show(*keys.values())
        return
    ring, draft = start(delay_ms / 1e3, options.draft)
    await answer(ring, "Hello", 12, speculation=False)
    for name, key in keys.items():
        if rows.are_due(key):
            rows.keep(
                key, await _guess(ring, f"{delay_ms:5.0f} ms  {name:10}", PROMPTS[name], options.tokens, way)
            )
        else:
            rows.show(key)
    await ring.close()
    if draft is not None:
        await draft.close()


async def _guess(ring: RealRing, label: str, words: str, tokens: int, way: str) -> dict:
    plain, plain_rate = await answer(ring, words, tokens, speculation=False)
    guessed, rate = await answer(ring, words, tokens, speculation=True)
    assert plain == guessed, f"{label}: the answers differ"
    tempo = ring.engine._tempo
    told = (
        f"{label} plain {plain_rate:6.2f}/s  {way} {rate:6.2f}/s  {rate / plain_rate:5.2f}x"
        f"  (T {tempo.circuit_s * 1e3:.0f} ms, interval {tempo.interval_s * 1e3:.0f} ms)"
    )
    return {"plain_per_s": plain_rate, "guessed_per_s": rate, "row": told}


async def measure_users(share: float, tokens: int) -> dict:
    """Equal paced stages; the hops make up the share."""
    pace = Pace(1e15, 1e15, overhead_s=STAGE_S)
    delay_s = STAGE_S * share / (1 - share)
    paced = {"paces": [pace] * len(RANGES), "delay_s": delay_s, "speculation": Speculation(most_rows=0)}
    ring = RealRing(smollm2(), RANGES, **SIZES, dtype="bfloat16", prefill_chunk=CHUNK_TOKENS, **paced)
    _, one = await answer(ring, "Name a colour.", tokens, speculation=False)
    stages_s = ring.engine.measured().stage_compute_s
    slowest_s = max(stages_s[0] + stages_s[-1], *stages_s[1:-1])
    questions = ("Name a colour.", "Name a river.", "Name a town.", "Name a tree.")
    many = await asyncio.gather(*(answer(ring, words, tokens, speculation=False) for words in questions))
    rates = [rate for _, rate in many]
    bound = min(USERS, 1 / one / slowest_s)
    gain = sum(rates) / one
    told = (
        f"share {share:4.2f} (measured {ring.engine.measured().network_share:4.2f})  T {1e3 / one:5.0f} ms  tau"
        f" {slowest_s * 1e3:3.0f} ms  one {one:5.2f}/s  four {' '.join(f'{rate:5.2f}' for rate in rates)}"
        f"  gain {gain:4.2f} of {bound:4.2f}: {gain / bound:5.1%}"
    )
    await ring.close()
    return {"one_per_s": one, "four_per_s": rates, "bound": bound, "row": told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=["guesses", "users"], default=["guesses", "users"])
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[0, 5, 20, 40, 50])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.12, 0.5, 0.9])
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--tokens", type=int, default=40)
    options, rows = options_and_rows("full_ring", parser)
    torch.set_num_threads(1)
    for delay_ms in options.delays_ms if "guesses" in options.what else ():
        asyncio.run(measure_guesses(delay_ms, options, rows))
    for share in options.shares if "users" in options.what else ():
        key = ("users", f"share {share:g}", f"{options.tokens} tokens")
        rows.measure(key, lambda share=share: asyncio.run(measure_users(share, options.tokens)))


if __name__ == "__main__":
    main()
