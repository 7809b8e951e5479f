"""This member's part of the plan, loaded: its blocks with their KV cache, and on the head the tokenizer."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafila_agent.config import AgentConfig
from kafila_agent.session.draft import load_draft
from kafila_planner.facts import parse_model
from kafila_planner.ring import RingPlan, Stage
from kafila_proto.rendezvous_pb2 import Charter

if TYPE_CHECKING:
    from kafila_agent.head.text import Text
    from kafila_agent.model.manifest import Manifest
    from kafila_agent.stage.executor import StageExecutor


class WorkError(RuntimeError):
    """This member cannot do its part; the message says what is missing and what to do."""


@dataclass(frozen=True)
class HeadParts:
    """What only the head holds, beside its stage. ``rollback_tokens``: how far all stages can go back, None for all."""

    text: Text
    rollback_tokens: int | None
    draft: StageExecutor | None


@dataclass(frozen=True)
class Work:
    """What ``load_work`` made; ``head`` on the head alone."""

    executor: StageExecutor
    head: HeadParts | None

    def clear(self) -> None:
        """Forget every sequence, keeping the weights."""
        self.executor.clear()
        if self.head is not None and self.head.draft is not None:
            self.head.draft.clear()


class Blocks:
    """What a member has read from its model, kept from plan to plan: only another part is read anew."""

    def __init__(self) -> None:
        self._part: tuple[int, int, bool] | None = None
        self._reading: asyncio.Task[Work] | None = None

    async def load(
        self,
        config: AgentConfig,
        plan: RingPlan,
        charter: Charter,
        manifest: Manifest,
        name: str,
        on_progress: Callable[[int, int], None],
    ) -> Work:
        """The planned part of member ``name``, with empty caches: read, unless it is here already.

        ``on_progress(loaded, total)`` is called on the event loop, in bytes as held in memory. Raises WorkError.
        """
        stage = next(stage for stage in plan.stages if stage.member == name)
        is_head = plan.head == name
        part = stage.start, stage.end, is_head
        if self._reading is None or part != self._part or _has_failed(self._reading):
            await self.let_go()
            self._part = part
            self._reading = asyncio.create_task(_read(config, charter, manifest, stage, is_head, on_progress))
        work = await asyncio.shield(self._reading)
        work.clear()
        loaded_bytes = work.executor.stage.loaded_bytes
        on_progress(loaded_bytes, loaded_bytes)
        return work

    async def let_go(self) -> None:
        """Hold nothing. A reading under way cannot be broken off: memory is there once it ends."""
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._reading = None
            gc.collect()


def _has_failed(reading: asyncio.Task[Work]) -> bool:
    return reading.done() and (reading.cancelled() or reading.exception() is not None)


async def _read(
    config: AgentConfig,
    charter: Charter,
    manifest: Manifest,
    stage: Stage,
    is_head: bool,
    on_progress: Callable[[int, int], None],
) -> Work:
    from kafila_agent.model.errors import ModelError

    loop = asyncio.get_running_loop()
    total_bytes = held_bytes(manifest, charter, stage, is_head=is_head)

    def progress(read: int, to_read: int) -> None:
        # The file may be quantised; what people are told is what memory will hold.
        loop.call_soon_threadsafe(on_progress, total_bytes * read // max(1, to_read), total_bytes)

    try:
        return await asyncio.to_thread(_load, config, charter, manifest, stage, is_head, progress)
    except ModelError as error:
        raise WorkError(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        raise WorkError(f"could not hold blocks {stage.start}–{stage.end - 1}: {error}") from error


def held_bytes(manifest: Manifest, charter: Charter, stage: Stage, *, is_head: bool) -> int:
    """Weights of a stage as the plan counted them."""
    from kafila_agent.model.facts import describe_model

    facts = describe_model(
        manifest,
        charter.model.dtype,
        context_tokens=charter.context_tokens,
        concurrency=charter.concurrency,
    )
    return sum(facts.block_bytes[stage.start : stage.end]) + (facts.head_bytes if is_head else 0)


def _load(
    config: AgentConfig,
    charter: Charter,
    manifest: Manifest,
    stage: Stage,
    is_head: bool,
    progress: Callable[[int, int], None],
) -> Work:
    from kafila_agent.head.text import Text, TextError
    from kafila_agent.model.blocks import load_stage
    from kafila_agent.model.kv import rollback_tokens
    from kafila_agent.pace import PacedExecutor, read_pace
    from kafila_agent.stage.executor import StageExecutor

    try:
        text = Text.from_model(manifest) if is_head else None
    except TextError as error:
        raise WorkError(str(error)) from error
    model = load_stage(
        manifest,
        stage.start,
        stage.end,
        is_head=is_head,
        dtype=charter.model.dtype,
        device=config.device,
        on_progress=progress,
    )
    head = None
    if text is not None:
        reach = rollback_tokens(manifest.kv, charter.context_tokens)
        head = HeadParts(text, reach, load_draft(config, charter))
    sizes = {
        "slots": charter.concurrency,
        "context_tokens": charter.context_tokens,
        "threads": config.threads,
    }
    if config.pace is None:
        return Work(StageExecutor(model, **sizes), head)
    facts = parse_model(json.loads(charter.model.facts_json))
    return Work(PacedExecutor(model, read_pace(config.pace), facts, **sizes), head)
