"""What edges tell whoever counts."""

from __future__ import annotations


class EdgeObserver:
    """Each method is called on the event loop. This one counts nothing: override what is wanted.

    ``peer`` is a member's name, ``path`` is direct or relayed.
    """

    def on_edge_open(self, peer: str, path: str, took_s: float) -> None:
        """An edge that was asked for stands, ``took_s`` later; 0 if the peer opened it unasked."""

    def on_edge_failed(self, peer: str) -> None:
        """An edge that was asked for could not be had."""

    def on_edge_moved(self, peer: str, path: str) -> None:
        """An edge goes on over another address, or another path."""

    def on_edge_lost(self, peer: str) -> None:
        """An edge that stood is no more, and neither end said goodbye of its own accord here."""

    def on_round_trip(self, peer: str, path: str, rtt_s: float) -> None:
        """One ping was answered."""
