"""Guesses by a small model of the same vocabulary at the head: one row at a time, on a thread of its own.

It follows each sequence's line as a stage does, with a slot of its own KV cache, and goes back where a guess was wrong.
Only its guesses' quality depends on it: what is answered is decided by the ring alone.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.head.sequence import Line, Sequence, State
from kafila_agent.model.kv import MAX_FRAME_ROWS
from kafila_agent.stage.errors import StageError
from kafila_agent.stage.executor import StageExecutor

log = structlog.get_logger()

_STEPS_REMEMBERED = 32


class DraftModel:
    """``executor`` holds the whole model, with as many slots as the engine. Made on the engine's event loop.

    ``on_guess(sequence)`` is called there for every guess made. ``vocab_size``: the tokens that the ring knows too.
    """

    name = "draft"

    def __init__(
        self, executor: StageExecutor, on_guess: Callable[[Sequence], None], *, vocab_size: int
    ) -> None:
        self._executor = executor
        self._on_guess = on_guess
        self._vocab_size = vocab_size
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[
            Sequence, int
        ] = {}  # how many guesses its line is to hold; whose turn is next comes first
        self._news = threading.Condition()
        self._closed = False
        self._seen: dict[int, tuple[int, list[int]]] = {}  # slot -> (sequence, tokens in the draft's cache)
        self._steps_s: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._thread = threading.Thread(target=self._work, name="draft", daemon=True)
        self._thread.start()

    @property
    def proposal_s(self) -> float:
        """Median seconds of a guess; 0 before the first."""
        return statistics.median(self._steps_s) if self._steps_s else 0.0

    def guess(self, sequence: Sequence, most: int) -> bool:
        """Extend the sequence's line by ``most`` guesses, soon."""
        with self._news:
            self._wanted[sequence] = sequence.guesses + most
            self._news.notify()
        return True

    async def close(self) -> None:
        """Let the row at work finish, and end the thread."""
        with self._news:
            self._closed = True
            self._news.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        self._executor.bind_thread()
        while (task := self._next_task()) is not None:
            sequence, wanted = task
            line = sequence.line()
            if sequence.state is not State.DECODE or len(line.guesses) >= wanted:
                continue
            try:
                token = self._next_token(sequence, line)
            except StageError as error:
                log.warning("no guesses by the draft model", sequence=sequence.number, reason=str(error))
                continue
            sequence.extend(line, [token], self.name)
            self._want_more(sequence, wanted)
            self._tell(sequence)

    def _next_task(self) -> tuple[Sequence, int] | None:
        """The next sequence's turn, when there is one; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._wanted or self._closed)
            if self._closed:
                return None
            sequence = next(iter(self._wanted))
            return sequence, self._wanted.pop(sequence)

    def _want_more(self, sequence: Sequence, wanted: int) -> None:
        """Its turn comes again, after the others', unless it was asked for anew already."""
        with self._news:
            self._wanted.setdefault(sequence, wanted)

    def _tell(self, sequence: Sequence) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_guess, sequence)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _next_token(self, sequence: Sequence, line: Line) -> int:
        """What the draft model finds likeliest after ``line``. Raises StageError."""
        assert sequence.slot is not None
        tokens = [*sequence.prompt, *line.output, *line.guesses]
        number, seen = self._seen.pop(sequence.slot, (sequence.number, []))
        start = min(len(seen), len(tokens) - 1) if number == sequence.number else 0
        while seen[:start] != tokens[:start]:
            start -= 1
        began_s = time.monotonic()
        hidden = self._run(sequence, tokens, start)
        token = int(self._executor.logits(hidden[-1:])[0, : self._vocab_size].argmax())
        if len(tokens) - start <= 2:  # a guess, not a prompt
            self._steps_s.append(time.monotonic() - began_s)
        self._seen[sequence.slot] = sequence.number, tokens
        return token

    def _run(self, sequence: Sequence, tokens: list[int], start: int) -> torch.Tensor:
        assert sequence.slot is not None
        for position in range(start, len(tokens), MAX_FRAME_ROWS):
            ids = tokens[position : position + MAX_FRAME_ROWS]
            payload = struct.pack(f"<{len(ids)}i", *ids)
            hidden = self._executor.run_blocks(
                Frame(
                    Kind.TOKENS,
                    0,
                    sequence.number,
                    sequence.slot,
                    position,
                    len(ids),
                    Dtype.INT32,
                    payload=payload,
                )
            )
        return hidden
