"""OpenAI's routes: what a request means, and what the session says while it does not serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kafila_agent.api.carry import MEMBER, ReachHead
from kafila_agent.api.errors import ApiError, api_error, unavailable
from kafila_agent.api.responses import stream_response, whole_response
from kafila_agent.api.schemas import ChatRequest, CompletionOptions, TextRequest
from kafila_agent.api.shapes import ChatShape, Shape, TextShape
from kafila_agent.head.engine import Engine
from kafila_agent.head.generation import EngineError
from kafila_agent.head.text import TextError

SERVING = "serving"

# No token stands for more text than this; what is longer than a whole context of such need not be tokenized.
CHARACTERS_A_TOKEN = 256


@dataclass(frozen=True)
class Service:
    """What this agent can do for a client right now.

    In a session that serves there is on the head its ``engine``, on any other member ``reach_head``; otherwise
    ``message`` says what to wait for. ``created``: Unix seconds since when the model is served.
    """

    state: str
    message: str = ""
    model: str | None = None
    engine: Engine | None = None
    created: int = 0
    reach_head: ReachHead | None = None
    retry_after_s: int = 5


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
        service = get_service()
        engine = _engine(service)
        _require_model(service, body.model)
        turns = [message.as_turn() for message in body.messages]
        _require_room(engine, sum(len(str(turn.get("content") or "")) for turn in turns), "messages")
        arguments = body.chat_template_kwargs or {}
        try:
            prompt = await asyncio.to_thread(engine.text.encode_chat, turns, **arguments)
        except TextError as error:
            raise api_error(error, "messages") from error
        shape = ChatShape(body.model, **body.shown(prompt))
        return await _answer(engine, body, prompt, "messages", shape, request)

    @router.post("/completions")
    async def complete(body: TextRequest, request: Request) -> Response:
        service = get_service()
        engine = _engine(service)
        _require_model(service, body.model)
        _require_room(engine, len(body.prompt), "prompt")
        try:
            prompt = await asyncio.to_thread(body.ids, engine.text.encode, engine.text.vocab_size)
        except ValueError as error:
            raise ApiError(400, f"Invalid 'prompt': {error}", param="prompt") from error
        shape = TextShape(body.model, **body.shown(prompt))
        return await _answer(engine, body, prompt, "prompt", shape, request)

    return router


async def _answer(
    engine: Engine, body: CompletionOptions, prompt: list[int], param: str, shape: Shape, request: Request
) -> Response:
    if not prompt:
        raise ApiError(400, f"Invalid '{param}': it has no tokens", param=param)
    try:
        asked = body.engine_request(prompt, engine.text.vocab_size, request.scope.get(MEMBER, ""))
    except ValueError as error:
        raise ApiError(400, f"Invalid 'logit_bias': {error}", param="logit_bias") from error
    try:
        generation = engine.generate(asked)
    except EngineError as error:
        raise api_error(error, param) from error
    return await (stream_response if body.stream else whole_response)(request, generation, shape)


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
