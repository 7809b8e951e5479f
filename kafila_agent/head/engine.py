"""The engine: schedule -> round the ring -> sample -> postprocess.

``on_sampled`` is the whole of it: a launch that comes back yields a token, the token yields text or an end,
and the scheduler says what enters the ring next. All of it runs on the event loop, except ``sample``, which
the head's stage calls on its own thread with the logits in hand.
"""

from __future__ import annotations

import itertools
import math
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog
import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind, adopted_from
from kafila_agent.head.errors import SamplingError
from kafila_agent.head.generation import (
    Busy,
    Cancelled,
    ContextExceeded,
    EngineError,
    EngineFailed,
    Finished,
    Generation,
    Piece,
    Request,
)
from kafila_agent.head.measure import Measured, Recent, RequestClock, Step, Tempo
from kafila_agent.head.observer import Observer
from kafila_agent.head.sampler import Sampled, Sampler
from kafila_agent.head.scheduler import Chunk, Command, QueueFull, Release, Scheduler
from kafila_agent.head.sequence import Row, Sequence, State, Verdict
from kafila_agent.head.slots import Adopt
from kafila_agent.head.speculation import Guessing, Outlook, Speculation
from kafila_agent.head.stop import StopStrings
from kafila_agent.head.text import Detokenizer, Text

log = structlog.get_logger()


@dataclass(eq=False)
class _Run:
    """A sequence and everything that turns its tokens into its client's answer."""

    sequence: Sequence
    eos_ids: frozenset[int]
    sampler: Sampler
    detokenizer: Detokenizer
    stops: StopStrings
    guessing: Guessing
    generation: Generation
    clock: RequestClock
    heard: int = 0  # tokens of the output that have been looked at here: the stage's thread may be ahead
    untold: list[Sampled] = field(default_factory=list)  # those of them that no piece has carried yet
    flights: deque[tuple[Row, float]] = field(default_factory=deque)  # rows in the ring, and when they left

    def take(self, sampled: Sampled) -> None:
        """One more token."""
        self.heard += 1
        self.untold.append(sampled)

    def tell(self) -> tuple[Sampled, ...]:
        """The tokens since the last call."""
        tokens = tuple(self.untold)
        self.untold.clear()
        return tokens

    def landed(self, frame: Frame) -> float | None:
        """When the row of ``frame`` left; None for a prompt's. Rows that were voided on the way are forgotten."""
        while self.flights:
            row, launched_s = self.flights.popleft()
            if (row.fence, row.position) == (frame.fence, frame.position):
                return launched_s
        return None


@dataclass(frozen=True, slots=True)
class Judged:
    """What was sampled, and what it says of the guess that was there in its place."""

    sampled: Sampled
    verdict: Verdict | None


class Engine:
    """Serves one plan (one ``epoch``) until ``fail``.

    ``launch`` hands a frame to the head's own stage; it must not call ``on_sampled`` before it returns.
    Up to ``slots`` sequences are in the ring at once, each of up to ``context_tokens``; ``waiting_limit``
    more may wait. ``rollback_tokens``: how far every stage can go back in a sequence, None for to its beginning.
    """

    def __init__(
        self,
        launch: Callable[[Frame], None],
        text: Text,
        *,
        epoch: int,
        slots: int,
        context_tokens: int,
        prefill_chunk: int,
        chunks_in_flight: int = 4,
        waiting_limit: int = 32,
        rollback_tokens: int | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self.text = text
        self.context_tokens = context_tokens
        self._launch = launch
        self._epoch = epoch
        self._slots = slots
        self._clock = clock
        self._observer = observer or Observer()
        self._scheduler = Scheduler(
            slots=slots,
            prefill_chunk=prefill_chunk,
            chunks_in_flight=chunks_in_flight,
            waiting_limit=waiting_limit,
            rollback_tokens=rollback_tokens,
        )
        self._speculation = speculation or Speculation()
        self._tempo = Tempo()
        self._outlook: Outlook | None = None
        self._numbers = itertools.count(1)
        self._runs: dict[int, _Run] = {}
        self._recent = Recent()
        self._failed: str | None = None
        self._refusing: str | None = None

    def generate(self, request: Request) -> Generation:
        """Queue a request. Raises ContextExceeded, Busy or EngineFailed; nothing is queued then."""
        if (reason := self._failed or self._refusing) is not None:
            raise EngineFailed(reason)
        run = self._run_of(request)
        try:
            self._scheduler.add(run.sequence)
        except QueueFull as full:
            self._observer.on_rejected()
            raise Busy(full.waiting, self._retry_after_s()) from None
        self._runs[run.sequence.number] = run
        self._observer.on_accepted(len(request.prompt))
        self._feed_ring()
        return run.generation

    def awaits(self, frame: Frame) -> bool:
        """Whether what comes back with ``frame`` may come to be sampled: a wrong guess voids all launched after it.

        Called on the stage's thread, for frames that came back together before the first of them is sampled.
        """
        run = self._runs.get(frame.sequence)
        return run is not None and run.sequence.needs(frame.fence, frame.position)

    def sample(self, frame: Frame, logits: torch.Tensor) -> object:
        """The sequence's next token, from the last row of ``logits`` (float32 [rows_wanted, vocab]).

        For ``on_sampled``; nothing for a frame that nobody awaits: each position is sampled once.
        """
        run = self._runs.get(frame.sequence)
        if run is None or not run.sequence.awaits(frame.fence, frame.position):
            return None
        try:
            sampled = run.sampler.sample(logits[-1], run.sequence.output)
        except SamplingError as error:
            return error
        return Judged(sampled, run.sequence.commit(sampled.token))

    def on_sampled(self, frame: Frame, result: object) -> None:
        """A launch has been round the ring, and ``result`` is what ``sample`` made of it."""
        if self._failed is not None or frame.epoch != self._epoch or frame.kind is Kind.RELEASE:
            return
        self._scheduler.returned(frame.sequence)
        run = self._runs.get(frame.sequence)
        if run is not None and isinstance(result, Judged | SamplingError):
            try:
                self._postprocess(run, frame, result)
            except (
                Exception
            ) as error:  # a fault in one answer leaves neither its client nor the others waiting
                log.exception("answer broken off", sequence=frame.sequence)
                self._abort(run, EngineFailed(f"internal error ({type(error).__name__})"))
        self._feed_ring()

    def on_guess(self, sequence: Sequence) -> None:
        """A proposer that takes its time has extended the sequence's line."""
        run = self._runs.get(sequence.number)
        if run is not None and sequence.state is State.DECODE:
            self._guess(run)
            self._feed_ring()

    def on_error(self, frame: Frame, error: Exception) -> None:
        """A stage could not run this frame: its sequence ends with EngineFailed, the others go on.

        Nothing depends on a frame that is void, or whose token is known already.
        """
        if self._failed is not None or frame.epoch != self._epoch:
            return
        self._scheduler.returned(frame.sequence)
        run = self._runs.get(frame.sequence)
        if run is not None and run.sequence.needs(frame.fence, frame.position):
            self._abort(run, EngineFailed(str(error)), intact=False)
        self._feed_ring()

    def fail(self, reason: str) -> None:
        """The ring is broken or the session over: all requests end with EngineFailed, and new ones too."""
        if self._failed is not None:
            return
        self._failed = reason
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._observer.on_aborted(reason)
            run.generation.put(EngineFailed(reason))

    def refuse_new(self, reason: str) -> None:
        """Take no more requests; those under way are answered to their end."""
        self._refusing = reason

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or are under way."""
        return bool(self._runs)

    def measured(self) -> Measured:
        """What this head has measured lately; on any thread."""
        runs = list(self._runs.values())
        waiting = sum(run.sequence.state is State.WAITING for run in runs)
        kept = sum(run.sequence.launched for run in runs)
        return self._recent.measured(
            running=len(runs) - waiting,
            waiting=waiting,
            slots=self._slots,
            kv_usage=kept / (self._slots * self.context_tokens),
        )

    def outlook(self) -> Outlook:
        """What guessing ahead promises, in the sequence that went on last."""
        return self._outlook or self._speculation.outlook(self._tempo)

    def _guess(self, run: _Run) -> None:
        run.guessing.go_on(self._tempo)
        self._outlook = run.guessing.outlook or self._outlook

    def _feed_ring(self) -> None:
        for command in self._scheduler.schedule(self._speculation.places(self._tempo)):
            self._launch(self._frame_of(command))

    def _frame_of(self, command: Command) -> Frame:
        sequence = command.sequence
        if isinstance(command, Chunk):
            return self._frame(Kind.TOKENS, sequence, command.position, command.ids, wanted=command.wanted)
        if isinstance(command, Release):
            return self._frame(Kind.RELEASE, sequence, sequence.launched)
        if isinstance(command, Adopt):
            assert command.source.slot is not None
            frame = self._frame(Kind.ADOPT, sequence, command.tokens)
            return replace(frame, **adopted_from(command.slot, command.source.number))
        row = command.row
        self._runs[sequence.number].flights.append((row, self._clock()))
        if row.by:
            self._observer.on_guess(row.by)
        frame = self._frame(Kind.TOKENS, sequence, row.position, (row.token,), wanted=True)
        return replace(frame, fence=row.fence, floor=row.floor)

    def _frame(
        self, kind: Kind, sequence: Sequence, position: int, ids: tuple[int, ...] = (), wanted: bool = False
    ) -> Frame:
        assert sequence.slot is not None
        return Frame(
            kind,
            self._epoch,
            sequence.number,
            sequence.slot,
            position,
            rows=len(ids),
            dtype=Dtype.INT32 if ids else Dtype.NONE,
            rows_wanted=int(wanted),
            payload=struct.pack(f"<{len(ids)}i", *ids),
        )

    def _postprocess(self, run: _Run, frame: Frame, result: Judged | SamplingError) -> None:
        """From token to text: the answer goes on, or ends and says why."""
        if isinstance(result, SamplingError):
            self._abort(run, EngineFailed(str(result)))
            return
        sampled = result.sampled
        self._count(run, frame, result.verdict)
        run.take(sampled)
        if sampled.token in run.eos_ids:
            self._finish_with_rest(run, "", "stop")
            return
        piece, stopped = run.stops.push(run.detokenizer.push(sampled.token))
        if stopped:
            self._finish(run, piece, "stop")
        elif run.heard == run.sequence.max_tokens:
            self._finish_with_rest(run, piece, "length")
        else:
            self._give(run, piece)
            self._scheduler.proceed(run.sequence)
            self._guess(run)

    def _finish_with_rest(self, run: _Run, piece: str, reason: str) -> None:
        """No more tokens: what was held back as the beginning of a character or of a stop string goes out."""
        rest, stopped = run.stops.push(run.detokenizer.flush())
        self._finish(run, piece + rest + run.stops.flush(), "stop" if stopped else reason)

    def _finish(self, run: _Run, piece: str, reason: str) -> None:
        self._give(run, piece)
        self._drop(run)
        measures = run.clock.finish(self._clock())
        finished = Finished(
            reason,
            len(run.sequence.prompt),
            run.heard,
            measures,
            run.tell(),
            run.sequence.kept,
            run.guessing.judged,
            run.guessing.right,
        )
        self._recent.finish(measures)
        self._observer.on_finished(finished)
        run.generation.put(finished)

    def _abort(self, run: _Run, error: EngineError, *, intact: bool = True) -> None:
        self._drop(run, intact=intact)
        self._observer.on_aborted(str(error))
        run.generation.put(error)

    def _cancel(self, number: int) -> None:
        """Nobody reads on: what is in the ring comes back unheeded, and the slot is freed right behind it."""
        run = self._runs.get(number)
        if run is not None:
            self._abort(run, Cancelled("the request was cancelled"))
            self._feed_ring()

    def _drop(self, run: _Run, *, intact: bool = True) -> None:
        if self._runs.pop(run.sequence.number, None):
            self._scheduler.end(run.sequence, intact=intact)

    def _give(self, run: _Run, piece: str) -> None:
        if not piece:
            return
        run.generation.put(Piece(piece, run.tell()))
        ttft_s = run.clock.text(self._clock())
        if ttft_s is not None:
            self._observer.on_first_token(ttft_s)

    def _count(self, run: _Run, frame: Frame, verdict: Verdict | None) -> None:
        now_s = self._clock()
        run.guessing.judge(verdict)
        if verdict is not None:
            self._observer.on_verdict(verdict)
        if (launched_s := run.landed(frame)) is not None:
            step = Step(now_s - launched_s, frame.stage_times)
            self._tempo.step(step, now_s)
            run.clock.step(step)
            self._recent.step(step)
            self._observer.on_step(step)
        self._recent.tokens += 1
        self._observer.on_token(run.clock.token(now_s))

    def _run_of(self, request: Request) -> _Run:
        room = self.context_tokens - len(request.prompt)
        max_tokens = request.max_tokens or max(1, room)
        if max_tokens > room:
            raise ContextExceeded(len(request.prompt), max_tokens, self.context_tokens)
        number = next(self._numbers)
        sequence = Sequence(number, request.prompt, max_tokens, request.member)
        return _Run(
            sequence,
            frozenset() if request.ignore_eos else self.text.eos_ids,
            Sampler(request.sampling, request.prompt, request.grammar),
            self.text.detokenizer(request.prompt, shown=request.shown),
            StopStrings(request.stop),
            self._speculation.guessing(sequence, wanted=request.speculation),
            Generation(lambda: self._cancel(number)),
            RequestClock(self._clock()),
        )

    def _retry_after_s(self) -> int:
        return min(60, max(1, math.ceil(self._recent.latency_s or 1)))
