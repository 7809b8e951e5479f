"""Real agents in every pair of places: predicted, actual, time to connect (`make natlab-table`; some minutes, root).

Each pair forms a session of its own, and serves a tiny model. The time is from the first of the two that has the plan
to the last that has the edge, by one machine's clock. Exit status 1 if a prediction was wrong or a pair did not serve.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kafila_proto import agent_pb2 as pb
from tests.agent.head.models import TINY_TEMPLATE, give_tokenizer
from tests.checkpoints import make_checkpoint
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab, why_not

CLASSES = {"permissive": 20, "addrfilter": 60, "ordinary": 115, "restrictive": 80}
Pair = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """One session of two. ``rtt_s`` is that of the edge; ``outcome`` what became of the session."""

    pair: Pair
    predicted: str
    actual: str
    took_s: float
    rtt_s: float
    outcome: str

    def __str__(self) -> str:
        wrong = "" if self.predicted == self.actual else "   WRONG"
        figures = f"{self.took_s:7.2f} s {self.rtt_s * 1e3:7.1f} ms" if self.actual else " " * 20
        return f"{self.pair[0]:12} {self.pair[1]:12} {self.predicted:9} {self.actual:9}{figures}  {self.outcome}{wrong}"


def classes() -> tuple[Lab, list[Pair]]:
    """Every ordered pair of the paper's classes, the ordinary one in both its kinds."""
    lab = Lab()
    for kind, rtt_ms in CLASSES.items():
        for copy in "12":
            lab.add(kind + copy, kind, rtt_ms=rtt_ms)
    return lab, [(f"{one}1", f"{other}2") for one in CLASSES for other in CLASSES]


def carriers() -> tuple[Lab, list[Pair]]:
    """Homes behind one carrier's NAT, and LANs with and without hairpin."""
    lab = Lab()
    pairs = []
    for name, kind, hairpins in (
        ("cgn", "ordinary", False),
        ("hcgn", "ordinary", True),
        ("rcgn", "restrictive", True),
    ):
        lab.add(name, kind, rtt_ms=30, hairpins=hairpins, hosts=[])
        for copy in "12":
            lab.add(f"{name}-{copy}", "permissive" if name == "rcgn" else "ordinary", behind=name)
        pairs.append((f"{name}-1", f"{name}-2"))
    for name, hairpins in (("lan", False), ("hlan", True)):
        lab.add(f"{name}1", "restrictive", rtt_ms=40, hairpins=hairpins)
        lab.add_to_lan(f"{name}2", f"{name}1")
        pairs.append((f"{name}1", f"{name}2"))
    return lab, pairs


def places() -> tuple[Lab, list[Pair]]:
    """Public hosts, firewalls, rarer NATs, a NAT behind a NAT, IPv6, and no UDP."""
    lab = Lab()
    for name, rtt_ms in (("public", 20), ("firewall", 30), ("sym_adf", 40), ("sym_eif", 50)):
        lab.add(name, name, rtt_ms=rtt_ms)
    lab.add("front", "ordinary", rtt_ms=40, hosts=[])
    lab.add("double", "ordinary", behind="front")
    lab.add("strict", "restrictive", rtt_ms=20)
    lab.add("six", "restrictive", rtt_ms=30, families=(6,))
    for copy in "12":
        lab.add(f"dual{copy}", "restrictive", rtt_ms=30, families=(4, 6))
        lab.add(f"dead{copy}", "ordinary", rtt_ms=30, families=(4, 6), extra_rule="meta nfproto ipv6 drop")
    lab.add("blocked", "blocked", rtt_ms=20)
    return lab, [
        *(("public", "strict"), ("firewall", "strict"), ("public", "firewall"), ("sym_adf", "firewall")),
        *(("sym_adf", "strict"), ("sym_eif", "strict"), ("double", "firewall"), ("double", "strict")),
        *(
            ("six", "dual1"),
            ("dual1", "dual2"),
            ("dead1", "dead2"),
            ("dead1", "strict"),
            ("public", "blocked"),
        ),
    ]


def run(fleet: LabFleet, pair: Pair, model: Path) -> Row:
    """One pair's session, from the code to an answer."""
    logged = {name: len(fleet.events(name)) for name in pair}
    session = fleet.session(pair, model).session
    if session.state != pb.SessionStatus.SERVING:
        return Row(pair, "", "", 0.0, 0.0, f"refused: {session.reason}")
    plan = json.loads(session.plan_json)
    news = [event for name in pair for event in fleet.events(name)[logged[name] :]]
    planned = min(_at(event) for event in news if event.get("state") == "connecting")
    opened = [event for event in news if event["event"] == "edge open"]
    edges = [edge for member in session.members for edge in member.edges]
    count, _ = fleet.ask(plan["head"], 4)
    fleet.leave(pair)
    (predicted,) = {edge["path"] for edge in plan["edges"]}
    (actual,) = {event["path"] for event in opened}
    took_s = max(map(_at, opened)) - planned
    rtt_s = min((edge.rtt_s for edge in edges if edge.rtt_s), default=0.0)
    return Row(pair, predicted, actual, took_s, rtt_s, f"served {count} tokens")


def _at(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def rows(model: Path, directory: Path, batches: Sequence[str]) -> Iterator[Row]:
    """All of them, batch by batch: so many agents at once as one machine holds."""
    for make in (classes, carriers, places):
        if batches and make.__name__ not in batches:
            continue
        lab, pairs = make()
        names = sorted({name for pair in pairs for name in pair})
        options = ["--model-dir", str(model.parent), "--threads", "1", "--no-upnp"]
        (directory / make.__name__).mkdir()
        with lab, LabFleet(lab, directory / make.__name__, dict.fromkeys(names, options)) as fleet:
            for pair in pairs:
                row = run(fleet, pair, model)
                print(row, flush=True)
                yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("batches", nargs="*", choices=["classes", "carriers", "places", []])
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"no laboratory here: {reason}")
    print("host         joiner       predicted actual   from the plan   round trip")
    with tempfile.TemporaryDirectory() as name:
        model = give_tokenizer(
            make_checkpoint(Path(name, "made"), "llama"), Path(name, "models", "tiny"), template=TINY_TEMPLATE
        )
        done = list(rows(model, Path(name), options.batches))
    served = [row for row in done if row.actual]
    direct = [row.took_s - 3 * row.rtt_s for row in served if row.actual == "direct"]
    relayed = [row.took_s for row in served if row.actual == "relayed"]
    if direct:
        print(f"direct: open after 3 round trips and a median of {statistics.median(direct):.2f} s")
    if relayed:
        print(f"relayed: open after {max(relayed):.2f} s at most")
    wrong = [row for row in served if row.predicted != row.actual]
    refused = [row.pair for row in done if not row.actual and "blocked" not in row.pair]
    print(
        f"{len(served)} of {len(done)} served, {len(wrong)} predictions wrong, {len(refused)} wrongly refused"
    )
    sys.exit(bool(wrong or refused))


if __name__ == "__main__":
    main()
