"""Four users against one on emulated fleets: does the ring carry what its bottleneck allows?

    python -m tests.bench.users [--shares 0.12 0.5 0.9] [--divisions planner uniform memory] [--tokens 40]

Three unequal members stand for slower machines (``kafila-agent --pace``) and hold SmolLM2; the hops are as long as the
network share asks for. One user's rate gives the circuit T, the stages' own clocks the bottleneck tau; four users at
once can have min(4, T / tau) times one user's rate, and that is the bound. Emulated time is slow enough for hops, real
computing and five processes on two cores to hide in it. Guessing ahead is off. Needs what tests/natlab needs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import Refusal
from kafila_proto import agent_pb2 as pb
from tests.bench.speculation import smollm2
from tests.natlab.asking import ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

USERS = 4
MEMORY = "1G"
# By network share: the members' bandwidths in GB/s, and the delay of a hop.
FLEETS = {
    0.12: ({"desk": 2.0, "laptop": 1.0, "tower": 0.5}, 10.0),
    0.5: ({"desk": 2.0, "laptop": 1.0, "tower": 0.5}, 77.0),
    0.9: ({"desk": 4.0, "laptop": 2.0, "tower": 1.0}, 345.0),
}
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


def measure(lab: Lab, fleet: LabFleet, members: list[str], division: str, options: argparse.Namespace) -> str:
    status = fleet.serve(
        members,
        smollm2(),
        dtype="bfloat16",
        context_tokens=256,
        concurrency=USERS,
        division=division,
    )
    warm_up = body_of(status, "Hello", 4)
    one, *_ = ask(lab, status.name, status.api_url, [body_of(status, QUESTIONS[0], options.tokens), warm_up])
    many = ask(
        lab,
        status.name,
        status.api_url,
        [body_of(status, question, options.tokens) for question in QUESTIONS],
        at_once=USERS,
    )
    status = fleet.agent(status.name).GetStatus(pb.StatusRequest())
    bottleneck_s = max(member.measured_stage_s for member in status.session.members)
    rates = [answer.tokens_per_s for answer in many]
    bound = min(USERS, 1 / one.tokens_per_s / bottleneck_s)
    gain = sum(rates) / one.tokens_per_s
    users = admitted(status.session.fleet_json, division)
    fleet.leave(members)
    return (
        f"{division:8} T {1e3 / one.tokens_per_s:6.0f} ms  tau {bottleneck_s * 1e3:4.0f} ms  measured share"
        f" {status.session.measured.network_share:4.2f}  one {one.tokens_per_s:5.2f}/s  four"
        f" {' '.join(f'{rate:5.2f}' for rate in rates)}  gain {gain:4.2f} of {bound:4.2f}: {gain / bound:5.1%}"
        f"  admits {users} users of 256 tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", type=float, nargs="+", default=list(FLEETS))
    parser.add_argument("--divisions", nargs="+", default=["planner", "uniform", "memory"])
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    for share in options.shares:
        bandwidths, delay_ms = FLEETS[share]
        lab = Lab()
        for name in bandwidths:
            lab.add(name, "public", rtt_ms=delay_ms)
        with lab, tempfile.TemporaryDirectory(prefix="kafila-") as directory:
            agents = {}
            for name, gigabytes in bandwidths.items():
                pace = Path(directory, f"{name}.json")
                pace.write_text(json.dumps({"bandwidth_bytes_per_s": gigabytes * 1e9, "flops_per_s": 1e12}))
                agents[name] = ["--model-dir", str(smollm2().parent), "--threads", "1", "--no-upnp"]
                agents[name] += ["--pace", str(pace), "--memory", MEMORY]
            with LabFleet(lab, Path(directory), agents) as fleet:
                for division in options.divisions:
                    line = measure(lab, fleet, list(bandwidths), division, options)
                    print(f"network share {share:4.2f}  {line}", flush=True)


if __name__ == "__main__":
    main()
