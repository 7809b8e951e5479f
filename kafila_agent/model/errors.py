"""The one error of this package."""

from __future__ import annotations


class ModelError(Exception):
    """A checkpoint that cannot be served; the message names the file or family and the next step."""
