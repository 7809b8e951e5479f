"""Which rows enter the ring next. A decision core: no clock, no I/O, no tensors.

Up to ``slots`` sequences are in the ring at once; the others wait, each member's in its own line, and the members take
turns. ``schedule`` gives, in the order in which they are to be launched:

1. a Release for every sequence that ended. It travels behind the sequence's last frame and before the first
   of whoever gets the slot next, and frames keep their order all round the ring, so no stage can mix two up;
2. an Adopt for every sequence that begins with what a slot still holds;
3. a row for every sequence whose newest token is known: users who are reading wait for nobody's prompt;
4. prompt chunks, one of each prefilling sequence in turn, while fewer than ``chunks_in_flight`` are in the
   ring. Several in flight keep all stages busy (GPipe's pipelining); the bound keeps decode rows from having
   to queue behind them;
5. guessed rows, one of each sequence in turn, in the places that are left: none while a prompt is under way.

Chunks start at multiples of ``prefill_chunk``, so a row is always computed in the same company.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kafila_agent.head.sequence import Event, Row, Sequence, State
from kafila_agent.head.slots import Adopt, Slots


class QueueFull(RuntimeError):
    """``waiting`` sequences wait already, as many as may."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests are waiting already")
        self.waiting = waiting


@dataclass(frozen=True, slots=True)
class Chunk:
    """Send ``ids``, prompt tokens at ``position`` ..., round the ring; sample the last of them if ``wanted``."""

    sequence: Sequence
    position: int
    ids: tuple[int, ...]
    wanted: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Send one row of the sequence's line round the ring."""

    sequence: Sequence
    row: Row


@dataclass(frozen=True, slots=True)
class Release:
    """Tell every stage that the sequence is over."""

    sequence: Sequence


Command = Release | Adopt | Chunk | Step


class Scheduler:
    """The queue, the slots and what is in the ring."""

    def __init__(
        self,
        *,
        slots: int,
        prefill_chunk: int,
        chunks_in_flight: int,
        waiting_limit: int,
        rollback_tokens: int | None = None,
    ) -> None:
        self._prefill_chunk = prefill_chunk
        self._chunks_in_flight = chunks_in_flight
        self._waiting_limit = waiting_limit
        self._slots = Slots(slots, chunk=prefill_chunk, rollback_tokens=rollback_tokens)
        self._waiting: dict[str, deque[Sequence]] = {}  # by member; whose turn is next comes first
        self._prefilling: deque[Sequence] = deque()  # those with prompt chunks still to send
        self._decoding: deque[Sequence] = deque()  # those whose rows go round; who guesses next comes first
        self._ended: deque[tuple[Sequence, bool]] = deque()  # those whose stages have not been told
        self._chunks: dict[int, int] = {}  # sequence number -> its prompt chunks in the ring

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return sum(map(len, self._waiting.values()))

    @property
    def decoding(self) -> tuple[Sequence, ...]:
        """Sequences in DECODE."""
        return tuple(self._decoding)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises QueueFull when it would have to wait behind too many."""
        if self.waiting >= self._waiting_limit + self._slots.free:
            raise QueueFull(self.waiting)
        self._waiting.setdefault(sequence.member, deque()).append(sequence)

    def schedule(self, places: int = 1) -> list[Command]:
        """What enters the ring now, in order. Calling again without news gives nothing.

        ``places``: how many rows the ring can hold before they queue somewhere.
        """
        commands: list[Command] = self._release()
        commands += self._admit()
        for sequence in self._decoding:
            if not sequence.rows_in_flight and (row := sequence.next_row()):
                commands.append(Step(sequence, row))
        while self._prefilling and sum(self._chunks.values()) < self._chunks_in_flight:
            commands.append(self._next_chunk(self._prefilling.popleft()))
        if not self._chunks:
            commands += self._guessed(places)
        return commands

    def returned(self, number: int) -> None:
        """A prompt chunk of this sequence has come back round the ring, or failed on the way."""
        if number in self._chunks:
            self._chunks[number] -= 1
            if not self._chunks[number]:
                del self._chunks[number]

    def proceed(self, sequence: Sequence) -> None:
        """The sequence's ``output`` has a new last token, and goes on."""
        if sequence.state is State.PREFILL:
            sequence.handle(Event.FIRST_TOKEN)
            self._decoding.append(sequence)

    def end(self, sequence: Sequence, *, intact: bool = True) -> None:
        """The sequence is over: send no more of it, and give its slot back. Raises IllegalEvent if it was.

        Not ``intact``: what the stages hold of it is not to be relied on.
        """
        sequence.handle(Event.END)
        for queue in (self._prefilling, self._decoding, self._waiting.get(sequence.member, deque())):
            if sequence in queue:
                queue.remove(sequence)
        if sequence.launched:
            self._ended.append((sequence, intact))
        elif sequence.slot is not None:
            self._slots.give_back(sequence)  # no stage has heard of it

    def _release(self) -> list[Command]:
        ended, self._ended = self._ended, deque()
        for sequence, intact in ended:
            self._slots.give_back(sequence, intact=intact)
        return [Release(sequence) for sequence, _ in ended]

    def _admit(self) -> list[Command]:
        commands: list[Command] = []
        while self._slots.free and (sequence := self._next_waiting()):
            sequence.handle(Event.ADMIT)
            if adopt := self._slots.take(sequence):
                commands.append(adopt)
            self._prefilling.append(sequence)
        return commands

    def _next_waiting(self) -> Sequence | None:
        """The first in the next member's line; that member is then last in turn."""
        for member in list(self._waiting):
            line = self._waiting.pop(member)
            if line:
                sequence = line.popleft()
                self._waiting[member] = line
                return sequence
        return None

    def _next_chunk(self, sequence: Sequence) -> Chunk:
        start = sequence.launched
        ids = sequence.chunk(self._prefill_chunk)
        last = sequence.launched == len(sequence.prompt)
        if not last:
            self._prefilling.append(sequence)
        self._chunks[sequence.number] = self._chunks.get(sequence.number, 0) + 1
        return Chunk(sequence, start, ids, wanted=last)

    def _guessed(self, places: int) -> list[Command]:
        """A row of each sequence in turn, while the ring has places and the sequence's own window leaves some."""
        commands: list[Command] = []
        free = places - sum(sequence.rows_in_flight for sequence in self._decoding)
        passed = 0
        while free > 0 and passed < len(self._decoding):
            sequence = self._decoding[0]
            self._decoding.rotate(-1)
            row = sequence.next_row() if sequence.rows_in_flight < sequence.window else None
            if row is None:
                passed += 1
                continue
            commands.append(Step(sequence, row))
            free, passed = free - 1, 0
        return commands
