"""From what was seen to figures of the machines that are stood for. Pure: records in, numbers out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.fleets import FleetFacts

Record = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """Several sessions' values of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def show(self, digits: int = 2, factor: float = 1.0) -> str:
        """The median with the range, as a table has it."""
        low, middle, high = (
            f"{v * factor:.{digits}f}" for v in (min(self.values), self.median, max(self.values))
        )
        return middle if low == high else f"{middle} ({low}–{high})"


@dataclass(frozen=True)
class Served:
    """One session that served, in seconds of the machines stood for."""

    record: Record
    time_scale: float

    @property
    def stages_s(self) -> list[float]:
        """Measured compute of each stage."""
        return [stage["measured_s"] / self.time_scale for stage in self.record["stages"]]

    @property
    def predicted_s(self) -> list[float]:
        """The plan's."""
        return [stage["predicted_s"] / self.time_scale for stage in self.record["stages"]]

    @property
    def bottleneck_s(self) -> float:
        """The slowest stage's."""
        return max(self.stages_s)

    @property
    def imbalance(self) -> float:
        """Slowest by fastest stage."""
        return imbalance(self.stages_s)

    @property
    def utilisation(self) -> float:
        """Mean by slowest stage."""
        return utilisation(self.stages_s)

    @property
    def one_user(self) -> float:
        """Tokens per second of a single user: over all windows, which are of as many tokens each."""
        return statistics.harmonic_mean(a["tokens_per_s"] for a in self.record["one_user"]) * self.time_scale

    @property
    def circuit_s(self) -> float:
        """A single user's seconds per token."""
        return 1 / self.one_user

    @property
    def many_users(self) -> float:
        """Tokens per second of all users together: each one's own rate, after its first token, added up.

        Tokens that come within the time while all are answered would be a part too few of so short answers: what is
        under way at its beginning and its end. This may be up to 1 % too much of a full ring: who begins first and who
        ends last is alone for a moment.
        """
        return sum(user["tokens_per_s"] for user in self.record["many_users"]["users"]) * self.time_scale

    @property
    def gain(self) -> float:
        """All users together against one."""
        return self.many_users / self.one_user

    @property
    def possible_gain(self) -> float:
        """What the slowest stage leaves room for: the users, or the circuit by the bottleneck."""
        return min(len(self.record["many_users"]["users"]), self.circuit_s / self.bottleneck_s)

    @property
    def waiting_s(self) -> float:
        """What a single user's token spends in no stage."""
        return self.circuit_s - sum(self.stages_s)

    @property
    def loaded_waiting_s(self) -> float:
        """The same of a token of several users': in flight, and behind the others' tokens."""
        users = self.record["many_users"]
        stages_s = sum(stage["measured_s"] for stage in users["stages"]) / self.time_scale
        return len(users["users"]) / self.many_users - stages_s

    @property
    def own_rate_change(self) -> float:
        """How much slower a user of several is than one alone."""
        rates = [user["tokens_per_s"] for user in self.record["many_users"]["users"]]
        return 1 - statistics.mean(rates) * self.time_scale / self.one_user

    @property
    def network_share(self) -> float:
        """Of a single user's token."""
        return self.record["network_share"]

    @property
    def predicted_one_user(self) -> float:
        """Tokens per second by the plan's stages and the edges' measured round trips."""
        hops_s = sum(edge["rtt_s"] for edge in self.record["edges"]) / 2 / self.time_scale
        return 1 / (sum(self.predicted_s) + hops_s)

    @property
    def relayed_share(self) -> float:
        """Of the activation bytes that crossed an edge."""
        edges = self.record["edges"]
        relayed = sum(edge["sent_bytes"] for edge in edges if edge["actual"] == "relayed")
        return relayed / sum(edge["sent_bytes"] for edge in edges)


def imbalance(stages_s: Sequence[float]) -> float:
    """Slowest by fastest."""
    return max(stages_s) / min(stages_s)


def utilisation(stages_s: Sequence[float]) -> float:
    """Mean by slowest."""
    return statistics.mean(stages_s) / max(stages_s)


def chosen(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """The records of trials that have these values."""
    return [r for r in records if all(r["trial"][name] == value for name, value in wanted.items())]


def served(fleet: FleetFacts, records: Iterable[Record], **wanted: Any) -> list[Served]:
    """Those of the trials chosen that formed a session."""
    return [Served(r, fleet.time_scale) for r in chosen(records, **wanted) if r["formed"]]


def spread(sessions: Sequence[Served], figure: Callable[[Served], float]) -> Spread:
    """A figure over sessions."""
    return Spread(tuple(figure(session) for session in sessions))


def relative_errors(sessions: Iterable[Served]) -> list[float]:
    """|predicted - measured| by measured, of every stage."""
    return [
        abs(predicted - measured) / measured
        for session in sessions
        for predicted, measured in zip(session.predicted_s, session.stages_s, strict=True)
    ]
