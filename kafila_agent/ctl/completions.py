"""The API as a client: the model, and one streamed answer. Used by ``chat`` and ``demo``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2


class ApiError(RuntimeError):
    """What the API said instead of an answer."""


def served_model(base_url: str, api_key: str | None = None) -> str:
    """The name of the model at ``base_url``. Raises ApiError."""
    try:
        with _client() as client:
            response = client.get(f"{base_url}/models", headers=_headers(api_key), timeout=60)
    except httpx2.HTTPError as error:
        raise ApiError(f"there is no answer from the API at {base_url}: {error}") from error
    if response.status_code != 200:
        raise ApiError(_message(response.text))
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ApiError(f"what answers at {base_url} is not OpenAI's API") from error


def stream_chat(
    base_url: str, model: str, messages: list[dict[str, str]], api_key: str | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed chat completion, as OpenAI's objects. Raises ApiError."""
    body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    body |= options
    with (
        _client() as client,
        client.stream(
            "POST", f"{base_url}/chat/completions", json=body, headers=_headers(api_key)
        ) as response,
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


def _client() -> httpx2.Client:
    """A proxy in the environment is for other people's machines, never for this one: trust_env."""
    return httpx2.Client(trust_env=False, timeout=None)


def _headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def _message(text: str) -> str:
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text[:500]
