"""What is asked of the engine, and the answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from kafila_agent.head.grammar import Grammar
from kafila_agent.head.measure import RequestMeasures
from kafila_agent.head.sampler import Sampled, Sampling


class EngineError(RuntimeError):
    """A request that cannot be, or was not, answered."""


class EngineFailed(EngineError):
    """The ring broke, or the session ended, with the request under way."""


class Cancelled(EngineError):
    """The request was given up by the one who made it."""


class Busy(EngineError):
    """All slots are taken and as many requests wait as may; ``retry_after_s`` is a guess from recent ones."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(
            f"all slots are busy and {waiting} requests are waiting; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class ContextExceeded(EngineError):
    """Prompt and answer do not fit into the session's context."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the prompt, {max_tokens} to answer)."
        )


@dataclass(frozen=True)
class Request:
    """``max_tokens`` None: all the context leaves. ``ignore_eos``: go on past the model's own end.

    ``member``: whose machine it came from, so that each gets its fair share; empty for the head's own.
    ``shown``: special tokens that stay in the text, for whoever reads it. ``grammar``: the form of the answer.
    ``speculation``: guess ahead; no answer changes.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    member: str = ""
    shown: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    speculation: bool = True

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no tokens")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of the answer, never empty, and the tokens sampled since the piece before."""

    text: str
    tokens: tuple[Sampled, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the answer. ``reason`` is ``stop`` or ``length``, as OpenAI's API has it.

    ``tokens``: those after the last piece, such as the model's own end. ``cached_tokens``: of the prompt, those that a
    slot still held. ``guesses`` of what follows came to be judged, ``right_guesses`` of them were right.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int
    measures: RequestMeasures
    tokens: tuple[Sampled, ...] = ()
    cached_tokens: int = 0
    guesses: int = 0
    right_guesses: int = 0


class Generation(AsyncIterator[Piece | Finished]):
    """One answer: pieces, then Finished. Raises EngineError if it breaks off. ``cancel`` it if unread."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._events: asyncio.Queue[Piece | Finished | EngineError] = asyncio.Queue()
        self._over = False
        self.cancel = cancel

    def put(self, event: Piece | Finished | EngineError) -> None:
        """What comes next; for the engine."""
        self._events.put_nowait(event)

    async def __anext__(self) -> Piece | Finished:
        if self._over:
            raise StopAsyncIteration
        event = await self._events.get()
        self._over = not isinstance(event, Piece)
        if isinstance(event, EngineError):
            raise event
        return event
