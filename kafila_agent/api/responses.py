"""One answer over HTTP: whole, or as a stream of events; and a client that leaves, noticed either way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from kafila_agent.api.errors import api_error, event_of
from kafila_agent.api.shapes import Shape
from kafila_agent.head.generation import EngineError, Finished, Generation, Piece

# Silence after which a comment goes out, so that a client does not take a long prompt for a dead server.
KEEP_ALIVE_S = 10.0

_T = TypeVar("_T")
_CLIENT_LEFT = 499  # as proxies log it; nobody is left to read it


async def whole_response(request: Request, generation: Generation, shape: Shape) -> Response:
    """The answer in one piece. Raises ApiError if it breaks off."""
    try:
        events = await _unless_client_leaves(request, _collect(generation))
    except EngineError as error:
        raise api_error(error) from error
    finally:
        generation.cancel()
    if events is None:
        return Response(status_code=_CLIENT_LEFT)
    *pieces, finished = events
    return JSONResponse(shape.whole(pieces, finished))


async def stream_response(request: Request, generation: Generation, shape: Shape) -> Response:
    """The answer as it comes. Raises ApiError if it breaks off before its first text.

    After KEEP_ALIVE_S without any text the stream is opened regardless.
    """
    try:
        first = await _unless_client_leaves(request, _next(generation, KEEP_ALIVE_S))
    except EngineError as error:
        raise api_error(error) from error
    except BaseException:
        generation.cancel()
        raise
    if first is None:
        generation.cancel()
        return Response(status_code=_CLIENT_LEFT)
    return EventStream(generation, _events(first, generation, shape))


class EventStream(StreamingResponse):
    """Server-sent events that cancel their generation when they end for any reason."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette stops the stream when the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


class _Silence:
    """No event within the time given."""


async def _events(
    first: Piece | Finished | _Silence, generation: Generation, shape: Shape
) -> AsyncIterator[bytes]:
    """An answer that breaks off ends with an error event and without [DONE]: never like a whole one."""
    for chunk in shape.opening():
        yield event_of(chunk)
    event = first
    try:
        while not isinstance(event, Finished):
            yield b": still working\n\n" if isinstance(event, _Silence) else event_of(shape.piece(event))
            event = await _next(generation, KEEP_ALIVE_S)
    except EngineError as error:
        yield event_of(api_error(error).body())
        return
    for chunk in shape.closing(event):
        yield event_of(chunk)
    yield b"data: [DONE]\n\n"


async def _next(generation: Generation, patience_s: float) -> Piece | Finished | _Silence:
    try:
        async with asyncio.timeout(patience_s):
            return await anext(generation)
    except TimeoutError:
        return _Silence()


async def _collect(generation: Generation) -> list[Any]:
    return [event async for event in generation]


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
