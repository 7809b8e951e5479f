"""OpenAI's error object for everything that goes wrong, and which status it goes with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from kafila_agent.head.generation import Busy, ContextExceeded, EngineError
from kafila_agent.head.text import TextError

RETRY_AFTER_FAILURE_S = 5

NO_OBJECT = "The body must be a JSON object sent as application/json."

# What pydantic calls it -> what OpenAI's server says of the argument.
_WORDS = {
    "extra_forbidden": "Unrecognized request argument supplied: {param}",
    "missing": "Missing required parameter: '{param}'.",
    "json_invalid": "We could not parse the JSON body of your request: {error}.",
}


class ApiError(Exception):
    """An answer that is an error. ``retry_after_s`` goes out as Retry-After."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The error object, as a response's body or a stream's event."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole response. In ASCII: a message may quote half a surrogate pair, which JSON can say and UTF-8 not."""
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return Response(json.dumps(self.body()), self.status, headers, media_type="application/json")


def event_of(data: dict[str, Any]) -> bytes:
    """``data`` as a server-sent event. In ASCII: some clients end a line at more than its end (U+2028, say)."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def unavailable(message: str, retry_after_s: int, code: str = "service_unavailable") -> ApiError:
    """A 503: not now."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def api_error(error: EngineError | TextError, prompt_param: str | None = None) -> ApiError:
    """What the head's own errors are to a client. ``prompt_param``: the argument that the prompt came in."""
    match error:
        case ContextExceeded():
            return ApiError(400, str(error), param=prompt_param, code="context_length_exceeded")
        case TextError():
            return ApiError(400, str(error), param=prompt_param)
        case Busy():
            return unavailable(str(error), error.retry_after_s, "busy")
        case _:
            return unavailable(str(error), RETRY_AFTER_FAILURE_S)


def add_error_handlers(app: FastAPI) -> None:
    """Make every error of ``app`` an error object."""
    app.add_exception_handler(ApiError, _own)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


async def _own(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _validation(_: Request, error: Exception) -> Response:
    """FastAPI's 422 is not OpenAI's: 400, with the first argument that is wrong."""
    assert isinstance(error, RequestValidationError)
    return _refusal(error.errors()[0]).response()


def _refusal(detail: Mapping[str, Any]) -> ApiError:
    kind, words, param = detail["type"], detail["msg"], parameter_name(detail["loc"][1:])
    if kind == "invalid" and (named := detail["ctx"].get("param")):
        return ApiError(400, words, param=named)
    if kind == "json_invalid":
        return ApiError(400, _WORDS[kind].format(error=detail["ctx"]["error"]))
    if param is None:  # the body as a whole: one of our own rules, or no object at all
        return ApiError(400, words if kind == "invalid" else NO_OBJECT)
    message = _WORDS.get(kind, "Invalid '{param}': {error}").format(param=param, error=words)
    code = "unsupported_parameter" if kind in ("unsupported", "extra_forbidden") else None
    return ApiError(400, message, param=param, code=code)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, str(error.detail)).response()


async def _unforeseen(_: Request, error: Exception) -> Response:
    return ApiError(500, f"internal error ({type(error).__name__})", kind="server_error").response()


def parameter_name(location: tuple[str | int, ...]) -> str | None:
    """``messages[0].content`` from pydantic's location; None for the body as a whole."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name or None
