"""A real rendezvous on loopback for the agent's side of the control plane."""

from __future__ import annotations

import pytest

from kafila_rendezvous.server import Config, start_rendezvous


@pytest.fixture
async def start(tmp_path):
    """``await start(port=0, state="rv")`` serves; what still serves is stopped after the test."""
    started = []

    async def start_one(port: int = 0, state: str = "rv"):
        config = Config(state_dir=tmp_path / state, host="127.0.0.1", port=port, udp_port=0, metrics_port=0)
        server = await start_rendezvous(config)
        started.append(server)
        return server

    yield start_one
    for server in started:
        await server.close()
