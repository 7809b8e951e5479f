"""The errors of this package."""

from __future__ import annotations


class StageError(Exception):
    """A frame that this stage cannot run; the message says what is wrong with it. The stage goes on."""


class VoidFrame(Exception):
    """A frame that a newer one of its sequence has voided: there is nothing to run and nobody to tell."""
