"""The one error of sampling."""

from __future__ import annotations


class SamplingError(RuntimeError):
    """No token can be chosen: the logits are not numbers, or the form asked for is lost."""
