"""docs/EVALUATION.md and its plots, written from what the laboratory has kept: ``python -m tests.lab.report``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import tables
from tests.lab.bars import bars
from tests.lab.figures import Record, Spread, chosen
from tests.lab.fleets import FLEETS, SMALL_ANCHOR, TWO_HOUSES, FleetFacts
from tests.lab.plots import draw
from tests.lab.scale_model import BYTES_STOOD_FOR

HEAD = f"""# Evaluation

Written by `make lab` from what it measured (`tests/lab`): no figure of ours is typed. Figures are medians,
with the range over sessions in brackets. *The paper* is "Kafila: Serving Large Language Models on a Trusted
Set of Heterogeneous Commodity Machines"; its figures stand beside ours.

## What is real, and what is emulated

Real: the rendezvous, the agents (a process each, all of it unmodified), NATs (Linux's own, in network
namespaces), session codes, reports, plans and their countersigning, QUIC, the ring, the relay, sampling,
HTTP.

Emulated: *how fast a member is.* A laptop's two cores cannot be five graphics cards, so each agent is started
with `--pace`: having really computed its stage it waits until the machine it stands for would be done, by
equation 2 with the bandwidth and overhead below, and its probe reports the same figures instead of measuring.
*How large a model is:* a scale model has the large model's blocks and as many bytes in a row of hidden
states, so that the same bytes cross the wire, and inner widths so narrow that one byte of weights and of
cache stands for {BYTES_STOOD_FOR:g}. *How far members are:* delays on their lines. *Time:* all of it, round
trips included, runs slower by the factor in the table, so that what this machine itself needs for a block or
a hop is small beside it; figures are of the machines stood for. Sessions open their edges over these longer
round trips; Table III measures that over the true ones. Not emulated: narrow uplinks, churn, heat.

One user is measured before all of them are. Where a bar is on each user's own rate (the planner's sessions of US
Central) one user is measured after them, too, and they answer for as long as both windows together.

So the stage times of emulated members test the planner's arithmetic and the whole way of a token, not the
probe; the probe is tested by the sessions at the end, in which a small model is really computed.
"""

FOUND = """## What the laboratory found in the product

- Members that import a model's classes for their first session all at once on two cores keep their event loops
  from running for longer than the 8 s after which an edge is given up: the session ends with "no answer for 8 s".
  On a machine of its own an agent takes a second for it. Here one process has imported them, and the agents are
  its forks.
- A host that created a session right after leaving one could get none: what the rendezvous had refused of the old
  session was taken for the answer about the new one. It no longer is.
- A plan's tokens per second count the reading of keys and values at half the declared context. Sessions here are
  short: the tables predict from the stages alone, and ask for advice at their own length.
"""


def kept(build: Path, name: str) -> Any:
    """What was kept under a name; None if nothing was."""
    file = build / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def write(build: Path, page: Path) -> None:
    """Write ``page`` and its plots from the files of ``build``."""
    every = (*FLEETS.values(), SMALL_ANCHOR, TWO_HOUSES)
    seen = [(fleet, list((kept(build, fleet.name) or {}).values())) for fleet in every]
    nat_pairs, unpaced = kept(build, "nat-pairs") or [], kept(build, "unpaced") or []
    plots = draw(seen, page.parent / "evaluation")
    parts = [HEAD, *_sections(seen, nat_pairs, unpaced, plots)]
    page.write_text("\n".join(part.rstrip() + "\n" for part in parts))


def _sections(
    seen: Sequence[tuple[FleetFacts, list[Record]]],
    nat_pairs: Sequence[Record],
    unpaced: Sequence[Record],
    plots: Sequence[str],
) -> list[str]:
    run = [(fleet, records) for fleet, records in seen if records]
    three = [(fleet, records) for fleet, records in run if fleet.name in FLEETS]
    parts = [_busy(run), "\n## Bars\n", _bars_table(three, nat_pairs, unpaced)]
    parts += ["## The fleets (Table II)\n", tables.fleets_table(fleet for fleet, _ in run)]
    if facts := _model_facts(run):
        parts += [
            "How true the scale models are, as ratios to the large models:\n",
            tables.scale_models_table(facts),
        ]
    if nat_pairs:
        parts += [
            "## Pairs of NATs (Table III)\n",
            "Predicted and actual path, and the time until the edge was open.",
        ]
        parts += ["", tables.nat_table(nat_pairs)]
    for fleet, records in three:
        parts += _fleet_sections(fleet, records)
    parts += [f"![{name}](evaluation/{name})" for name in plots]
    parts += ["## Edges\n", tables.edges_table(three)]
    for fleet, records in run:
        if chosen(records, purpose="order"):
            parts += [f"## Ordering by cost or by count: {fleet.title}\n", tables.order_table(fleet, records)]
        if chosen(records, purpose="anchor"):
            parts += [f"## Head pinned: {fleet.title}\n", tables.anchor_table(records)]
    parts += ["## The cost model\n", tables.errors_table(three, unpaced)]
    if unpaced:
        parts += ["## Overhead, the ground of the anchor's margin of 5 %\n", tables.overhead_table(unpaced)]
    return [*parts, FOUND]


def _busy(seen: Sequence[tuple[FleetFacts, list[Record]]]) -> str:
    """How far the laboratory had the machine to itself."""
    loads = tuple(record["load"] for _, records in seen for record in records)
    if not loads:
        return "Nothing has been run yet.\n"
    return (
        f"While these sessions ran, {Spread(loads).show(1)} programs at a time wanted this machine's {os.cpu_count()}\n"
        "cores (its load average; the laboratory alone makes 1 to 2). Whatever is above the number of cores stretches\n"
        "stages and hops: `make lab` is meant for a machine that does nothing else.\n"
    )


def _fleet_sections(fleet: FleetFacts, records: list[Record]) -> list[str]:
    parts = [f"## {fleet.title}: divisions (Table IV)\n", tables.divisions_table(fleet, records)]
    parts += [
        f"\nAll {fleet.concurrency} users against one (Figure 2):\n",
        tables.users_table(fleet, records),
    ]
    for purpose, title, make in (
        ("refusal", "What a uniform division cannot hold", lambda: tables.refusals_table(fleet, records)),
        (
            "objective",
            "`--objective latency` beside the default",
            lambda: tables.objective_table(fleet, records),
        ),
        (
            "advice",
            "Advice against truth: the session without a member",
            lambda: tables.advice_table(fleet, records),
        ),
        ("tier", "Three tiers", lambda: tables.tiers_table(fleet, records)),
    ):
        if chosen(records, purpose=purpose):
            parts += [f"\n{title}:\n", make()]
    return parts


def _bars_table(
    seen: Sequence[tuple[FleetFacts, list[Record]]], nat_pairs: Sequence[Record], unpaced: Sequence[Record]
) -> str:
    return tables.table(
        ["figure", "paper", "bar", "ours", "", "limit, where it is not met"],
        (
            (
                bar.what,
                bar.paper,
                bar.bar,
                bar.ours,
                bar.verdict,
                "" if bar.met else bar.limit,
            )
            for bar in bars(seen, nat_pairs, unpaced)
        ),
    )


def _model_facts(seen: Sequence[tuple[FleetFacts, list[Record]]]) -> dict[str, Any]:
    """Each model's sizes as the sessions' charters had them, in bytes of the large model."""
    found: dict[str, Any] = {}
    for _, records in seen:
        for record in records:
            model = (record["facts"] or {}).get("model")
            if model:
                scaled = ("block_bytes", "head_bytes", "kv_bytes_per_token_per_block")
                found[model["name"]] = model | {name: model[name] * BYTES_STOOD_FOR for name in scaled}
    return dict(sorted(found.items()))


def main() -> None:
    """Write the page of this checkout."""
    root = Path(__file__).resolve().parents[2]
    write(root / "build/lab", root / "docs/EVALUATION.md")


if __name__ == "__main__":
    main()
