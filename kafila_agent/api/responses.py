"""One answer over HTTP: whole, or as a stream of events; and a client that leaves, noticed either way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from kafila_agent.api.errors import api_error, event_of
from kafila_agent.api.shapes import Shape
from kafila_agent.head.generation import EngineError, Finished, Generation, Piece

# Silence after which a comment goes out, so that a client does not take a long prompt for a dead server.
KEEP_ALIVE_S = 10.0

_T = TypeVar("_T")
_CLIENT_LEFT = 499  # as proxies log it; nobody is left to read it

Event = tuple[int, Piece | Finished]  # the choice's index, and what has come of it


class Answers:
    """The generations of one request's choices, read as one. ``cancel`` it if unread."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self._events: asyncio.Queue[Event | EngineError] = asyncio.Queue()
        self._reading = [
            asyncio.create_task(self._read(index, each)) for index, each in enumerate(generations)
        ]

    async def next(self) -> Event:
        """What comes next. Raises EngineError if one of them breaks off; not to be called after the last end."""
        event = await self._events.get()
        if isinstance(event, EngineError):
            raise event
        return event

    async def all(self) -> list[Event]:
        """Everything, to the last end."""
        events: list[Event] = []
        left = len(self._generations)
        while left:
            events.append(await self.next())
            left -= isinstance(events[-1][1], Finished)
        return events

    def cancel(self) -> None:
        """Nobody reads on."""
        for task, generation in zip(self._reading, self._generations, strict=True):
            generation.cancel()
            task.cancel()

    async def _read(self, index: int, generation: Generation) -> None:
        try:
            async for event in generation:
                self._events.put_nowait((index, event))
        except EngineError as error:
            self._events.put_nowait(error)


async def whole_response(request: Request, answers: Answers, shape: Shape) -> Response:
    """The answer in one piece. Raises ApiError if it breaks off."""
    try:
        events = await _unless_client_leaves(request, answers.all())
    except EngineError as error:
        raise api_error(error) from error
    finally:
        answers.cancel()
    if events is None:
        return Response(status_code=_CLIENT_LEFT)
    body = json.dumps(shape.whole(events))  # in ASCII, as errors are
    return Response(body, headers=shape.headers(), media_type="application/json")


async def stream_response(request: Request, answers: Answers, shape: Shape) -> Response:
    """The answer as it comes. Raises ApiError if it breaks off before its first text.

    After KEEP_ALIVE_S without any text the stream is opened regardless.
    """
    try:
        first = await _unless_client_leaves(request, _next(answers, KEEP_ALIVE_S))
    except EngineError as error:
        answers.cancel()
        raise api_error(error) from error
    except BaseException:
        answers.cancel()
        raise
    if first is None:
        answers.cancel()
        return Response(status_code=_CLIENT_LEFT)
    return EventStream(answers, _events(first, answers, shape), shape.headers())


class EventStream(StreamingResponse):
    """Server-sent events that cancel their generations when they end for any reason."""

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, events: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(events, headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette stops the stream when the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.cancel()


class _Silence:
    """No event within the time given."""


async def _events(first: Event | _Silence, answers: Answers, shape: Shape) -> AsyncIterator[bytes]:
    """An answer that breaks off ends with an error event and without [DONE]: never like a whole one."""
    for chunk in shape.opening():
        yield event_of(chunk)
    event = first
    try:
        while True:
            if isinstance(event, _Silence):
                yield b": still working\n\n"
            else:
                for chunk in shape.take(*event):
                    yield event_of(chunk)
            if shape.is_complete:
                break
            event = await _next(answers, KEEP_ALIVE_S)
    except EngineError as error:
        yield event_of(api_error(error).body())
        return
    for chunk in shape.closing():
        yield event_of(chunk)
    yield b"data: [DONE]\n\n"


async def _next(answers: Answers, patience_s: float) -> Event | _Silence:
    try:
        async with asyncio.timeout(patience_s):
            return await answers.next()
    except TimeoutError:
        return _Silence()


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, _T]) -> _T | None:
    """The result of ``work``, or None if the client closed its connection first (``work`` is then cancelled)."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
