"""The API as a client: one streamed answer. Used by ``chat`` and ``demo``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2


class ApiError(RuntimeError):
    """What the API said instead of an answer."""


def stream_chat(
    base_url: str, model: str, messages: list[dict[str, str]], api_key: str | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed chat completion, as OpenAI's objects. Raises ApiError."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    body |= options
    # trust_env: a proxy in the environment is for other people's machines, never for this one.
    with (
        httpx2.Client(trust_env=False, timeout=None) as client,
        client.stream("POST", f"{base_url}/chat/completions", json=body, headers=headers) as response,
    ):
        if response.status_code != 200:
            response.read()
            raise ApiError(_message(response.text))
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise ApiError(chunk["error"]["message"])
            yield chunk


def _message(text: str) -> str:
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text[:500]
