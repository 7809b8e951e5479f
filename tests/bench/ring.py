"""A ring against one member alone, against llama.cpp RPC, and against what the network allows.

    python -m tests.bench.ring [--rows loopback network prefill start] [--rtts-ms 0 10 40 100] [--tokens 64]
        [--rounds 5] [--seconds 120]

SmolLM2 over three real members, one thread each, guessing ahead off. *loopback*: one member alone, three, and llama.cpp
with three RPC servers, in turn; medians of the ratios of a round. *network*: the three so far apart, each from each
other, against the circuit's limit, three one-way delays and the stages as measured; llama.cpp RPC at the same places.
*prefill*: three against one, all paced alike (``kafila-agent --pace``), as two cores cannot show it else. *start*: from
the last member's joining to serving, new processes. llama.cpp is optional (tests/llama_cpp.py). Rows are kept in
build/ring.json. What is in the laboratory needs what tests/natlab needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb
from kafila_proto import rendezvous_pb2
from tests.bench import load
from tests.bench.rows import BUILD, Rows, options_and_rows
from tests.bench.speculation import smollm2
from tests.llama_cpp import LlamaCpp, RpcServer, convert_gguf, has_rpc, llama_python
from tests.natlab.asking import ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

MEMBERS = ("desk", "laptop", "tower")
RPC_PORT = 50052
PROMPT_TOKENS = 80
PREFILL_S = 30.0  # of a paced member alone
PREFILL_WORDS = 300  # of about six tokens each
WEIGHTS_BYTES = 269e6  # that a row reads
BF16 = BUILD / "bench" / "smollm2-BF16.gguf"
QUESTION = [{"role": "user", "content": "Why do people like to travel? Answer in a short paragraph."}]


@contextlib.contextmanager
def llama_rpc(kind: str, nodes: Sequence[tuple[str, Callable[..., Any]]]) -> Iterator[LlamaCpp | None]:
    """llama.cpp over one RPC server a node (its address, and how to start a process there), asked at the first."""
    python = llama_python()
    if python is None or not has_rpc(python):
        yield None
        return
    file = convert_gguf(smollm2(), BUILD / "bench" / f"smollm2-{kind}.gguf", kind)
    servers = [
        RpcServer(python, f"{address}:{RPC_PORT + place}", 1, popen)
        for place, (address, popen) in enumerate(nodes)
    ]
    llama = LlamaCpp(python, file, 1, [server.endpoint for server in servers], nodes[0][1])
    try:
        yield llama
    finally:
        llama.close()
        for server in servers:
            server.close()


def loopback(tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of one member, of three and of llama.cpp RPC, in turn."""
    with contextlib.ExitStack() as stack:
        asks = {}
        for name, members in {"one": MEMBERS[:1], "three": MEMBERS}.items():
            fleet = stack.enter_context(LocalFleet({member: _options() for member in members}))
            asks[name] = _asking(fleet)
        llama = stack.enter_context(llama_rpc("BF16", [("127.0.0.1", subprocess.Popen)] * 3))
        rates: dict[str, list[float]] = {name: [] for name in (*asks, *(["rpc"] if llama else []))}
        for number in range(rounds + 1):
            for name, answer in asks.items():
                rates[name].append((tokens - 1) / sum(answer(number, tokens).gaps_s))
            if llama:
                rates["rpc"].append(1 / llama.step_s(PROMPT_TOKENS, tokens))
        rates = {name: values[1:] for name, values in rates.items()}  # the first round warms up
    ratio = _median_ratio(rates["three"], rates["one"])
    told = (
        f"loopback, bfloat16: one member {_median(rates['one'])}, three {_median(rates['three'])} tokens/s:"
    )
    told += f" {ratio:.2f} of one (bar 0.90); llama.cpp RPC "
    if llama:
        against = _median_ratio(rates["three"], rates["rpc"])
        told += f"{_median(rates['rpc'])} tokens/s: {against:.2f} times it (bar 1.00)"
    else:
        told += "absent (tests/llama_cpp.py says how to have it)"
    return {"tokens_per_s": rates, "row": told}


def network(rows: Rows, rtts_ms: Sequence[float], tokens: int, rounds: int) -> None:
    """One session for all distances."""
    if not rows.are_due(*(_network_key(rtt_ms, tokens) for rtt_ms in rtts_ms)):
        rows.show(*(_network_key(rtt_ms, tokens) for rtt_ms in rtts_ms))
        return
    with _laboratory() as (lab, fleet):
        status = fleet.serve(MEMBERS, smollm2(), dtype="bfloat16", quant="int8", context_tokens=512)
        nodes = [(lab.addresses[name][0], functools.partial(lab.popen, name)) for name in MEMBERS]
        with llama_rpc("Q8_0", nodes) as llama:
            for rtt_ms in rtts_ms:
                for name in MEMBERS:
                    lab.delay(name, rtt_ms / 2)  # each is half of it from the middle
                measure = functools.partial(_at_distance, lab, fleet, status, llama, rtt_ms, tokens, rounds)
                rows.measure(_network_key(rtt_ms, tokens), measure)


def _network_key(rtt_ms: float, tokens: int) -> tuple[object, ...]:
    return "network", f"{rtt_ms:g} ms", tokens


def _at_distance(
    lab: Lab,
    fleet: LabFleet,
    status: pb.Status,
    llama: LlamaCpp | None,
    rtt_ms: float,
    tokens: int,
    rounds: int,
) -> dict[str, Any]:
    body = {"model": status.session.model, "messages": QUESTION, "ignore_eos": True, "speculation": False}
    rates, rpc = [], []
    for number in range(rounds + 1):
        [answer] = ask(lab, status.name, status.api_url, [body | {"max_tokens": tokens}])
        rates.append(answer.tokens_per_s)
        if llama:
            rpc.append(1 / llama.step_s(8, tokens if number else 2))
    members = fleet.agent(status.name).GetStatus(pb.StatusRequest()).session.members
    stages_s = sum(member.measured_stage_s for member in members)
    limit = 1 / (len(MEMBERS) * rtt_ms / 2e3 + stages_s)
    rate = statistics.median(rates[1:])
    told = f"network, int8, {rtt_ms:3g} ms RTT: {rate:5.2f} tokens/s, the circuit's limit {limit:5.2f}:"
    told += f" {rate / limit:4.2f} of it (bar 0.90); stages {stages_s * 1e3:.1f} ms; llama.cpp RPC "
    told += f"{_median(rpc[1:])} tokens/s" if llama else "absent"
    return {"tokens_per_s": rates[1:], "limit": limit, "rpc_tokens_per_s": rpc[1:], "row": told}


def prefill(rounds: int) -> dict[str, Any]:
    """Seconds to the first token of a long prompt, one member against three, machines of one kind."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="kafila-") as directory:
        file = Path(directory) / "pace.json"
        rate = PREFILL_WORDS * 6 * WEIGHTS_BYTES / PREFILL_S
        file.write_text(json.dumps({"bandwidth_bytes_per_s": 100e9, "flops_per_s": rate}))
        took_s: dict[str, list[float]] = {"one": [], "three": []}
        asks = {}
        for name, members in {"one": MEMBERS[:1], "three": MEMBERS}.items():
            options = [*_options(), "--pace", str(file), "--memory", "2G"]
            asks[name] = _asking(stack.enter_context(LocalFleet(dict.fromkeys(members, options))))
        for number in range(rounds):
            for name, answer in asks.items():
                took_s[name].append(answer(number, 1, words=PREFILL_WORDS).ttft_s)
    ratio = _median_ratio(took_s["one"], took_s["three"])
    one_s, three_s = (statistics.median(took_s[name]) for name in ("one", "three"))
    told = f"prefill, paced: first token after {one_s:.2f} s with one member, {three_s:.2f} s with three:"
    return {"ttft_s": took_s, "row": f"{told} {ratio:.2f} times as fast (bar 2.00)"}


def start(rounds: int) -> dict[str, Any]:
    """From the last member's joining until the host serves, against a plain read of the weights as they are held.

    Each joins when those before have measured themselves, as members with machines of their own have: here they would
    wait for each other. The first session is told apart: each machine hashes a model that it has not seen before.
    """
    file = convert_gguf(smollm2(), BF16, "BF16")
    took_s, reads_s = [], []
    with _laboratory() as (_, fleet):
        for _ in range(rounds + 1):
            reads_s.append(_read_s(file))
            took_s.append(_start_s(fleet, file))
            fleet.leave(MEMBERS)
    read_s, known_s = statistics.median(reads_s), statistics.median(took_s[1:])
    bar = f"bar {1.5 * read_s + 3:.2f}: 1.5 times the {read_s:.2f} s of a plain read, and 3"
    told = (
        f"start, {file.stat().st_size / 1e6:.0f} MB: serving {known_s:.2f} s after the last joined ({bar});"
    )
    told += f" {took_s[0]:.2f} s the first time, when each machine hashes the model"
    return {"took_s": took_s, "read_s": reads_s, "row": told}


def _start_s(fleet: LabFleet, file: Path) -> float:
    host = fleet.agent(MEMBERS[0])
    asked = {"model": str(file), "members": len(MEMBERS), "context_tokens": 512, "concurrency": 1}
    code = host.CreateSession(pb.CreateRequest(**asked, dtype="bfloat16")).session.code
    began = 0.0
    for place, name in enumerate(MEMBERS[1:], 1):
        for status in host.WatchStatus(pb.StatusRequest()):
            if [member.state for member in status.session.members] == [rendezvous_pb2.WAITING] * place:
                break
        began = time.monotonic()
        fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
    for status in host.WatchStatus(pb.StatusRequest()):
        assert status.session.state != pb.SessionStatus.CLOSED, status.session.reason
        if status.session.state == pb.SessionStatus.SERVING:
            break
    return time.monotonic() - began


def _read_s(file: Path) -> float:
    started = time.perf_counter()
    with file.open("rb", buffering=0) as stream:
        stream.readinto(bytearray(file.stat().st_size))
    return time.perf_counter() - started


def _options() -> list[str]:
    return ["--model-dir", str(smollm2().parent), "--model-dir", str(BF16.parent), "--threads", "1"]


@contextlib.contextmanager
def _laboratory() -> Iterator[tuple[Lab, LabFleet]]:
    lab = Lab()
    for name in MEMBERS:
        lab.add(name, "public", rtt_ms=1)
    with lab, tempfile.TemporaryDirectory(prefix="kafila-") as directory:
        for name in MEMBERS:
            lab.delay(name, 0)
        agents = {name: [*_options(), "--no-upnp"] for name in MEMBERS}
        with LabFleet(lab, Path(directory), agents) as fleet:
            yield lab, fleet


def _asking(fleet: LocalFleet) -> Callable[..., load.Answered]:
    """A session of all of them; asks its host."""
    urls, model = load.form(fleet, str(smollm2()), 1, context_tokens=2048)

    def answer(number: int, tokens: int, words: int = 16) -> load.Answered:
        async def one() -> load.Answered:
            async with httpx2.AsyncClient(trust_env=False, timeout=None) as http:
                return await load.ask(http, urls[0], model, number, tokens, words=words, speculation=False)

        return asyncio.run(one())

    return answer


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f}"


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("loopback", "network", "prefill", "start")
    parser.add_argument("--rows", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--rtts-ms", type=float, nargs="+", default=[0, 10, 40, 100])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options, rows = options_and_rows("ring", parser)
    tokens, rounds = options.tokens, options.rounds
    if "loopback" in options.rows:
        rows.measure(("loopback", tokens, rounds), lambda: loopback(tokens, rounds))
    if "prefill" in options.rows:
        rows.measure("prefill", lambda: prefill(2))
    if reason := why_not():
        print(f"network and start are skipped: {reason}")
        return
    if "network" in options.rows:
        network(rows, options.rtts_ms, tokens, rounds)
    if "start" in options.rows:
        rows.measure("start", lambda: start(3))


if __name__ == "__main__":
    main()
