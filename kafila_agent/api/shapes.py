"""Answers in OpenAI's shapes: whole ones and stream chunks, for chat and for plain completions.

A whole answer is its stream's deltas put together, so that the two cannot differ.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafila_agent.api.choices import Choice, Delta, joined
from kafila_agent.head.generation import Finished, Piece

_HOW = "kafila"  # beside what OpenAI's API defines: how the answer was made


@dataclass(frozen=True)
class Prompt:
    """What is said of the question. ``token_ids``: shown once, as vLLM does it."""

    model: str
    token_ids: Sequence[int] | None = None


class Shape(ABC):
    """One answer's: every chunk of a stream carries the same id, time and model. ``ring``: the members who made it."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self,
        prompt: Prompt,
        choices: Sequence[Choice],
        *,
        include_usage: bool = False,
        ring: Sequence[str] = (),
    ) -> None:
        self._choices = choices
        self._include_usage = include_usage
        self._ring = ring
        self._prompt_ids = {} if prompt.token_ids is None else {"prompt_token_ids": list(prompt.token_ids)}
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head = {"id": name, "created": int(time.time()), "model": prompt.model}

    @property
    def is_complete(self) -> bool:
        """Whether every choice has come to its end."""
        return all(choice.finished is not None for choice in self._choices)

    def headers(self) -> dict[str, str]:
        """How the answer was made, as far as it is known by now."""
        headers = {"x-kafila-members": ",".join(self._ring)} if self._ring else {}
        if self.is_complete:
            for name, value in self._how().items():
                if isinstance(value, float):
                    headers[f"x-kafila-{name.replace('_', '-')}"] = f"{value:.4f}"
        return headers

    def whole(self, events: Sequence[tuple[int, Piece | Finished]]) -> dict[str, Any]:
        """The answer in one piece, from everything that came."""
        deltas: list[list[Delta]] = [[] for _ in self._choices]
        for index, event in events:
            deltas[index] += self._choices[index].take(event)
        choices = [
            {"logprobs": None} | self._whole_choice(joined(own)) | {"finish_reason": choice.reason}
            for choice, own in zip(self._choices, deltas, strict=True)
        ]
        whole = {"object": self.whole_object, "choices": choices, "usage": self._usage(), _HOW: self._how()}
        return self._head | self._prompt_ids | whole

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def take(self, index: int, event: Piece | Finished) -> list[dict[str, Any]]:
        """The chunks that an event of a choice makes; the last of them has the reason for its end."""
        choice = self._choices[index]
        chunks = [self._chunk(delta) for delta in choice.take(event)]
        if choice.finished is not None:
            chunks[-1]["choices"][0]["finish_reason"] = choice.reason
            if self.is_complete and not self._include_usage:
                chunks[-1][_HOW] = self._how()
        return chunks

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last text: the usage, if it was asked for."""
        if not self._include_usage:
            return []
        usage = {"choices": [], "usage": self._usage(), _HOW: self._how()}
        return [self._head | {"object": self.chunk_object} | usage]

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        choice = {"logprobs": None} | delta | {"finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        once, self._prompt_ids = self._prompt_ids, {}
        return self._head | once | {"object": self.chunk_object, "choices": [choice]} | usage

    @abstractmethod
    def _whole_choice(self, delta: Delta) -> dict[str, Any]:
        """A choice of the whole answer, from all its deltas as one."""

    def _ends(self) -> list[Finished]:
        return [choice.finished for choice in self._choices if choice.finished is not None]

    def _usage(self) -> dict[str, Any]:
        ends = self._ends()
        prompt, completion = ends[0].prompt_tokens, sum(each.completion_tokens for each in ends)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": ends[0].cached_tokens},
        }

    def _how(self) -> dict[str, Any]:
        """Measured: first text after so long; tokens/s of all choices together; mean network share; guesses ahead."""
        measures = [each.measures for each in self._ends()]
        ttfts = [each.ttft_s for each in measures if each.ttft_s is not None]
        rates = [each.tokens_per_s for each in measures if each.tokens_per_s is not None]
        shares = [each.network_share for each in measures if each.network_share is not None]
        return {
            "members": list(self._ring),
            "ttft_s": min(ttfts) if ttfts else None,
            "tokens_per_s": sum(rates) if rates else None,
            "network_share": sum(shares) / len(shares) if shares else None,
            "guesses": sum(each.guesses for each in self._ends()),
            "right_guesses": sum(each.right_guesses for each in self._ends()),
        }


class ChatShape(Shape):
    """chat.completion, and its chunks: the first delta has the role, the last neither role nor text."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """The role, for each choice."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk({"index": choice.index, "delta": delta}) for choice in self._choices]

    def _whole_choice(self, delta: Delta) -> dict[str, Any]:
        said = delta.pop("delta")
        calls = [{k: v for k, v in call.items() if k != "index"} for call in said.get("tool_calls", ())]
        content = said.get("content") or (None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None}
        if "reasoning_content" in said:
            message["reasoning_content"] = said["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        return {"index": delta.pop("index"), "message": message} | delta


class TextShape(Shape):
    """text_completion, whole and in chunks."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _whole_choice(self, delta: Delta) -> dict[str, Any]:
        return delta
