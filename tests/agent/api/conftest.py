from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx2
import pytest
import torch

from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer
from kafila_agent.edge.frame import Frame
from kafila_agent.head.engine import Engine
from kafila_agent.head.text import Text
from tests.agent.head.models import smollm2_text
from tests.agent.head.simulated_ring import ALL_TOKENS, SimulatedRing, one_hot

MODEL = "smollm2"


@pytest.fixture(scope="session")
def text(smollm2) -> Text:
    return smollm2_text(smollm2)


def any_logits(history: tuple[int, ...]) -> torch.Tensor:
    """float32 [ALL_TOKENS], a function of the history."""
    generator = torch.Generator().manual_seed(hash(history) & 0xFFFFFFFF)
    return torch.randn(ALL_TOKENS, generator=generator)


@dataclass
class RunningRing(SimulatedRing):
    """Turns by itself on the event loop. With ``reply``, every sequence is answered with those tokens, then end.

    With ``wide`` the model may say any token at all. ``held`` stops it before the launch of that number; ``release``
    lets it go on.
    """

    reply: list[int] | None = None
    wide: bool = False
    held: int | None = None
    prompts: dict[int, int] = field(default_factory=dict)  # how long each sequence's is
    turning: bool = False

    def launch(self, frame: Frame) -> None:
        super().launch(frame)
        self._start()

    def release(self) -> None:
        self.held = None
        self._start()

    def logits_of(self, frame, history):
        if self.reply is None:
            return any_logits(history) if self.wide else super().logits_of(frame, history)
        place = len(history) - self.prompts.setdefault(frame.sequence, len(history))
        return one_hot([*self.reply, 2][min(place, len(self.reply))])

    def _start(self) -> None:
        if not self.turning:
            self.turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.turning = False
        if self.idle or (self.held is not None and len(self.launched) >= self.held):
            return
        self.step()
        self._start()


@dataclass
class Api:
    """A server that really listens, its engine, and what it says of itself."""

    server: ApiServer
    service: Service
    ring: RunningRing
    engine: Engine
    http: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return self.server.url

    async def chat(self, words: str = "hi", **options) -> httpx2.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "temperature": 0} | options
        return await self.http.post("chat/completions", json=body)

    @property
    def requests(self) -> int:
        """Running or waiting."""
        return self.engine.measured().running + self.engine.measured().waiting

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the server's and the clients' sockets work until it holds: at most five seconds."""
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.001)
        pytest.fail("it did not come to that")


@pytest.fixture
async def make_api(text) -> AsyncIterator[Callable]:
    """``await make_api(reply="words", ...)``: an Api whose model always answers so, or that hashes.

    Without ``listen`` the requests are handed to the application in memory.
    """
    opened: list[Api] = []

    async def make(
        reply: str | None = None,
        *,
        held: int | None = None,
        wide: bool = False,
        service: Service | None = None,
        server: dict | None = None,
        listen: bool = True,
        **options: object,
    ) -> Api:
        ring = RunningRing(2, reply=None if reply is None else text.encode(reply), held=held, wide=wide)
        settings = {"epoch": 1, "slots": 2, "context_tokens": 256, "prefill_chunk": 16, "clock": ring.clock}
        ring.engine = Engine(ring.launch, **({"text": text} | settings | options))
        api = Api(None, Service("serving", "", MODEL, ring.engine, 17), ring, ring.engine, None)
        if service is not None:
            api.service = service
        api.server = ApiServer(
            **{"host": "127.0.0.1", "port": 0, "get_service": lambda: api.service} | (server or {})
        )
        if listen:
            await api.server.start()
        transport = None if listen else httpx2.ASGITransport(api.server.app)
        api.http = httpx2.AsyncClient(base_url=api.url, trust_env=False, timeout=20, transport=transport)
        opened.append(api)
        return api

    yield make
    for api in opened:
        await api.http.aclose()
        api.engine.fail("the test is over")
        await api.server.close()
