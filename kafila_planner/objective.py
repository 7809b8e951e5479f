"""What a plan is the best at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Objective:
    """`weight` None: the paper's rule; else (1 - weight) * circuit + weight * bottleneck is minimised."""

    weight: float | None

    def value(self, circuit_s: float, bottleneck_s: float) -> float:
        """What a joint plan minimises."""
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
        raise ValueError(
            f"objective: must be throughput, latency or mixed:L with L from 0 to 1, not {text!r}"
        )
    return Objective(value)
