"""The one error of this package."""

from __future__ import annotations


class StageError(Exception):
    """A frame that this stage cannot run; the message says what is wrong with it. The stage goes on."""
