"""Four users against one on emulated fleets: does the ring carry what its bottleneck allows?

    python -m tests.bench.users [--shares 0.12 0.5 0.9] [--divisions planner uniform memory] [--tokens 20]
        [--seconds 120]

Three unequal members stand for slower machines (``kafila-agent --pace``) and hold SmolLM2; the hops are as long as the
network share asks for. One user's rate gives the circuit T, the stages' own clocks the bottleneck tau; four users at
once can have min(4, T / tau) times one user's rate if each row goes alone, and that is the bound; rows that wait at a
stage go together, which may give more. Emulated time is slow enough for hops, real computing and five processes on two
cores to hide in it. Guessing ahead is off. One fleet of agents for all rows, each printed as it comes and kept in
build/users.json: a bench that was stopped (``--seconds``: begin nothing after) goes on where it was. Needs what
tests/natlab needs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import Refusal
from kafila_proto import agent_pb2 as pb
from tests.bench.speculation import smollm2
from tests.kept import Kept
from tests.natlab.asking import Answer, ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

FILE = Path(__file__).resolve().parents[2] / "build/users.json"
USERS = 4
MEMORY = "1G"
MEMBERS = {
    "desk": 2.0,
    "laptop": 1.0,
    "tower": 0.5,
}  # memory bandwidth in GB/s: about 77 ms a stage, divided best
# By network share: how many times faster all members are, and the delay of a hop.
FLEETS = {0.12: (1, 10.0), 0.5: (1, 77.0), 0.9: (2, 345.0)}
QUESTIONS = ("Name a colour.", "Name a river.", "Name a town.", "Name a tree.")


def body_of(status: pb.Status, question: str, tokens: int) -> dict:
    return {
        "model": status.session.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "speculation": False,
    }


def admitted(fleet_json: str, division: str) -> int:
    """For how many users at once this fleet's division would still be admitted."""
    fleet, users = parse_fleet(json.loads(fleet_json)), 0
    while users < 1024:
        more = replace(fleet, concurrency=users + 1)
        if isinstance(plan_ring(more, division=division), Refusal):
            break
        users += 1
    return users


def measure(lab: Lab, fleet: LabFleet, division: str, tokens: int) -> str:
    """One session, used by one and by four."""
    members = list(MEMBERS)
    sizes = {"context_tokens": 256, "concurrency": USERS}
    status = fleet.serve(members, smollm2(), dtype="bfloat16", division=division, **sizes)

    def answers(*bodies: dict, at_once: int = 1) -> list[Answer]:
        return ask(lab, status.name, status.api_url, bodies, at_once=at_once)

    _, one = answers(body_of(status, "Hello", 4), body_of(status, QUESTIONS[0], tokens))
    many = answers(*(body_of(status, question, tokens) for question in QUESTIONS), at_once=USERS)
    session = fleet.agent(status.name).GetStatus(pb.StatusRequest()).session
    fleet.leave(members)
    stages_s = [member.measured_stage_s for member in session.members]
    rates = [answer.tokens_per_s for answer in many]
    bound = min(USERS, 1 / one.tokens_per_s / max(stages_s))
    gain = sum(rates) / one.tokens_per_s
    return (
        f"{division:8} T {1e3 / one.tokens_per_s:5.0f} ms  stages {' '.join(f'{s * 1e3:.0f}' for s in stages_s)} ms"
        f"  share {session.measured.network_share:4.2f}  one {one.tokens_per_s:6.3f}/s  four"
        f" {' '.join(f'{rate:6.3f}' for rate in rates)}  gain {gain:4.2f} of {bound:4.2f}: {gain / bound:5.1%}"
        f"  admits {admitted(session.fleet_json, division)} users of 256 tokens"
    )


def place(lab: Lab, directory: Path, share: float) -> None:
    """Members as fast, and as far apart, as makes this network share; from their next session on."""
    times, delay_ms = FLEETS[share]
    for name, gigabytes in MEMBERS.items():
        lab.delay(name, delay_ms)
        machine = {"bandwidth_bytes_per_s": gigabytes * times * 1e9, "flops_per_s": 1e12}
        pace_file(directory, name).write_text(json.dumps(machine))


def pace_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def measure_all(rows: list[tuple[float, str]], kept: Kept, tokens: int, until_s: float) -> None:
    """These rows, until time is up."""
    lab = Lab()
    for name in MEMBERS:
        lab.add(name, "public", rtt_ms=1)
    with lab, tempfile.TemporaryDirectory(prefix="kafila-") as directory:
        place(lab, Path(directory), rows[0][0])
        own = ["--model-dir", str(smollm2().parent), "--threads", "1", "--no-upnp", "--memory", MEMORY]
        agents = {name: [*own, "--pace", str(pace_file(Path(directory), name))] for name in MEMBERS}
        with LabFleet(lab, Path(directory), agents) as fleet:
            for share, division in rows:
                if time.monotonic() > until_s:
                    break
                place(lab, Path(directory), share)
                row = f"network share {share:4.2f}  {measure(lab, fleet, division, tokens)}"
                kept.add(key_of(share, division), row)
                print(row, flush=True)


def key_of(share: float, division: str) -> str:
    return f"{share} {division}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", type=float, nargs="+", choices=list(FLEETS), default=list(FLEETS))
    parser.add_argument("--divisions", nargs="+", default=["planner", "uniform", "memory"])
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    until_s = time.monotonic() + options.seconds
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    kept = Kept(FILE)
    rows = [(share, division) for share in options.shares for division in options.divisions]
    left = [row for row in rows if key_of(*row) not in kept.records]
    if left:
        measure_all(left, kept, options.tokens, until_s)
    else:
        print(f"all rows are in {FILE}; remove it to measure anew")


if __name__ == "__main__":
    main()
