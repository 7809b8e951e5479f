"""A real rendezvous on loopback, and parties that speak to it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kafila_rendezvous.server import Config, start_rendezvous


def _load(name: str):
    """A module that lies beside this file; tests are no packages."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


parties = _load("parties")


@pytest.fixture(scope="session")
def world_module():
    """tests/rendezvous/world.py"""
    return _load("world")


@pytest.fixture(scope="module")
def agents(world_module):
    return [world_module.Agent(name) for name in ("desk", "lap", "attic", "spare")]


@pytest.fixture
def world(world_module, agents):
    """A registry without a network, and four agents that are attached."""
    made = world_module.World(agents)
    for agent in agents:
        made.attach(agent)
    return made


@pytest.fixture
def session_of(world):
    """``session_of()``: the one session that there is."""
    return lambda: world.registry.sessions[b"s" * 16].session


@pytest.fixture
async def rendezvous(tmp_path):
    server = await start_rendezvous(
        Config(state_dir=tmp_path / "rv", host="127.0.0.1", port=0, metrics_port=0)
    )
    yield server
    await server.close()


@pytest.fixture
async def make_party(rendezvous, tmp_path):
    """``await make_party(name)`` is an attached party; all are closed after the test."""
    made = []

    async def make(name: str, identity=None, association_of=None):
        address = f"127.0.0.1:{rendezvous.grpc_port}"
        party = parties.Party(address, name, tmp_path / name, identity)
        if association_of is not None:  # as the same process
            other = association_of.link
            party.link._association_id, party.link._association = (
                other._association_id,
                other._association,
            )
        made.append(party)
        await party.attach()
        return party

    yield make
    for party in made:
        await party.close()


@pytest.fixture
async def session(make_party):
    """``await session("a", "b", ...)`` is a full session of these, the first the host; none has reported."""

    async def form(*names: str):
        host = await make_party(names[0])
        code = await host.create(len(names))
        joiners = [await make_party(name) for name in names[1:]]
        members = [host]
        for joiner in joiners:
            await joiner.join(code)
            await host.expect("Admitted")
            for member in members:
                member.learn_charter(await member.expect("charter", skip=("member", "Send", "Stopped")))
            members.append(joiner)
        return members

    return form
