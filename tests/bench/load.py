"""What users of one session get: TTFT, ITL and throughput at 1, 4 and 16 at once: `python -m tests.bench.load`.

Real processes on this machine: a rendezvous, three agents, SmolLM2-135M in bfloat16; each member's API has its users.
The prompts differ, so that none is prefilled for another. Medians, and the 95th percentile in brackets; one table
in one run. The processes share this machine's cores: compare figures within the table, not with other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

from kafila_agent.ctl.demo import _packaged_model
from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb
from tests.bench.rows import options_and_rows

NAMES = ("desk", "laptop", "tower")


@dataclass
class Answered:
    """One request, seen from its client."""

    ttft_s: float
    gaps_s: list[float]
    tokens: int


async def ask(
    http: httpx2.AsyncClient,
    url: str,
    model: str,
    number: int,
    tokens: int,
    *,
    words: int = 16,
    **more: object,
) -> Answered:
    about = " ".join(f"{number}:{place}" for place in range(words))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about {about}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = last = time.monotonic()
    ttft_s, gaps_s, counted = 0.0, [], 0
    async with http.stream("POST", f"{url}/chat/completions", json=body | more) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                now = time.monotonic()
                if ttft_s:
                    gaps_s.append(now - last)
                else:
                    ttft_s = now - started
                last = now
    return Answered(ttft_s, gaps_s, counted)


async def measure(urls: Sequence[str], model: str, users: int, requests: int, tokens: int) -> dict:
    """One row: each user asks again as soon as it is answered."""
    waiting = iter(range(users * requests))
    answered: list[Answered] = []

    async def use(place: int) -> None:
        for number in waiting:
            answered.append(await ask(http, urls[place % len(urls)], model, users * 1000 + number, tokens))

    async with httpx2.AsyncClient(trust_env=False, timeout=None) as http:
        started = time.monotonic()
        await asyncio.gather(*(use(place) for place in range(users)))
        took_s = time.monotonic() - started
    ttft = spread([each.ttft_s for each in answered])
    itl = spread([gap for each in answered for gap in each.gaps_s])
    rate = sum(each.tokens for each in answered) / took_s
    told = f"{users:2} users  TTFT {ttft} ms  ITL {itl} ms  {rate:5.1f} tokens/s in all  {len(answered)} requests"
    return {"users": users, "ttft_ms": ttft, "itl_ms": itl, "tokens_per_s": rate, "row": told}


def spread(values_s: Sequence[float]) -> str:
    """Median and 95th percentile, in milliseconds."""
    ordered = sorted(values_s)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"{statistics.median(ordered) * 1e3:.0f} ({high * 1e3:.0f})"


def form(
    fleet: LocalFleet, model: str, concurrency: int, context_tokens: int = 1024
) -> tuple[list[str], str]:
    """A session of all; the base URLs, and the model's name."""
    request = pb.CreateRequest(
        model=model,
        members=len(fleet.names),
        context_tokens=context_tokens,
        concurrency=concurrency,
        dtype="bfloat16",
    )
    code = fleet.agent(fleet.names[0]).CreateSession(request).session.code
    for name in fleet.names[1:]:
        fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
    statuses = []
    for name in fleet.names:
        for status in fleet.agent(name).WatchStatus(pb.StatusRequest()):
            if status.session.state == pb.SessionStatus.SERVING:
                statuses.append(status)
                break
            assert status.session.state != pb.SessionStatus.CLOSED, status.session.reason
    return [status.api_url for status in statuses], statuses[0].session.model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2, help="of each user")
    parser.add_argument("--concurrency", type=int, default=4, help="sequences in the ring at once")
    options, rows = options_and_rows("load", parser)
    keys = {users: (users, options.requests, options.tokens, options.concurrency) for users in (1, 4, 16)}
    if not rows.are_due(*keys.values()):
        rows.show(*keys.values())
        return
    model = _packaged_model()
    with LocalFleet({name: ["--model-dir", str(model.parent)] for name in NAMES}) as fleet:
        urls, name = form(fleet, str(model), options.concurrency)
        asyncio.run(measure(urls, name, 1, 1, 4))  # the edges that are opened on demand
        for users, key in keys.items():
            work = functools.partial(measure, urls, name, users, options.requests, options.tokens)
            rows.measure(key, lambda work=work: asyncio.run(work()))


if __name__ == "__main__":
    main()
