"""OpenAI's routes: what a request means, and what the session says while it does not serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kafila_agent.api.asking import Asked, ask_chat, ask_text
from kafila_agent.api.carry import MEMBER, ReachHead
from kafila_agent.api.errors import ApiError, api_error, unavailable
from kafila_agent.api.responses import Answers, stream_response, whole_response
from kafila_agent.api.schemas import ChatRequest, CompletionOptions, TextRequest
from kafila_agent.head.engine import Engine
from kafila_agent.head.generation import EngineError, Generation
from kafila_agent.head.text import Text, TextError

SERVING = "serving"

# No token stands for more text than this; what is longer than a whole context of such need not be tokenized.
CHARACTERS_A_TOKEN = 256


@dataclass(frozen=True)
class Service:
    """What this agent can do for a client right now.

    In a session that serves there is on the head its ``engine``, on any other member ``reach_head``; otherwise
    ``message`` says what to wait for. ``created``: Unix seconds since when the model is served. ``ring``: who makes
    the answers, from the head on.
    """

    state: str
    message: str = ""
    model: str | None = None
    engine: Engine | None = None
    created: int = 0
    reach_head: ReachHead | None = None
    ring: Sequence[str] = ()
    retry_after_s: int = 5


BodyT = TypeVar("BodyT", bound=CompletionOptions)
GetService = Callable[[], Service]


def openai_router(get_service: GetService) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def list_models() -> JSONResponse:
        service = get_service()
        _engine(service)
        return JSONResponse({"object": "list", "data": [_model(service)]})

    @router.get("/models/{name:path}")
    async def get_model(name: str) -> JSONResponse:
        service = get_service()
        _engine(service)
        _require_model(service, name)
        return JSONResponse(_model(service))

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        characters = sum(len(message.content or "") for message in body.messages)
        return await _answer(get_service(), body, ask_chat, request, "messages", characters)

    @router.post("/completions")
    async def complete(body: TextRequest, request: Request) -> Response:
        return await _answer(get_service(), body, ask_text, request, "prompt", len(body.prompt))

    return router


async def _answer(
    service: Service,
    body: BodyT,
    ask: Callable[[BodyT, Text, Sequence[str], str], Asked],
    request: Request,
    param: str,
    characters: int,
) -> Response:
    """``param``: the argument that the prompt of so many ``characters`` came in."""
    engine = _engine(service)
    _require_model(service, body.model)
    _require_room(engine, characters, param)
    member = request.scope.get(MEMBER, "")
    try:
        asked = await asyncio.to_thread(ask, body, engine.text, service.ring, member)
        generations = _generate(engine, asked)
    except (TextError, EngineError) as error:
        raise api_error(error, param) from error
    answers = Answers(generations)
    return await (stream_response if body.stream else whole_response)(request, answers, asked.shape)


def _generate(engine: Engine, asked: Asked) -> list[Generation]:
    """All choices, or none. Raises EngineError."""
    generations: list[Generation] = []
    try:
        for each in asked.requests:
            generations.append(engine.generate(each))
    except EngineError:
        for generation in generations:
            generation.cancel()
        raise
    return generations


def _engine(service: Service) -> Engine:
    if service.engine is None:
        message = service.message or f"the session does not serve yet: {service.state}"
        raise unavailable(message, service.retry_after_s)
    return service.engine


def _require_room(engine: Engine, characters: int, param: str) -> None:
    """Refuse a text that cannot fit before a thread spends seconds on tokenizing it."""
    most = engine.context_tokens * CHARACTERS_A_TOKEN
    if characters > most:
        raise ApiError(
            400,
            f"{characters} characters are more than the context of {engine.context_tokens} tokens can hold",
            param=param,
            code="context_length_exceeded",
        )


def _require_model(service: Service, name: str) -> None:
    if name != service.model:
        raise ApiError(
            404,
            f"The model '{name}' does not exist. This session serves '{service.model}'.",
            param="model",
            code="model_not_found",
        )


def _model(service: Service) -> dict[str, object]:
    return {"id": service.model, "object": "model", "created": service.created, "owned_by": "kafila"}
