"""This member's seat in the ring at work: its stage loop, its two edges, and on the head the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.frame import Dtype, Frame, FrameError, Kind, parse_frame
from kafila_planner.predict import CHUNK_TOKENS
from kafila_planner.ring import RingPlan
from kafila_proto.names import session_label

if TYPE_CHECKING:
    from kafila_agent.head.draft import DraftModel
    from kafila_agent.head.engine import Engine
    from kafila_agent.head.observer import Observer
    from kafila_agent.head.sequence import Sequence
    from kafila_agent.head.speculation import Proposer, Speculation
    from kafila_agent.session.work import HeadParts
    from kafila_agent.stage.executor import StageExecutor

log = structlog.get_logger()

# Rows of a prefill frame. Chunks start at multiples of it, so it must be the same whoever is head.
PREFILL_CHUNK = CHUNK_TOKENS
_ERROR_BYTES = 1000
_QUIET_S = 2.0  # a stage that is not the head knows of requests only by their frames


def neighbours(plan: RingPlan, name: str) -> tuple[str, str]:
    """(upstream, downstream) of a seated member; itself twice where it is alone."""
    ring = plan.ring
    place = ring.index(name)
    return ring[place - 1], ring[(place + 1) % len(ring)]


class Seat:
    """Frames in from upstream, through our blocks, out downstream. Made on the event loop that serves it."""

    def __init__(
        self,
        plan: RingPlan,
        name: str,
        edges: Mapping[str, Edge],
        executor: StageExecutor,
        *,
        session_id: bytes,
        epoch: int,
        concurrency: int,
        context_tokens: int,
        head: HeadParts | None,
        observer: Observer | None,
    ):
        from kafila_agent.head.engine import Engine
        from kafila_agent.stage.loop import StageLoop

        self.plan = plan
        self._log = log.bind(session=session_label(session_id), epoch=epoch)
        self._epoch = epoch
        self._heard_at = float("-inf")
        upstream, downstream = neighbours(plan, name)
        self._downstream = edges.get(downstream)
        self._upstream = edges.get(upstream)
        self.engine: Engine | None = None
        self._draft: DraftModel | None = None
        if head is not None:
            if observer is not None:
                observer.on_ring(plan.ring)
            self.engine = Engine(
                self._launch,
                head.text,
                epoch=epoch,
                slots=concurrency,
                context_tokens=context_tokens,
                prefill_chunk=PREFILL_CHUNK,
                chunks_in_flight=len(plan.ring) + 1,  # one for each stage, and one on its way
                rollback_tokens=head.rollback_tokens,
                speculation=self._speculation(head),
                observer=observer,
            )
        engine = self.engine
        at_the_head: dict[str, Any] = (
            {"awaits": engine.awaits, "sample": engine.sample, "on_sampled": engine.on_sampled}
            if engine
            else {}
        )
        self.loop = StageLoop(
            executor,
            epoch=epoch,
            is_head=self.engine is not None,
            is_last=plan.ring[-1] == name,
            send=self._send,
            on_error=self._failed,
            **at_the_head,
        )
        if self._upstream is not None:
            self._upstream.on_frame = self._received

    def _speculation(self, head: HeadParts) -> Speculation:
        """Guesses from the text itself, then by the draft model where there is one."""
        from kafila_agent.head.draft import DraftModel
        from kafila_agent.head.prompt_lookup import PromptLookup
        from kafila_agent.head.speculation import Speculation, guess_rows

        proposers: list[Callable[[], Proposer]] = [PromptLookup]
        if head.draft is not None:
            draft = self._draft = DraftModel(head.draft, self._guessed, vocab_size=head.text.vocab_size)
            proposers.append(lambda: draft)
        return Speculation(most_rows=guess_rows(head.rollback_tokens), proposers=proposers)

    @property
    def measured_stages_s(self) -> dict[str, float]:
        """Median compute of a decode step, by member; the head alone knows, from what its frames brought back."""
        ring = self.plan.ring
        if self.engine is None:
            return {}
        visits = self.engine.measured().stage_compute_s
        if len(visits) != len(ring) + 1:
            return {}
        # The head is visited twice: its blocks first, norm and LM head last.
        return dict(zip(ring, (visits[0] + visits[-1], *visits[1:-1]), strict=True))

    async def drain(self, patience_s: float) -> None:
        """Let the answers under way come to their end, for at most ``patience_s``; the head takes no new ones."""
        loop = asyncio.get_running_loop()
        if self.engine is not None:
            self.engine.refuse_new(
                "this machine's agent is being stopped: its session waits for it to start again"
            )
        deadline = loop.time() + patience_s
        while self._is_busy(loop.time()) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_QUIET_S / 20)  # nothing hangs on the moment

    def _is_busy(self, now: float) -> bool:
        return self.engine.is_busy if self.engine is not None else now - self._heard_at < _QUIET_S

    async def close(self, reason: str) -> None:
        """End every sequence with ``reason`` and let the worker go."""
        if self._upstream is not None:
            self._upstream.on_frame = None
        if self.engine is not None:
            self.engine.fail(reason)
        if self._draft is not None:
            await self._draft.close()
        await self.loop.close()

    def _guessed(self, sequence: Sequence) -> None:
        assert self.engine is not None
        self.engine.on_guess(sequence)

    def _launch(self, frame: Frame) -> None:
        self.loop.submit(frame)

    def _send(self, frame: Frame) -> None:
        assert self._downstream is not None
        # A stage may finish a frame when its edge has gone: the ring is over then, and its sequences end by that.
        if not self._downstream.closed:
            self._downstream.send(frame.encode())

    def _received(self, data: memoryview) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            frame = parse_frame(data)
        except FrameError as error:
            self._log.warning("frame dropped", reason=str(error))
            return
        if frame.kind is not Kind.FAILED:
            self.loop.submit(frame)
        elif frame.epoch == self._epoch:
            self._failed(frame, RuntimeError(bytes(frame.payload).decode(errors="replace")))

    def _failed(self, frame: Frame, error: Exception) -> None:
        """A frame could not be run, here or upstream: the head ends its sequence, the others only pass it on."""
        if self.engine is not None:
            self.engine.on_error(frame, error)
            return
        text = str(error).encode()[:_ERROR_BYTES]
        self._log.warning("stage failed", sequence=frame.sequence, reason=str(error))
        self._send(
            replace(
                frame,
                kind=Kind.FAILED,
                dtype=Dtype.UINT8,
                rows=len(text),
                width=0,
                rows_wanted=0,
                stage_times=(),
                payload=text,
            )
        )
