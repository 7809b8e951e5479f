"""Which rows enter the ring next. A decision core: no clock, no I/O, no tensors.

Sequences wait in one first-come queue; up to ``slots`` of them are in the ring at once. ``schedule`` gives,
in the order in which they are to be launched:

1. a Release for every sequence that ended. It travels behind the sequence's last frame and before the first
   of whoever gets the slot next, and frames keep their order all round the ring, so no stage can mix two up;
2. a row for every sequence whose newest token is known: users who are reading wait for nobody's prompt;
3. prompt chunks, one of each prefilling sequence in turn, while fewer than ``chunks_in_flight`` are in the
   ring. Several in flight keep all stages busy (GPipe's pipelining); the bound keeps decode rows from having
   to queue behind them.

Chunks start at multiples of ``prefill_chunk``, so a row is always computed in the same company.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kafila_agent.head.sequence import Event, Sequence, State


class QueueFull(RuntimeError):
    """``waiting`` sequences wait already, as many as may."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests are waiting already")
        self.waiting = waiting


@dataclass(frozen=True, slots=True)
class Launch:
    """Send ``ids``, the tokens at ``position`` ..., round the ring; sample the last of them if ``wanted``."""

    sequence: Sequence
    position: int
    ids: tuple[int, ...]
    wanted: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Tell every stage that the sequence is over."""

    sequence: Sequence


class Scheduler:
    """The queue, the slots and what is in the ring."""

    def __init__(self, *, slots: int, prefill_chunk: int, chunks_in_flight: int, waiting_limit: int) -> None:
        self._prefill_chunk = prefill_chunk
        self._chunks_in_flight = chunks_in_flight
        self._waiting_limit = waiting_limit
        self._free = deque(range(slots))
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()  # those with prompt chunks still to send
        self._due: deque[Sequence] = deque()  # those whose newest token has not been sent
        self._ended: deque[Sequence] = deque()  # those whose stages have not been told
        self._chunks: dict[int, int] = {}  # sequence number -> its prompt chunks in the ring

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises QueueFull when it would have to wait behind too many."""
        if len(self._waiting) >= self._waiting_limit + len(self._free):
            raise QueueFull(len(self._waiting))
        self._waiting.append(sequence)

    def schedule(self) -> list[Launch | Release]:
        """What enters the ring now, in order. Calling again without news gives nothing."""
        commands: list[Launch | Release] = [self._release(sequence) for sequence in self._ended]
        self._ended.clear()
        self._admit()
        commands += [self._row(sequence) for sequence in self._due]
        self._due.clear()
        while self._prefilling and sum(self._chunks.values()) < self._chunks_in_flight:
            commands.append(self._next_chunk(self._prefilling.popleft()))
        return commands

    def returned(self, number: int) -> None:
        """A launch of this sequence has come back round the ring, or failed on the way."""
        if number in self._chunks:
            self._chunks[number] -= 1
            if not self._chunks[number]:
                del self._chunks[number]

    def proceed(self, sequence: Sequence) -> None:
        """The sequence's ``output`` has a new last token, which is to be sent."""
        if sequence.state is State.PREFILL:
            sequence.handle(Event.FIRST_TOKEN)
        self._due.append(sequence)

    def end(self, sequence: Sequence) -> None:
        """The sequence is over: send no more of it, and give its slot back. Raises IllegalEvent if it was."""
        sequence.handle(Event.END)
        for queue in (self._waiting, self._prefilling, self._due):
            if sequence in queue:
                queue.remove(sequence)
        if sequence.launched:
            self._ended.append(sequence)
        elif sequence.slot is not None:
            self._free.append(sequence.slot)  # no stage has heard of it

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.handle(Event.ADMIT)
            sequence.slot = self._free.popleft()
            self._prefilling.append(sequence)

    def _next_chunk(self, sequence: Sequence) -> Launch:
        start = sequence.launched
        ids = sequence.prompt[start : start + self._prefill_chunk]
        sequence.launched = start + len(ids)
        last = sequence.launched == len(sequence.prompt)
        if not last:
            self._prefilling.append(sequence)
        self._chunks[sequence.number] = self._chunks.get(sequence.number, 0) + 1
        return Launch(sequence, start, ids, wanted=last)

    def _release(self, sequence: Sequence) -> Release:
        assert sequence.slot is not None
        self._free.append(sequence.slot)
        return Release(sequence)

    def _row(self, sequence: Sequence) -> Launch:
        position = sequence.launched
        sequence.launched += 1
        return Launch(sequence, position, (sequence.output[-1],), wanted=True)
