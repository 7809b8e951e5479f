"""What crosses the rendezvous in a session whose every edge is relayed: enough to run it, nothing to read.

The rendezvous runs in this process, so that its gRPC messages are captured as it has them after TLS, and its
datagrams as they come and go.
"""

from __future__ import annotations

import asyncio
import struct

import httpx2
import pytest

from kafila_agent.agent import Agent
from kafila_agent.config import AgentConfig
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.frame import Kind, parse_frame
from kafila_agent.session.lifecycle import State
from kafila_proto import agent_pb2 as pb
from kafila_rendezvous import datagrams
from kafila_rendezvous.server import Config, start_rendezvous
from kafila_rendezvous.service import RendezvousService

WORDS = ("walnut", "otter")
PROMPT = "The zanzibar quokka sings to its xylophone, and tells everybody"
WINDOW_BYTES = 16


class TappedStream:
    """An agent's stream at the rendezvous; what it reads and writes is kept."""

    def __init__(self, context, capture: bytearray) -> None:
        self._context, self._capture = context, capture

    def __getattr__(self, name):
        return getattr(self._context, name)

    async def read(self):
        message = await self._context.read()
        if hasattr(message, "SerializeToString"):
            self._capture += message.SerializeToString()
        return message

    async def write(self, message):
        self._capture += message.SerializeToString()
        await self._context.write(message)


@pytest.fixture
def streams(monkeypatch) -> bytearray:
    """Every gRPC message at the rendezvous, either way."""
    capture, attach = bytearray(), RendezvousService.Attach

    async def tapped(self, requests, context):
        await attach(self, requests, TappedStream(context, capture))

    monkeypatch.setattr(RendezvousService, "Attach", tapped)
    return capture


@pytest.fixture
def packets(monkeypatch) -> bytearray:
    """Every datagram at the rendezvous, either way."""
    capture, drain, send = bytearray(), datagrams.drain, datagrams.send

    def tapped_drain(*args):
        for data, address in drain(*args):
            capture.extend(data)
            yield data, address

    def tapped_send(udp, data, *args):
        capture.extend(data)
        return send(udp, data, *args)

    monkeypatch.setattr(datagrams, "drain", tapped_drain)
    monkeypatch.setattr(datagrams, "send", tapped_send)
    return capture


@pytest.fixture
def frames(monkeypatch) -> list[bytes]:
    """Every frame that a member puts on an edge, before it is encrypted."""
    sent, send = [], Edge.send

    def tapped(self, data):
        sent.append(bytes(data))
        return send(self, data)

    monkeypatch.setattr(Edge, "send", tapped)
    return sent


@pytest.fixture
async def agents(streams, packets, frames, smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr("kafila_agent.session.hosting.make_words", lambda: WORDS)
    rendezvous = await start_rendezvous(Config(tmp_path / "rv", host="127.0.0.1", port=0, metrics_port=0))
    address = f"127.0.0.1:{rendezvous.grpc_port}#{rendezvous.certificate.fingerprint.hex()}"
    members = [
        Agent(
            AgentConfig(
                name=name,
                state_dir=tmp_path / name,
                rendezvous=address,
                udp_host="127.0.0.1",
                relay_only=True,
                threads=1,
                model_dirs=(smollm2.parent,),
            )
        )
        for name in ("desk", "lap")
    ]
    for member in members:
        await member.start()
    yield members
    for member in members:
        await member.close()
    await rendezvous.close()


async def serving(agent: Agent) -> pb.Status:
    async for status in agent.watch():
        membership = agent.entry.membership
        assert membership is None or membership.state is not State.LEFT, membership.reason
        if status.session.state == pb.SessionStatus.SERVING:
            return status
    raise AssertionError


async def form_and_ask(desk: Agent, lap: Agent, model) -> dict:
    """A whole session over the relay, and one answer of it."""
    await desk.create_session(
        pb.CreateRequest(model=str(model), members=2, context_tokens=256, concurrency=1, dtype="float32")
    )
    code = desk.status().session.code
    assert code.endswith("-".join(WORDS))
    await lap.join_session(code)
    statuses = [await asyncio.wait_for(serving(member), 60) for member in (desk, lap)]
    head = next(member for member in (desk, lap) if member.entry.membership.seat.engine is not None)
    assert {edge.path for edge in statuses[0].session.members[0].edges} == {"relayed"}
    body = {
        "model": statuses[0].session.model,
        "prompt": PROMPT,
        "max_tokens": 24,
        "temperature": 0,
        "return_token_ids": True,
    }
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        reply = await http.post(f"{head.status().api_url}/completions", json=body)
    answer = reply.json()
    return answer | answer["choices"][0]


def windows(data: bytes):
    """Every sixteen bytes of ``data`` that do not repeat one byte, at steps that find any copy of it."""
    for start in range(0, len(data) - WINDOW_BYTES, WINDOW_BYTES):
        piece = data[start : start + WINDOW_BYTES]
        if len(set(piece)) > 4:
            yield piece


async def test_the_rendezvous_sees_neither_words_nor_prompts_nor_activations(
    agents, streams, packets, frames, smollm2
):
    choice = await form_and_ask(*agents, smollm2)
    payloads = [
        bytes(frame.payload)
        for frame in map(parse_frame, map(memoryview, frames))
        if frame.kind is Kind.HIDDEN
    ]
    # The taps work: names stand in the streams, and all that went round went through the relay, both times.
    assert b"desk" in streams
    assert sum(map(len, payloads)) > 100_000
    assert len(packets) > 2 * sum(map(len, payloads))

    capture = bytes(streams + packets)
    prompt_ids, answer_ids = choice["prompt_token_ids"], choice["token_ids"]
    assert len(prompt_ids) > 8
    assert len(answer_ids) == 24
    secrets = {word.encode(): "a word of the code" for word in WORDS}
    secrets |= {piece: "the prompt" for piece in map(str.encode, PROMPT.split()) if len(piece) > 4}
    secrets[choice["text"].strip().encode()] = "the answer"
    for ids in (prompt_ids[:4], prompt_ids[-4:], answer_ids[:4]):
        secrets[", ".join(map(str, ids)).encode()] = "token ids as text"
        secrets[",".join(map(str, ids)).encode()] = "token ids as text"
        for letter in "HIQ":
            if max(ids) < 1 << (8 * struct.calcsize(letter)):
                secrets[struct.pack(f"<4{letter}", *ids)] = "token ids as bytes"
    for secret, what in secrets.items():
        assert secret not in capture, f"{what}: {secret!r}"
    seen = {capture[place : place + WINDOW_BYTES] for place in range(len(capture) - WINDOW_BYTES)}
    assert not [piece for payload in payloads for piece in windows(payload) if piece in seen]
