"""Answers in OpenAI's shapes: whole ones and stream chunks, for chat and for plain completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from kafila_agent.head.generation import Finished, Piece
from kafila_agent.head.sampler import Sampled


class Shape:
    """One answer's: every chunk of a stream carries the same id, time and model.

    With ``prompt_ids``, token ids are shown as vLLM does it: the prompt's once, each choice's own with its text.
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self, model: str, *, include_usage: bool = False, prompt_ids: Sequence[int] | None = None
    ) -> None:
        self._include_usage = include_usage
        self._with_ids = prompt_ids is not None
        self._prompt_ids = {} if prompt_ids is None else {"prompt_token_ids": list(prompt_ids)}
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, pieces: Sequence[Piece], finished: Finished) -> dict[str, Any]:
        """The answer in one piece."""
        choice = self._whole_choice("".join(piece.text for piece in pieces))
        choice |= self._ids([*(token for piece in pieces for token in piece.tokens), *finished.tokens])
        choice |= {"logprobs": None, "finish_reason": finished.reason}
        whole = {"object": self.whole_object, "choices": [choice], "usage": _usage(finished)}
        return self._head | self._prompt_ids | whole

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def piece(self, piece: Piece) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk(self._piece_choice(piece.text) | self._ids(piece.tokens), None)

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """Chunks after the last text: the reason, then the usage if it was asked for."""
        chunks = [self._chunk(self._last_choice() | self._ids(finished.tokens), finished.reason)]
        if self._include_usage:
            usage = {"choices": [], "usage": _usage(finished)}
            chunks.append(self._head | {"object": self.chunk_object} | usage)
        return chunks

    def _chunk(self, choice: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice |= {"logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        once, self._prompt_ids = self._prompt_ids, {}
        return self._head | once | {"object": self.chunk_object, "choices": [choice]} | usage

    def _ids(self, tokens: Iterable[Sampled]) -> dict[str, Any]:
        return {"token_ids": [each.token for each in tokens]} if self._with_ids else {}

    def _whole_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _piece_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _last_choice(self) -> dict[str, Any]:
        raise NotImplementedError


class ChatShape(Shape):
    """chat.completion, and its chunks: the first delta has the role, the last none of both."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """The role."""
        return [self._chunk({"index": 0, "delta": {"role": "assistant", "content": ""}}, None)]

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "message": {"role": "assistant", "content": text, "refusal": None}}

    def _piece_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": text}}

    def _last_choice(self) -> dict[str, Any]:
        return {"index": 0, "delta": {}}


class TextShape(Shape):
    """text_completion, whole and in chunks."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text}

    def _piece_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text}

    def _last_choice(self) -> dict[str, Any]:
        return {"index": 0, "text": ""}


def _usage(finished: Finished) -> dict[str, int]:
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
