"""How likely the model itself found a token, and which others it found likelier."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one position: natural logarithms of the model's own probabilities.

    That is before penalties, biases, grammar and temperature, so that they say the same of a token however it came
    to be taken. ``top``: the likeliest tokens, best first.
    """

    taken: float
    top: tuple[tuple[int, float], ...]


def measure_logprobs(logits: torch.Tensor, token: int, top: int) -> Logprobs:
    """Of ``token`` and of the ``top`` likeliest tokens, from ``logits`` (float32 [vocab])."""
    logprobs = logits.log_softmax(-1)
    best, tokens = logprobs.topk(min(top, len(logprobs)))
    return Logprobs(float(logprobs[token]), tuple(zip(tokens.tolist(), best.tolist(), strict=True)))
