"""What an engine tells whoever counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafila_agent.head.generation import Finished
    from kafila_agent.head.measure import Step
    from kafila_agent.head.sequence import Verdict


class Observer:
    """Each method is called on the event loop. This one counts nothing: override what is wanted."""

    def on_ring(self, ring: Sequence[str]) -> None:
        """A plan is at work whose members round the ring are these, from the head on; steps' stages follow it."""

    def on_accepted(self, prompt_tokens: int) -> None:
        """A request was queued."""

    def on_rejected(self) -> None:
        """A request found the queue full."""

    def on_first_token(self, ttft_s: float) -> None:
        """A request's first text went out, ``ttft_s`` after it was accepted."""

    def on_token(self, gap_s: float | None) -> None:
        """A token was sampled, ``gap_s`` after the request's one before (None: its first)."""

    def on_step(self, step: Step) -> None:
        """A decode step came back."""

    def on_guess(self, by: str) -> None:
        """A guessed row was launched; ``by`` names its proposer."""

    def on_verdict(self, verdict: Verdict) -> None:
        """A guess was compared with the token sampled in its place."""

    def on_finished(self, finished: Finished) -> None:
        """A request was answered to its end."""

    def on_aborted(self, reason: str) -> None:
        """A request ended before its answer did: its client left, or the ring broke."""
