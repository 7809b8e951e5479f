"""A member that is not the head carries its clients' requests to the head, which answers them as its own.

Each is one exchange over the edge between the two (``edge/stream.py``), and looks the same either way:

     0                 4
    +-----------------+------------------------+--------------------+
    | length, 32 bits | JSON of so many bytes  | body, to the end   |
    +-----------------+------------------------+--------------------+

The JSON of a request has ``method``, ``path``, ``query`` and ``headers``, that of an answer ``status`` and
``headers``. A client that leaves breaks the exchange off, and the head sees its own client leave.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafila_agent.api.errors import ApiError, event_of, unavailable
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.stream import EdgeStream
from kafila_proto.fleet import parse_json

log = structlog.get_logger()

MAX_BODY_BYTES = 32 << 20
MAX_ANSWER_BYTES = 64 << 20
CARRIED = "/v1/"
MEMBER = "kafila.member"  # in the scope of a carried request: whose it is

_MAX_HEAD_BYTES = 32 << 10
_LENGTH = struct.Struct("!I")
_REQUEST_HEADERS = ("content-type", "accept")
_RETRY_AFTER_S = 5

ReachHead = Callable[[], Awaitable[Edge]]


class CarryError(Exception):
    """What came is no request or answer of this version."""


async def carry(reach_head: ReachHead, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the head answer one request: an ASGI application's call."""
    body = await _read_body(receive)
    if body is None:
        return  # the client left
    if len(body) > MAX_BODY_BYTES:
        refusal = ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        await refusal.response()(scope, receive, send)
        return
    try:
        stream = (await reach_head()).streams.open()
    except EdgeError as error:
        refusal = unavailable(f"the head cannot be reached: {error}", _RETRY_AFTER_S)
        await refusal.response()(scope, receive, send)
        return
    stream.send(_encode_head(_request_head(scope)))
    stream.send(body, end=True)
    leaving = asyncio.create_task(_break_off_when_client_leaves(receive, stream))
    try:
        await _hand_on(stream, scope, receive, send)
    finally:
        leaving.cancel()
        stream.break_off()


async def answer(app: ASGIApp, member: str, stream: EdgeStream) -> None:
    """Let ``app`` answer what ``member`` has asked."""
    exchange = _Asked(stream)
    try:
        head = await exchange.read_head()
        await app(_scope(head, member), exchange.receive, exchange.send)
        await exchange.read_out()
    except (CarryError, EdgeError) as error:
        log.info("carried request dropped", peer=member, reason=str(error))
    except Exception:  # told to the client by the app itself, if anything had not gone out
        log.exception("carried request failed", peer=member)
    finally:
        stream.break_off()


class _Asked:
    """A carried request as ASGI's two calls."""

    def __init__(self, stream: EdgeStream):
        self._stream = stream
        self._rest = b""
        self._ended = False
        self._start: bytes = b""

    async def read_head(self) -> dict[str, Any]:
        head, self._rest = await _read_head(self._stream)
        return head

    async def receive(self) -> Message:
        try:
            if not self._ended:
                data = self._rest or await self._stream.receive()
                self._rest, self._ended = b"", data is None
                return {"type": "http.request", "body": data or b"", "more_body": data is not None}
            await self._stream.broken()
        except EdgeError:
            self._ended = True
        return {"type": "http.disconnect"}

    async def read_out(self) -> None:
        """Take what the answer had no need of: to break the exchange off here would take back what is on its way."""
        while not self._ended and await self._stream.receive() is not None:
            pass

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                [name.decode("latin-1"), value.decode("latin-1")] for name, value in message["headers"]
            ]
            self._start = _encode_head({"status": message["status"], "headers": headers})
        elif message["type"] == "http.response.body":
            data, self._start = self._start + message.get("body", b""), b""
            self._stream.send(data, end=not message.get("more_body", False))
            await self._stream.drained()


async def _hand_on(stream: EdgeStream, scope: Scope, receive: Receive, send: Send) -> None:
    """The head's answer to the client; one that breaks off ends in an error, never like a whole one."""
    started = False
    try:
        head, rest = await _read_head(stream)
        start, streamed = _response_start(head)
        if not streamed:
            rest += await _read_rest(stream)
        await send(start)
        started = True
        await send({"type": "http.response.body", "body": rest, "more_body": streamed})
        while streamed and (data := await stream.receive()) is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if streamed:
            await send({"type": "http.response.body", "body": b""})
    except (CarryError, EdgeError) as error:
        failure = unavailable(f"lost the head with the request under way: {error}", _RETRY_AFTER_S)
        if started:
            await send({"type": "http.response.body", "body": event_of(failure.body())})
        else:
            await failure.response()(scope, receive, send)


async def _read_body(receive: Receive) -> bytes | None:
    """The client's whole body, or as much as shows that it is too long; None if the client left."""
    body = bytearray()
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


async def _break_off_when_client_leaves(receive: Receive, stream: EdgeStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.break_off("the client left")


def _encode_head(head: dict[str, Any]) -> bytes:
    data = json.dumps(head).encode()
    return _LENGTH.pack(len(data)) + data


async def _read_head(stream: EdgeStream) -> tuple[dict[str, Any], bytes]:
    """The JSON, and the beginning of the body that came with it. Raises CarryError, EdgeError."""
    data = await _read_at_least(stream, b"", _LENGTH.size)
    (length,) = _LENGTH.unpack_from(data)
    if length > _MAX_HEAD_BYTES:
        raise CarryError(f"a head of {length} bytes")
    end = _LENGTH.size + length
    data = await _read_at_least(stream, data, end)
    try:
        head = parse_json(data[_LENGTH.size : end])
    except ValueError as error:
        raise CarryError(f"a head that is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise CarryError("a head that is no object")
    return head, data[end:]


async def _read_at_least(stream: EdgeStream, data: bytes, size: int) -> bytes:
    while len(data) < size:
        more = await stream.receive()
        if more is None:
            raise CarryError("it ended early")
        data += more
    return data


async def _read_rest(stream: EdgeStream) -> bytes:
    rest = bytearray()
    while (data := await stream.receive()) is not None:
        rest += data
        if len(rest) > MAX_ANSWER_BYTES:
            raise CarryError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(rest)


def _request_head(scope: Scope) -> dict[str, Any]:
    headers = Headers(scope=scope)
    return {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope.get("query_string", b"").decode("latin-1"),
        "headers": [[name, headers[name]] for name in _REQUEST_HEADERS if name in headers],
    }


def _scope(head: dict[str, Any], member: str) -> Scope:
    """What the head's application is told of a carried request. Raises CarryError."""
    try:
        method, path, query = (str(head[name]) for name in ("method", "path", "query"))
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]
        ]
        path_bytes, query_bytes = path.encode(), query.encode("latin-1")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CarryError(f"a request's head without its parts ({error})") from error
    if not path.startswith(CARRIED):
        raise CarryError(f"{path!r} is not carried")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path_bytes,
        "query_string": query_bytes,
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        MEMBER: member,
    }


def _response_start(head: dict[str, Any]) -> tuple[Message, bool]:
    """ASGI's message, and whether the body is a stream of events. Raises CarryError."""
    try:
        status = int(head["status"])
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CarryError(f"an answer's head without its parts ({error})") from error
    streamed = any(
        name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
    )
    return {"type": "http.response.start", "status": status, "headers": headers}, streamed
