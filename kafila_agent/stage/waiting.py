"""Frames that wait at a stage, and which of them it takes together.

Frames of one sequence keep their order, and nothing passes a frame that changes who owns a slot. Rows that go through
the blocks and rows that have been round and go through norm and LM head do not touch each other: of either kind those
that wait are taken together, as many as come out as if they were alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafila_agent.edge.frame import Frame, Kind


@dataclass(frozen=True, slots=True)
class Waiting:
    """A frame, and when it came."""

    frame: Frame
    submitted_ns: int


class WaitingFrames:
    """In order of arrival. ``most_rows`` go together; ``returns(frame)`` says whether it has been round the ring."""

    def __init__(self, most_rows: int, returns: Callable[[Frame], bool]) -> None:
        self._most_rows, self._returns = most_rows, returns
        self._frames: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, waiting: Waiting) -> None:
        """One more."""
        self._frames.append(waiting)

    def drop(self, is_void: Callable[[Frame], bool]) -> int:
        """Forget those for which it is true; how many they were."""
        kept = [waiting for waiting in self._frames if not is_void(waiting.frame)]
        dropped = len(self._frames) - len(kept)
        self._frames = kept
        return dropped

    def take(self) -> list[Waiting]:
        """The frame that has waited longest and those that go with it; a slot's side by side, in their order."""
        first, *others = self._frames
        group, left = [first], []
        room = self._most_rows - self._rows(first.frame)
        is_open = not _owns(first.frame)
        for waiting in others:
            frame = waiting.frame
            is_open = is_open and not _owns(frame)
            if is_open and self._returns(frame) is self._returns(first.frame):
                room -= self._rows(frame)
                is_open = room >= 0 and (self._returns(frame) or _goes_on(group, frame))
                if is_open:
                    group.append(waiting)
                    continue
            left.append(waiting)
        self._frames = left
        return sorted(group, key=lambda waiting: waiting.frame.slot)

    def _rows(self, frame: Frame) -> int:
        """That are computed."""
        return frame.rows_wanted if self._returns(frame) else frame.rows


def _owns(frame: Frame) -> bool:
    """Whether it changes whose a slot is, instead of having rows."""
    return frame.kind in (Kind.RELEASE, Kind.ADOPT)


def _goes_on(group: list[Waiting], frame: Frame) -> bool:
    """Whether it goes on where its slot's last frame in ``group`` ends, if there is one."""
    ends = [
        (other.frame.sequence, other.frame.position + other.frame.rows)
        for other in group
        if other.frame.slot == frame.slot
    ]
    return not ends or ends[-1] == (frame.sequence, frame.position)
