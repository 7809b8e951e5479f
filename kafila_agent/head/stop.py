"""Stop strings in a stream of text pieces, wherever the borders between the pieces fall."""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """Holds text back while it may begin a stop string; the stop string itself is never given out."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """``(text to give out, whether a stop string was completed)``."""
        text = self._held + piece
        if (match := self._first_match(text)) is not None:
            self._held = ""
            return text[:match], True
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back: the answer ended otherwise, so it was no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        """Where the stop string that is complete first begins, as if characters came one by one."""
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
