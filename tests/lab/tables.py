"""The tables of docs/EVALUATION.md, each from records alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from tests.lab import paper
from tests.lab.figures import (
    Record,
    Served,
    Spread,
    chosen,
    imbalance,
    relative_errors,
    served,
    spread,
    utilisation,
)
from tests.lab.fleets import FleetFacts
from tests.lab.nat_pairs import KINDS
from tests.lab.planned import advice_of, head_pinned_fits, orders_not_optimal, users_admitted
from tests.lab.scale_model import MODELS
from tests.lab.trials import DIVISIONS, TIERS


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def fleets_table(fleets: Iterable[FleetFacts]) -> str:
    """Table II: what is emulated."""
    return table(
        ["fleet", "member", "stands for", "GB/s", "GB", "NAT", "ms to the rendezvous", "time runs"],
        (
            (
                fleet.title,
                machine.name,
                machine.device,
                f"{machine.bandwidth_gb_per_s:g}",
                f"{machine.memory_gb:g}",
                machine.nat if not machine.lan else f"on the LAN of {machine.lan}",
                f"{machine.rtt_ms:g}" if not machine.lan else "",
                f"{fleet.time_scale:g} × slower",
            )
            for fleet in fleets
            for machine in fleet.machines
        ),
    )


def nat_table(rows: Sequence[Record]) -> str:
    """Table III: predicted, then actual, then the seconds to the open edge."""
    cells = {(row["one"], row["other"]): row for row in rows}

    def cell(one: str, other: str) -> str:
        row = cells[one, other]
        verdict = (
            row["actual"] if row["predicted"] == row["actual"] else f"**{row['predicted']}, {row['actual']}**"
        )
        was_wrong = " (the paper expected a relay)" if (one, other) in paper.MISPREDICTED else ""
        return f"{verdict} {row['took_s']:.2f} s{was_wrong}"

    names = {"addrfilter": "ordinary, filters by address", "ordinary": "ordinary, by address and port"}
    return table(
        ["dials \\ dialled", *(names.get(kind, kind) for kind in KINDS)],
        ([names.get(one, one), *(cell(one, other) for other in KINDS)] for one in KINDS),
    )


def divisions_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """Table IV: medians with ranges."""
    stages = ["bottleneck, ms", "imbalance", "the plan's", "utilisation, %", "the plan's", "network share, %"]
    rows = []
    for model in fleet.models:
        for division in DIVISIONS:
            wanted = {"purpose": "division", "model": model, "division": division}
            if chosen(records, **wanted):
                rows.append((model, division, *_division_row(served(fleet, records, **wanted))))
    return table(["model", "division", "sessions", *stages, "one user, tokens/s", "predicted"], rows)


def _division_row(sessions: list[Served]) -> list[str]:
    if not sessions:
        return ["refused", *[""] * 8]
    planned = sessions[0].predicted_s
    return [
        str(len(sessions)),
        spread(sessions, lambda s: s.bottleneck_s).show(1, 1e3),
        spread(sessions, lambda s: s.imbalance).show(),
        f"{imbalance(planned):.2f}",
        spread(sessions, lambda s: s.utilisation).show(0, 100),
        f"{utilisation(planned):.0%}".rstrip("%"),
        spread(sessions, lambda s: s.network_share).show(0, 100),
        spread(sessions, lambda s: s.one_user).show(),
        spread(sessions, lambda s: s.predicted_one_user).show(),
    ]


def users_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """Figure 2 as a table: all users against one."""
    rows = []
    for model in fleet.models:
        for division in DIVISIONS:
            sessions = served(fleet, records, purpose="division", model=model, division=division)
            if sessions:
                rows.append(
                    (
                        *(model, division, spread(sessions, lambda s: s.many_users).show()),
                        spread(sessions, lambda s: s.gain).show(),
                        spread(sessions, lambda s: s.possible_gain).show(),
                        paper.GAIN.get(fleet.name, {}).get(division, ""),
                        spread(sessions, lambda s: s.own_rate_change).show(1, 100),
                        users_admitted(sessions[0].record["facts"], division),
                        spread(sessions, lambda s: s.record["load"]).show(1),
                    )
                )
    headers = ["model", "division", f"{fleet.concurrency} users, tokens/s", "× one user", "possible", "paper"]
    return table([*headers, "each user's rate falls by, %", "users admitted", "load average"], rows)


def refusals_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """Sessions that a division cannot form."""
    rows = []
    for record in records:
        if not record["formed"]:
            trial = record["trial"]
            small = ", ".join(one["member"] for one in record["plan"].get("refused", ()))
            rows.append((trial["model"], trial["division"], f"refused, names {small}"))
        elif record["trial"]["purpose"] == "refusal":
            rows.append((record["trial"]["model"], record["trial"]["division"], "serves"))
    return table(["model", "division", "session"], dict.fromkeys(rows))


def edges_table(fleets: Iterable[tuple[FleetFacts, Sequence[Record]]]) -> str:
    """How edges came about, and what crossed them."""
    rows = []
    for fleet, records in fleets:
        sessions = served(fleet, records, purpose="division")
        if not sessions:
            continue
        edges = [edge for session in sessions for edge in session.record["edges"]]
        direct = [edge["actual"] == "direct" for edge in edges]
        as_planned = [edge["actual"] == edge["predicted"] for edge in edges]
        checked, dearer = orders_not_optimal(records)
        rows.append(
            (
                *(fleet.title, f"{statistics.mean(direct):.0%}", f"{statistics.mean(as_planned):.0%}"),
                spread(sessions, lambda s: s.relayed_share).show(0, 100),
                *(_setups(sessions, path) for path in ("direct", "relayed")),
                f"{checked - dearer} of {checked}",
            )
        )
    paths = ["edges direct", "as predicted", "activation bytes relayed, %"]
    setups = ["direct edge open after, s", "relayed, s"]
    return table(["fleet", *paths, *setups, "ring cheapest of all cycles"], rows)


def _setups(sessions: Iterable[Served], path: str) -> str:
    seconds = [
        session.record["edge_setups_s"][edge["from"]][edge["to"]]
        for session in sessions
        for edge in session.record["edges"]
        if edge["actual"] == path
    ]
    return Spread(tuple(seconds)).show() if seconds else "–"


def errors_table(fleets: Iterable[tuple[FleetFacts, Sequence[Record]]], unpaced: Sequence[Record]) -> str:
    """The cost model against measurement."""
    rows = []
    for fleet, records in fleets:
        errors = relative_errors(_priced(fleet, records))
        if errors:
            rows.append((fleet.title, *_error_row(errors)))
    real = unpaced_errors(unpaced)
    if real:
        rows.append(("three agents that really compute SmolLM2-135M here", *_error_row(real)))
    return table(["sessions", "stages", "median error, %", "90th percentile, %", "paper"], rows)


def _priced(fleet: FleetFacts, records: Sequence[Record]) -> list[Served]:
    return [s for s in served(fleet, records) if s.record["plan"]["tier"] == "cost-model"]


def unpaced_errors(unpaced: Iterable[Record]) -> list[float]:
    """Of stages that were really computed."""
    stages = [stage for session in unpaced for stage in session["stages"]]
    return [abs(stage["predicted_s"] - stage["measured_s"]) / stage["measured_s"] for stage in stages]


def _error_row(errors: Sequence[float]) -> tuple[object, ...]:
    ninetieth = sorted(errors)[int(0.9 * (len(errors) - 1))]
    return len(errors), f"{statistics.median(errors) * 100:.1f}", f"{ninetieth * 100:.1f}", "18 (165 stages)"


def overhead_table(unpaced: Sequence[Record]) -> str:
    """What of a stage is overhead, and how far that strays from run to run: the ground of the anchor's margin."""
    by_member: dict[str, list[Record]] = {}
    for session in unpaced:
        for stage in session["stages"]:
            if stage["facts"]["overhead_s"] is not None:
                by_member.setdefault(stage["member"], []).append(stage)
    rows = []
    for member, stages in sorted(by_member.items()):
        overheads = [stage["facts"]["overhead_s"] for stage in stages]
        shares = [stage["facts"]["overhead_s"] / stage["measured_s"] for stage in stages]
        stray = (max(overheads) - min(overheads)) / statistics.median(stage["measured_s"] for stage in stages)
        rows.append(
            (
                *(member, Spread(tuple(overheads)).show(0, 1e6)),
                *(Spread(tuple(shares)).show(1, 100), f"{stray * 100:.1f}"),
            )
        )
    return table(
        ["member", "overhead o, µs", "share of its stage, %", "its spread over runs, % of the stage"], rows
    )


def objective_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """One user under `--objective latency` beside the default."""
    rows = []
    for objective, purpose in (("throughput", "division"), ("latency", "objective")):
        wanted = {"purpose": purpose, "division": "planner", "model": fleet.models[0]}
        sessions = served(fleet, records, objective=objective, **wanted)
        if sessions:
            rows.append(
                (
                    *(objective, " – ".join(sessions[0].record["plan"]["ring"])),
                    spread(sessions, lambda s: s.one_user).show(),
                    spread(sessions, lambda s: s.many_users).show(),
                )
            )
    return table(["objective", "ring", "one user, tokens/s", f"{fleet.concurrency} users"], rows)


def advice_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """What the plan said of the session without a member, and that session."""
    base = served(fleet, records, purpose="division", division="planner", model=fleet.models[0])
    if not base:
        return ""
    rows = []
    for said in advice_of(base[0].record, fleet.tokens):
        for record in chosen(records, purpose="advice", without=said.member):
            real = Served(record, fleet.time_scale) if record["formed"] else None
            told = said.tokens_per_s_one_user
            rows.append(
                (
                    said.member,
                    f"{told * fleet.time_scale:.2f}" if told else "does not fit",
                    f"{real.predicted_one_user:.2f}" if real else "",
                    f"{real.one_user:.2f}" if real else "refused",
                )
            )
    return table(["without", "advice, tokens/s", "with the edges measured", "really run"], rows)


def tiers_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """One fleet planned with ever less known."""
    model = fleet.models[0]
    found = {"cost-model": served(fleet, records, purpose="division", division="planner", model=model)[:1]}
    found |= {
        tier: served(fleet, records, purpose="tier", hidden=list(fields)) for tier, fields in TIERS.items()
    }
    return table(
        [
            "tier",
            "blocks",
            "bottleneck, ms",
            "utilisation, %",
            "one user, tokens/s",
            f"{fleet.concurrency} users",
        ],
        (
            (
                *(tier, ", ".join(f"{s['member']} {s['blocks']}" for s in session.record["stages"])),
                *(f"{session.bottleneck_s * 1e3:.1f}", f"{session.utilisation * 100:.0f}"),
                *(f"{session.one_user:.2f}", f"{session.many_users:.2f}"),
            )
            for tier, sessions in found.items()
            for session in sessions
        ),
    )


def order_table(fleet: FleetFacts, records: Sequence[Record]) -> str:
    """Ordered by cost, and by the count of relayed edges, which a member without a round trip makes it."""
    rows = []
    for name, hidden in (("by cost", []), ("by count", ["rendezvous_rtt_s"])):
        sessions = served(fleet, records, purpose="order", hidden=hidden)
        if sessions:
            plan = sessions[0].record["plan"]
            rows.append(
                (
                    *(name, " – ".join(plan["ring"]), plan["relayed_edges"]),
                    spread(sessions, _hops_s).show(0, 1e3),
                    spread(sessions, lambda s: s.one_user).show(),
                )
            )
    return table(
        ["order", "ring", "relayed edges", "half round trips measured, ms", "one user, tokens/s"], rows
    )


def _hops_s(session: Served) -> float:
    return sum(edge["rtt_s"] for edge in session.record["edges"]) / 2 / session.time_scale


def anchor_table(records: Sequence[Record]) -> str:
    """A head pinned where the session was opened, and the planner's."""
    rows = [
        (
            record["facts"]["anchor"],
            "serves" if head_pinned_fits(record["facts"]) else "refused",
            f"serves, head {record['plan']['head']}" if record["formed"] else "refused",
        )
        for record in chosen(records, purpose="anchor")
    ]
    return table(["anchor", "head pinned to it", "the planner's head"], rows)


def scale_models_table(facts: dict[str, Any]) -> str:
    """How true scale models are: ``facts`` by model's name as the product read them."""
    rows = []
    for name, read in facts.items():
        model = MODELS[name]
        rows.append(
            (
                *(name, read["blocks"], 2 * model.hidden),
                f"{read['block_bytes'] / model.block_bytes:.4f}",
                f"{read['head_bytes'] / model.head_bytes:.4f}",
                f"{read['kv_bytes_per_token_per_block'] / model.kv_bytes_per_token:.4f}",
            )
        )
    return table(
        [
            "model",
            "blocks",
            "bytes of a row on the wire",
            "bytes of a block",
            "of the head",
            "of a token's cache",
        ],
        rows,
    )
