"""A real rendezvous whose wire can be tapped, and agents' own way into sessions, over real streams."""

from __future__ import annotations

import asyncio

import pytest

from kafila_agent.config import AgentConfig
from kafila_agent.control.link import RendezvousLink
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.identity import load_identity
from kafila_agent.machine import Machine
from kafila_agent.metrics import AgentMetrics
from kafila_agent.session.entry import Entry
from kafila_proto import agent_pb2 as agent_pb
from kafila_proto import rendezvous_pb2 as pb
from kafila_rendezvous.server import Config, start_rendezvous


class Wire:
    """What the rendezvous is about to send. ``change`` may alter a message or, with None, keep it; ``sent`` is
    what went out, as (to, message)."""

    def __init__(self, server) -> None:
        self.server = server
        self.sent: list[tuple[bytes, pb.ToAgent]] = []
        self.change = lambda to, message: message
        self._honest = server.service._send
        server.service._send = self._send

    def say(self, to: bytes, **fields) -> None:
        """Send something of the rendezvous's own making."""
        self._honest(to, pb.ToAgent(**fields))

    def introductions(self, step: int) -> list[pb.Introduction]:
        """Those of one step, in the order in which they were sent."""
        found = [m.introduction for _, m in self.sent if m.WhichOneof("message") == "introduction"]
        return [introduction for introduction in found if introduction.step == step]

    def _send(self, to: bytes, message: pb.ToAgent) -> None:
        changed = self.change(to, pb.ToAgent.FromString(message.SerializeToString()))
        if changed is not None:
            self.sent.append((to, changed))
            self._honest(to, changed)


async def _unasked(*_: object) -> None:
    raise AssertionError("nobody has an edge over which to ask")


class Member:
    """One agent without its process: identity, stream and Entry, as agent.py puts them together."""

    def __init__(self, name: str, address: str, directory, model) -> None:
        self.name = name
        self.model = model
        self.identity = load_identity(directory, name)
        self.link = RendezvousLink(address, self.identity, directory)
        self.endpoint = EdgeEndpoint.open(self.identity, "127.0.0.1")
        config = AgentConfig(name=name, state_dir=directory, rendezvous=address, threads=1, upnp=False)
        metrics = AgentMetrics("test")
        self.machine = Machine(
            config, self.identity, self.endpoint, self.link, metrics, None, lambda: None, _unasked
        )
        self.entry = Entry(self.machine)
        self.link.on_message = self.entry.receive
        self.link.on_lost = self.entry.lost
        self.link.on_attached = lambda attachment: None if attachment.goes_on else self.entry.resume()

    @property
    def fingerprint(self) -> bytes:
        return self.identity.fingerprint

    @property
    def roster(self) -> list[str]:
        """Whom this member, as a host, has admitted; itself first."""
        return list(self.entry.hosting._introduction.roster)

    async def create(self, members: int) -> str:
        request = agent_pb.CreateRequest(
            model=str(self.model), members=members, context_tokens=16, concurrency=1, dtype="float32"
        )
        await self.entry.create(request)
        return self.entry.hosting.code

    async def settled(self) -> None:
        """Until the rendezvous has heard all that was posted, and this member all that was said to it."""
        await self.link.flush()
        await asyncio.sleep(0.1)

    async def close(self) -> None:
        await self.entry.close()
        await self.link.close()
        await self.endpoint.close()


@pytest.fixture
async def wire(tmp_path):
    config = Config(state_dir=tmp_path / "rv", host="127.0.0.1", port=0, metrics_port=0)
    server = await start_rendezvous(config)
    yield Wire(server)
    await server.close()


@pytest.fixture
async def make_member(wire, tmp_path, checkpoint):
    """``await make_member(name)`` is attached. Charters are kept back: nobody measures itself here."""
    made: list[Member] = []
    model = checkpoint("llama")
    wire.change = lambda to, message: None if message.WhichOneof("message") == "charter" else message

    async def make(name: str) -> Member:
        member = Member(name, f"127.0.0.1:{wire.server.grpc_port}", tmp_path / name, model)
        made.append(member)
        await member.link.attach()
        return member

    yield make
    for member in made:
        await member.close()
