"""Sixteen clients at once over real sockets, coming and going as they like: nobody gets another's words."""

from __future__ import annotations

import asyncio
import random

import httpx2
import pytest
import torch

from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer
from tests.agent.head.models import give_tokenizer
from tests.agent.head.real_ring import RealRing, WholeModel

REQUESTS, CLIENTS = 200, 16


@pytest.fixture
async def session(checkpoint, tmp_path):
    """(base URL, ring, transformers' own model) of a two-stage ring of four slots."""
    directory = give_tokenizer(checkpoint("llama"), tmp_path / "llama")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    ring = RealRing(directory, [(0, 2), (2, 6)], slots=4)
    server = ApiServer("127.0.0.1", 0, lambda: Service("serving", "", "tiny", ring.engine))
    await server.start()
    yield server.url, ring, WholeModel(directory)
    await server.close()
    await ring.close()
    torch.set_num_threads(before)


class Client:
    """One of many: asks again and again, and now and then leaves before the end."""

    def __init__(self, number: int, http: httpx2.AsyncClient, prompts: list[list[int]]) -> None:
        self._draw = random.Random(number)
        self._http = http
        self._prompts = prompts
        self.answers: list[tuple[list[int], int, list[int]]] = []
        self.gone = 0

    async def ask(self) -> None:
        """One request, whole or streamed; of every five, two are given up, before or after their first text."""
        prompt = self._draw.choice(self._prompts)[: self._draw.randrange(1, 60)]
        tokens = self._draw.randrange(1, 20)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        patience_s = self._draw.choice([None, None, None, 0.0, 0.3])
        try:
            async with asyncio.timeout(patience_s):
                reply = await self._http.post("completions", json=body | {"return_token_ids": True})
        except TimeoutError:
            self.gone += 1
            return
        if reply.status_code == 429 or reply.status_code == 503:
            assert int(reply.headers["retry-after"]) >= 1
            await asyncio.sleep(0.05)
            await self.ask()
            return
        assert reply.status_code == 200, reply.text
        self.answers.append((prompt, tokens, reply.json()["choices"][0]["token_ids"]))

    async def stream(self) -> None:
        """A streamed request that is left after some text, by closing its connection."""
        prompt = self._draw.choice(self._prompts)[: self._draw.randrange(1, 60)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        async with self._http.stream("POST", "completions", json=body | {"stream": True}) as reply:
            async for _ in reply.aiter_lines():
                if self._draw.random() < 0.3:
                    break
        self.gone += 1


@pytest.mark.timeout(240)
async def test_each_of_two_hundred_answers_is_its_own_and_no_slot_is_lost(session):
    url, ring, model = session
    draw = random.Random(7)
    beginning = draw.choices(range(4, 128), k=24)  # many chats begin alike
    prompts = [beginning[: draw.choice([0, 12, 24])] + draw.choices(range(4, 128), k=40) for _ in range(6)]
    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=200, limits=limits) as http:
        clients = [Client(number, http, prompts) for number in range(CLIENTS)]
        left = REQUESTS

        async def work(client: Client) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await (client.stream() if client._draw.random() < 0.15 else client.ask())

        await asyncio.gather(*map(work, clients))
    answers = [answer for client in clients for answer in client.answers]
    assert sum(client.gone for client in clients) > 20
    assert len(answers) > 80
    for prompt, tokens, said in answers:
        assert model.would_say(tuple(prompt), said, tokens), (prompt, said)
    async with asyncio.timeout(20):
        while ring.engine.measured().running + ring.engine.measured().waiting or any(map(owners, ring.loops)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert ring.errors == []


def owners(loop) -> list[int]:
    """Sequences that own a slot of this stage."""
    return [slot.sequence for slot in loop._executor._kv.slots if slot.sequence is not None]
