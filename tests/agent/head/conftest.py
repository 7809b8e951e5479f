from __future__ import annotations

from collections.abc import Callable

import pytest

from kafila_agent.head.engine import Engine
from kafila_agent.head.text import Text
from tests.agent.head.models import smollm2_text
from tests.agent.head.simulated_ring import SimulatedRing


@pytest.fixture(scope="session")
def text(smollm2) -> Text:
    return smollm2_text(smollm2)


@pytest.fixture
def make_engine(text) -> Callable[..., Engine]:
    """``make_engine(ring, ...)``: an engine on a simulated ring."""

    def make(ring: SimulatedRing, **options: object) -> Engine:
        settings = {"epoch": 7, "slots": 4, "context_tokens": 256, "prefill_chunk": 8, "clock": ring.clock}
        ring.engine = Engine(ring.launch, text, **(settings | options))
        return ring.engine

    return make
