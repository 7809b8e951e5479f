"""What a plan is the best at: the paper's rule, or one number weighed from circuit and bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Objective:
    """`weight` None: the paper's rule; else (1 - weight) * circuit + weight * bottleneck is minimised."""

    weight: float | None

    def value(self, circuit_s: Any, bottleneck_s: float) -> Any:
        """What a joint plan minimises; circuits may be an array."""
        assert self.weight is not None
        return (1 - self.weight) * circuit_s + self.weight * bottleneck_s


def parse_objective(text: str) -> Objective:
    """`throughput`, `latency` (weight 0) or `mixed:L` with L from 0 to 1; ValueError otherwise."""
    if text == "throughput":
        return Objective(None)
    if text == "latency":
        return Objective(0.0)
    kind, _, weight = text.partition(":")
    try:
        value = float(weight) if kind == "mixed" else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"objective: must be throughput, latency or mixed:L, L from 0 to 1, not {text!r}")
    return Objective(value)
