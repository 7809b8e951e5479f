"""One choice of an answer, from the engine's pieces to deltas: what has come since the last one."""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafila_agent.head.answer_format import AnswerReader, Part, PartKind
from kafila_agent.head.generation import Finished, Piece
from kafila_agent.head.sampler import Sampled

Delta = dict[str, Any]
TokenBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class Shown:
    """What is shown beside the text. ``token_bytes``: with how likely each token was; ``token_ids``: their ids."""

    token_bytes: TokenBytes | None = None
    token_ids: bool = False
    end_ids: frozenset[int] = frozenset()  # tokens that say nothing but that it is the end


class Choice(ABC):
    """The base of both kinds. ``finished`` is there at its end."""

    def __init__(self, index: int, shown: Shown) -> None:
        self.index = index
        self.finished: Finished | None = None
        self._shown = shown
        self._untold: list[Sampled] = []

    @property
    def reason(self) -> str | None:
        """Why it ended."""
        return None if self.finished is None else self.finished.reason

    def take(self, event: Piece | Finished) -> list[Delta]:
        """The deltas that ``event`` makes; at the end always one at least, if only for its tokens."""
        self._untold += event.tokens
        if isinstance(event, Piece):
            deltas = self._read(event.text)
        else:
            self.finished = event
            deltas = [*self._rest(), self._empty()]
        if deltas:
            deltas[0] |= self._tokens()
        return [{"index": self.index} | delta for delta in deltas]

    def _tokens(self) -> Delta:
        tokens, self._untold = self._untold, []
        shown: Delta = {"token_ids": [each.token for each in tokens]} if self._shown.token_ids else {}
        if self._shown.token_bytes is not None:
            said = [each for each in tokens if each.token not in self._shown.end_ids]
            shown["logprobs"] = self._logprobs(said, self._shown.token_bytes) if said else None
        return shown

    @abstractmethod
    def _read(self, text: str) -> list[Delta]:
        """The deltas that ``text`` makes."""

    def _rest(self) -> list[Delta]:
        return []

    @abstractmethod
    def _empty(self) -> Delta:
        """A delta that says nothing."""

    @abstractmethod
    def _logprobs(self, tokens: Sequence[Sampled], token_bytes: TokenBytes) -> Any:
        """How likely ``tokens`` were, as this kind of answer tells of it."""


class ChatChoice(Choice):
    """A message: content, reasoning and calls, as ``reader`` tells them apart (None: all is content)."""

    def __init__(self, index: int, shown: Shown, reader: AnswerReader | None = None) -> None:
        super().__init__(index, shown)
        self._reader = reader
        self._calls = 0

    @property
    def reason(self) -> str | None:
        """Whoever called a tool waits for its answer."""
        reason = super().reason
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _read(self, text: str) -> list[Delta]:
        parts = [Part(PartKind.CONTENT, text)] if self._reader is None else self._reader.feed(text)
        return [self._delta(part) for part in parts]

    def _rest(self) -> list[Delta]:
        return [] if self._reader is None else [self._delta(part) for part in self._reader.finish()]

    def _empty(self) -> Delta:
        return {"delta": {}}

    def _delta(self, part: Part) -> Delta:
        if part.kind is not PartKind.CALL:
            name = "content" if part.kind is PartKind.CONTENT else "reasoning_content"
            return {"delta": {name: part.text}}
        call = {
            "index": self._calls,
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": part.name, "arguments": part.text},
        }
        self._calls += 1
        return {"delta": {"tool_calls": [call]}}

    def _logprobs(self, tokens: Sequence[Sampled], token_bytes: TokenBytes) -> Any:
        return {"content": [_told(each, token_bytes) for each in tokens], "refusal": None}


class TextChoice(Choice):
    """Plain text."""

    def __init__(self, index: int, shown: Shown) -> None:
        super().__init__(index, shown)
        self._offset = 0

    def _read(self, text: str) -> list[Delta]:
        return [{"text": text}]

    def _empty(self) -> Delta:
        return {"text": ""}

    def _logprobs(self, tokens: Sequence[Sampled], token_bytes: TokenBytes) -> Any:
        told = [_told(each, token_bytes) for each in tokens]
        offsets = []
        for each in told:
            offsets.append(self._offset)
            self._offset += len(each["token"])
        return {
            "tokens": [each["token"] for each in told],
            "token_logprobs": [each["logprob"] for each in told],
            "top_logprobs": [{top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in told],
            "text_offset": offsets,
        }


def _told(sampled: Sampled, token_bytes: TokenBytes) -> dict[str, Any]:
    """One token as OpenAI's API tells of it. JSON has no infinity: -9999 stands for impossible, as it does there."""
    assert sampled.logprobs is not None
    top = [_likelihood(token, value, token_bytes) for token, value in sampled.logprobs.top]
    return _likelihood(sampled.token, sampled.logprobs.taken, token_bytes) | {"top_logprobs": top}


def _likelihood(token: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    data = token_bytes(token)
    text = data.decode(errors="replace")
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(data)}


def joined(deltas: Iterable[Delta]) -> Delta:
    """All deltas of a choice as one: texts and lists one behind the other."""
    values: dict[str, list[Any]] = {}
    for delta in deltas:
        for name, value in delta.items():
            values.setdefault(name, []).append(value)
    return {name: _joined_values(each) for name, each in values.items()}


def _joined_values(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    match known:
        case []:
            return None
        case [str(), *_]:
            return "".join(known)
        case [list(), *_]:
            return list(itertools.chain.from_iterable(known))
        case [dict(), *_]:
            return joined(known)
    return known[0]
