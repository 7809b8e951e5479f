"""The bars that published figures set for ours, each judged from records; the limit says why one is not met."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.figures import Record, Served, imbalance, relative_errors, served, spread, utilisation
from tests.lab.fleets import FleetFacts
from tests.lab.tables import unpaced_errors

_CLOSE = 1.05
Seen = Sequence[tuple[FleetFacts, Sequence[Record]]]


@dataclass(frozen=True)
class Bar:
    """``limit`` is what stands between ours and the bar, in figures; ``at_limit`` says that it is reached."""

    what: str
    paper: str
    bar: str
    ours: str
    met: bool
    limit: str = ""
    at_limit: bool = False

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "met" if self.met else "at the limit" if self.at_limit else "**not met**"


def bars(seen: Seen, nat_pairs: Sequence[Record], unpaced: Sequence[Record]) -> Iterator[Bar]:
    """All that can be judged from what has been run."""
    for fleet, records in seen:
        for model in fleet.models:
            by_division = {
                division: served(fleet, records, purpose="division", model=model, division=division)
                for division in ("planner", "memory", "uniform")
            }
            if by_division["planner"]:
                yield from _division_bars(fleet, model, by_division)
    yield from _error_bars(seen, unpaced)
    yield from _setup_bars(nat_pairs)


def _division_bars(fleet: FleetFacts, model: str, sessions: Mapping[str, list[Served]]) -> Iterator[Bar]:
    ours, name = sessions["planner"], f"{fleet.title}, {model}"
    best = ours[0].predicted_s
    reached = spread(ours, lambda s: s.imbalance)
    yield Bar(
        f"imbalance, {name}",
        *("1.4–1.8", "≤ 1.3", reached.show(), reached.median <= 1.3),
        f"whole blocks and rooms allow {imbalance(best):.2f} at the shortest bottleneck",
        at_limit=reached.median <= imbalance(best) * _CLOSE,
    )
    busy = spread(ours, lambda s: s.utilisation)
    share = busy.median / utilisation(best)
    yield Bar(
        f"utilisation of what whole blocks allow, {name}",
        *(
            "75–87 % in all",
            "≥ 90 %",
            f"{share:.0%} ({busy.median:.0%} of {utilisation(best):.0%})",
            share >= 0.9,
        ),
    )
    for other, paper, bar in (("uniform", "5.2 ×", 5.2), ("memory", "3.0 ×", 3.0)):
        if sessions[other]:
            yield _shorter(name, other, paper, bar, sessions)
    if fleet.name == "lan":
        yield from _lan_bars(name, sessions)
    if fleet.judges_own_rate:
        change = spread(ours, lambda s: s.own_rate_change)
        yield Bar(
            f"each user's own rate falls by, {name}",
            *("≤ 1.0 %", "≤ 1 %", f"{change.show(1, 100)} %", change.median <= 0.01),
            "the users' hops share two cores here: what one computes delays the others' packets",
        )
    yield _full(name, fleet, ours)


def _median_of(sessions: Sequence[Served], figure: Any) -> float:
    return spread(sessions, figure).median


def _shorter(name: str, other: str, paper: str, bar: float, sessions: Mapping[str, list[Served]]) -> Bar:
    ratio = _median_of(sessions[other], lambda s: s.bottleneck_s) / _median_of(
        sessions["planner"], lambda s: s.bottleneck_s
    )
    planned = max(sessions[other][0].predicted_s) / max(sessions["planner"][0].predicted_s)
    return Bar(
        f"bottleneck shorter than {other}, {name}",
        *(f"up to {paper}", f"≥ {bar} ×", f"{ratio:.1f} ×", ratio >= bar),
        f"the planner's is the shortest there is: these rooms and speeds allow {planned:.1f} ×",
        at_limit=ratio * _CLOSE >= planned,
    )


def _lan_bars(name: str, sessions: Mapping[str, list[Served]]) -> Iterator[Bar]:
    for other, paper, bar in (("uniform", "1.56 ×", 1.56), ("memory", "1.25 ×", 1.25)):
        if sessions[other]:
            ratio = _median_of(sessions["planner"], lambda s: s.one_user) / _median_of(
                sessions[other], lambda s: s.one_user
            )
            yield Bar(
                f"one user against {other}, {name}", paper, f"≥ {bar} ×", f"{ratio:.2f} ×", ratio >= bar
            )
    if sessions["uniform"]:
        lead = _median_of(sessions["planner"], lambda s: s.many_users) / _median_of(
            sessions["uniform"], lambda s: s.many_users
        )
        yield Bar(f"lead over uniform under load, {name}", "3.2 ×", "≥ 3.2 ×", f"{lead:.1f} ×", lead >= 3.2)


def _full(name: str, fleet: FleetFacts, ours: Sequence[Served]) -> Bar:
    reached = spread(ours, lambda s: s.gain / s.possible_gain)
    alone, loaded = (_median_of(ours, figure) * 1e3 for figure in (_waiting_s, _loaded_waiting_s))
    return Bar(
        f"{fleet.concurrency} users of min({fleet.concurrency}, T/τ), {name}",
        *("4.0 of 4", "≥ 0.95", reached.show(), reached.median >= 0.95),
        f"outside stages a token spends {loaded:.1f} ms then, alone {alone:.1f}: all hops are this machine's",
    )


def _waiting_s(session: Served) -> float:
    return session.waiting_s


def _loaded_waiting_s(session: Served) -> float:
    return session.loaded_waiting_s


def _error_bars(seen: Seen, unpaced: Sequence[Record]) -> Iterator[Bar]:
    paced = relative_errors(
        session
        for fleet, records in seen
        for session in served(fleet, records)
        if session.record["plan"]["tier"] == "cost-model"
    )
    for what, errors in (("emulated stages", paced), ("stages really computed", unpaced_errors(unpaced))):
        if errors:
            middle = statistics.median(errors)
            yield Bar(
                f"cost model's median error, {len(errors)} {what}",
                *("18 %", "≤ 8 %", f"{middle:.1%}", middle <= 0.08),
                "three agents share two cores with whatever else this machine does",
            )


def _setup_bars(nat_pairs: Sequence[Record]) -> Iterator[Bar]:
    direct = [row["took_s"] - 3 * row["rtt_s"] for row in nat_pairs if row["actual"] == "direct"]
    relayed = [row["took_s"] for row in nat_pairs if row["actual"] == "relayed"]
    if direct:
        middle = statistics.median(direct)
        yield Bar(
            "a direct edge opens", "1.26–1.29 s", "≤ 0.5 s + 3 RTT", f"{middle:+.2f} s + 3 RTT", middle <= 0.5
        )
    if relayed:
        middle = statistics.median(relayed)
        yield Bar("a relayed edge opens", "20.8 s", "≤ 3 s", f"{middle:.2f} s", middle <= 3.0)
    if nat_pairs:
        wrong = sum(row["predicted"] != row["actual"] for row in nat_pairs)
        yield Bar(
            "paths of pairs predicted wrongly", "2 of 9", "none", f"{wrong} of {len(nat_pairs)}", wrong == 0
        )
