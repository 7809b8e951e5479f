"""Users of a session: requests over HTTP from the head's own host, and when each token came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.natlab.resident import Resident

_PATIENCE_S = 600.0
_EDGE_BYTES_SENT = "kafila_edge_bytes_total{"


class AnswerBroken(RuntimeError):
    """A user's answer ended before its time."""


@dataclass(frozen=True)
class Answer:
    """One user's tokens; ``times_s`` says when each of them came, on one clock for all users."""

    token_ids: tuple[int, ...]
    times_s: tuple[float, ...]
    ttft_s: float

    @property
    def tokens_per_s(self) -> float:
        """The rate after the first token."""
        return (len(self.times_s) - 1) / (self.times_s[-1] - self.times_s[0])


class Client:
    """Talks to one agent from its own host."""

    def __init__(self, namespace: str, url: str, model: str) -> None:
        self._home = Resident(namespace)
        self._url, self._model = url, model

    def close(self) -> None:
        """Leave the host."""
        self._home.close()

    def ask(self, prompts: Sequence[str], tokens: int, **options: Any) -> list[Answer]:
        """One user for each prompt, all at once: greedy answers of just so many tokens, unless ``options`` differ."""
        return self._home.run(self._ask_all(prompts, tokens, options))

    def edge_bytes_sent(self) -> dict[str, float]:
        """Frame bytes that this agent's edges have sent, by peer; ``url`` is its metrics'."""
        text = self._home.run(self._get())
        sent: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith(_EDGE_BYTES_SENT) and 'direction="sent"' in line:
                peer = line.split('peer="')[1].split('"')[0]
                sent[peer] = float(line.rpartition(" ")[2])
        return sent

    async def _get(self) -> str:
        async with httpx2.AsyncClient(trust_env=False, timeout=_PATIENCE_S) as http:
            return (await http.get(self._url)).text

    async def _ask_all(self, prompts: Sequence[str], tokens: int, options: dict[str, Any]) -> list[Answer]:
        async with httpx2.AsyncClient(trust_env=False, timeout=_PATIENCE_S) as http:
            return list(await asyncio.gather(*(self._ask(http, p, tokens, options) for p in prompts)))

    async def _ask(
        self, http: httpx2.AsyncClient, prompt: str, tokens: int, options: dict[str, Any]
    ) -> Answer:
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "return_token_ids": True} | options
        ids: list[int] = []
        times: list[float] = []
        asked_s = time.monotonic()
        async with http.stream("POST", f"{self._url}/completions", json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise AnswerBroken(chunk["error"]["message"])
                came = [token for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
                ids += came
                times += [time.monotonic()] * len(came)
        if len(ids) != tokens:
            raise AnswerBroken(f"{len(ids)} tokens of {tokens} came")
        return Answer(tuple(ids), tuple(times), times[0] - asked_s)
