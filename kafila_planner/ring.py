"""What the planner answers: a ring plan or a refusal, and their JSON form (`kafila-ctl plan --json`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kafila_planner.fields import MAX_BYTES, FieldError, Fields, check_number

_ANY = 1e300


class PlanError(FieldError):
    """The input is neither a plan nor a refusal; the message begins with the path of the field at fault."""


class Path(StrEnum):
    """How an edge's datagrams travel."""

    DIRECT = "direct"
    RELAYED = "relayed"


class Tier(StrEnum):
    """How much was known: each tier plans better than the one below it (paper, section V-D)."""

    COST_MODEL = "cost-model"
    THROUGHPUT = "throughput"
    WORKING_SET = "working-set"


@dataclass(frozen=True)
class Stage:
    """A member's block range `[start, end)`, its predicted seconds per token, and its memory."""

    member: str
    start: int
    end: int
    predicted_s: float | None
    needs_bytes: int
    room_bytes: int


@dataclass(frozen=True)
class Edge:
    """A ring edge, downstream, with the path to expect and the round trip it was priced at."""

    source: str
    target: str
    path: Path
    cost_s: float | None


@dataclass(frozen=True)
class Unseated:
    """A member that takes no part, and why."""

    member: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """Figures for people, KV-cache reading at the expected context included (formulas: `predict`)."""

    tokens_per_s_one_user: float | None = None
    tokens_per_s_all_users: float | None = None
    network_share: float | None = None
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    """The prompt length that `ttft_s` is for."""
    circuit_s: float | None = None
    bottleneck_s: float | None = None
    tokens_per_s_one_user_range: tuple[float, float] | None = None
    """Slowest and fastest: every edge relayed ... every edge as short as its ends' distances allow."""


@dataclass(frozen=True)
class RingPlan:
    """Who sits where. `stages` and `edges` start at the head and follow the ring."""

    tier: Tier
    objective: str
    division: str
    proven: bool
    """The order is known to be the best, not only good; under a joint objective everything, but that the anchor stays
    the head where another would be better by less than the margin (head.py)."""
    bottleneck_s: float | None
    sum_s: float | None
    circuit_s: float | None
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    ring_cost_s: float | None
    ring_separation_s: float | None
    relayed_edges: int
    predicted: Prediction
    unseated: tuple[Unseated, ...] = ()
    bound: float | None = None
    """Under a joint objective: no plan can have a smaller value than this."""
    gap: float | None = None
    """Under a joint objective: this plan's value less `bound`; where proven, at most the anchor's margin."""
    notes: tuple[str, ...] = ()

    @property
    def ring(self) -> tuple[str, ...]:
        """Member names round the ring, from the head."""
        return tuple(stage.member for stage in self.stages)

    @property
    def head(self) -> str:
        """The member that embeds, samples and holds the LM head."""
        return self.stages[0].member


@dataclass(frozen=True)
class Undersized:
    """A member that the division would exhaust."""

    member: str
    needs_bytes: int
    room_bytes: int


@dataclass(frozen=True)
class Remedy:
    """One change that alone would make the session fit: `change` is the field to set to `to`."""

    change: str
    to: int
    member: str | None = None
    more_bytes: int | None = None


@dataclass(frozen=True)
class Refusal:
    """No plan, and why; with the smallest single changes that would allow one."""

    reason: str
    refused: tuple[Undersized, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    unseated: tuple[Unseated, ...] = field(default=())


def plan_to_json(plan: RingPlan | Refusal) -> dict[str, Any]:
    """The JSON contract; `plan_from_json` reads it back to an equal value."""
    return _refusal_to_json(plan) if isinstance(plan, Refusal) else _ring_to_json(plan)


def _refusal_to_json(refusal: Refusal) -> dict[str, Any]:
    return {
        "refused": [vars(undersized).copy() for undersized in refusal.refused],
        "reason": refusal.reason,
        "remedies": [
            {key: value for key, value in vars(remedy).items() if value is not None}
            for remedy in refusal.remedies
        ],
        **_unseated_to_json(refusal.unseated),
    }


def _unseated_to_json(unseated: tuple[Unseated, ...]) -> dict[str, Any]:
    return {
        "unseated": [one.member for one in unseated],
        "unseated_reasons": {one.member: one.reason for one in unseated},
    }


def _ring_to_json(plan: RingPlan) -> dict[str, Any]:
    span = plan.predicted.tokens_per_s_one_user_range
    return {
        "tier": str(plan.tier),
        "objective": plan.objective,
        "division": plan.division,
        "proven": plan.proven,
        "ring": list(plan.ring),
        "head": plan.head,
        "bottleneck_s": plan.bottleneck_s,
        "sum_s": plan.sum_s,
        "circuit_s": plan.circuit_s,
        "stages": [_stage_to_json(stage) for stage in plan.stages],
        "edges": [
            {"from": edge.source, "to": edge.target, "path": str(edge.path), "cost_s": edge.cost_s}
            for edge in plan.edges
        ],
        "ring_cost_s": plan.ring_cost_s,
        "ring_separation_s": plan.ring_separation_s,
        "relayed_edges": plan.relayed_edges,
        **_unseated_to_json(plan.unseated),
        "predicted": vars(plan.predicted) | {"tokens_per_s_one_user_range": list(span) if span else None},
        "bound": plan.bound,
        "gap": plan.gap,
        "notes": list(plan.notes),
    }


def _stage_to_json(stage: Stage) -> dict[str, Any]:
    return {
        "member": stage.member,
        "blocks": [stage.start, stage.end],
        "predicted_s": stage.predicted_s,
        "needs_bytes": stage.needs_bytes,
        "room_bytes": stage.room_bytes,
    }


def plan_from_json(value: object) -> RingPlan | Refusal:
    """A plan or a refusal from its JSON form; PlanError names the field at fault."""
    try:
        of = Fields(value, "")
        return _refusal_from(of) if of.value("refused", None) is not None else _ring_from(of)
    except FieldError as error:
        raise PlanError(str(error)) from None


def _objects(of: Fields, key: str) -> list[Fields]:
    return [Fields(item, f"{of.path(key)}[{index}]") for index, item in enumerate(of.items(key, ()))]


def _unseated_from(of: Fields) -> tuple[Unseated, ...]:
    reasons = Fields(of.value("unseated_reasons", {}), of.path("unseated_reasons"))
    return tuple(Unseated(name, reasons.text(name, "")) for name in _texts(of, "unseated"))


def _texts(of: Fields, key: str) -> tuple[str, ...]:
    values = of.items(key, ())
    if not all(isinstance(value, str) for value in values):
        raise FieldError(f"{of.path(key)}: must be a list of texts")
    return tuple(values)


def _refusal_from(of: Fields) -> Refusal:
    return Refusal(
        reason=of.text("reason"),
        refused=tuple(
            Undersized(
                one.text("member"),
                one.whole("needs_bytes", 0, _ANY),
                one.whole("room_bytes", 0, MAX_BYTES),
            )
            for one in _objects(of, "refused")
        ),
        remedies=tuple(
            Remedy(
                one.text("change"),
                one.whole("to", 0, _ANY),
                one.text("member", None),
                one.whole("more_bytes", 0, _ANY, None),
            )
            for one in _objects(of, "remedies")
        ),
        unseated=_unseated_from(of),
    )


def _stage_from(of: Fields) -> Stage:
    span = of.items("blocks")
    if len(span) != 2 or not all(type(end) is int for end in span) or not 0 <= span[0] < span[1]:
        raise FieldError(f"{of.path('blocks')}: must be [start, end] with start < end")
    return Stage(
        member=of.text("member"),
        start=span[0],
        end=span[1],
        predicted_s=of.number("predicted_s", 0, _ANY, None),
        needs_bytes=of.whole("needs_bytes", 0, _ANY),
        room_bytes=of.whole("room_bytes", 0, MAX_BYTES),
    )


def _prediction_from(of: Fields) -> Prediction:
    return Prediction(
        tokens_per_s_one_user=of.number("tokens_per_s_one_user", 0, _ANY, None),
        tokens_per_s_all_users=of.number("tokens_per_s_all_users", 0, _ANY, None),
        network_share=of.number("network_share", 0, 1, None),
        ttft_s=of.number("ttft_s", 0, _ANY, None),
        prompt_tokens=of.whole("prompt_tokens", 0, _ANY, None),
        circuit_s=of.number("circuit_s", 0, _ANY, None),
        bottleneck_s=of.number("bottleneck_s", 0, _ANY, None),
        tokens_per_s_one_user_range=_range_from(of, "tokens_per_s_one_user_range"),
    )


def _range_from(of: Fields, key: str) -> tuple[float, float] | None:
    span = of.items(key, None)
    if span is None:
        return None
    if len(span) != 2:
        raise FieldError(f"{of.path(key)}: must be [lowest, highest]")
    low, high = (check_number(end, of.path(key), 0, _ANY) for end in span)
    return low, high


def _ring_from(of: Fields) -> RingPlan:
    stages = tuple(_stage_from(stage) for stage in _objects(of, "stages"))
    ends = [stage.end for stage in stages]
    if not stages or [stage.start for stage in stages] != [0, *ends[:-1]]:
        raise FieldError("stages: block ranges must begin at 0 and follow one another without a gap")
    if list(of.items("ring")) != [stage.member for stage in stages] or of.text("head") != stages[0].member:
        raise FieldError("ring: must name the stages' members in order, from the head")
    return RingPlan(
        tier=Tier(of.choice("tier", list(Tier))),
        objective=of.text("objective"),
        division=of.text("division", "planner"),
        proven=of.flag("proven"),
        bottleneck_s=of.number("bottleneck_s", 0, _ANY, None),
        sum_s=of.number("sum_s", 0, _ANY, None),
        circuit_s=of.number("circuit_s", 0, _ANY, None),
        stages=stages,
        edges=tuple(
            Edge(
                edge.text("from"),
                edge.text("to"),
                Path(edge.choice("path", list(Path))),
                edge.number("cost_s", 0, _ANY, None),
            )
            for edge in _objects(of, "edges")
        ),
        ring_cost_s=of.number("ring_cost_s", 0, _ANY, None),
        ring_separation_s=of.number("ring_separation_s", 0, _ANY, None),
        relayed_edges=of.whole("relayed_edges", 0, _ANY),
        predicted=_prediction_from(Fields(of.value("predicted"), "predicted")),
        unseated=_unseated_from(of),
        bound=of.number("bound", 0, _ANY, None),
        gap=of.number("gap", 0, _ANY, None),
        notes=_texts(of, "notes"),
    )
