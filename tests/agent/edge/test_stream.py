"""Exchanges beside the frames, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import os

import pytest

from kafila_agent.edge import stream as stream_module
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.errors import EdgeError

HOST = "127.0.0.1"


class Pair:
    """Two members with an edge; ``asked`` are the exchanges that reach the second."""

    def __init__(self, edges, asked):
        self.ours, self.theirs = edges
        self.asked: asyncio.Queue = asked


@pytest.fixture(params=["aioquic", "qh3"])
def fast_core(request):
    return request.param == "qh3" and bool(pytest.importorskip("qh3"))


@pytest.fixture(params=["the dialler asks", "the dialled asks"])
async def pair(request, members, session_of, fast_core):
    asked: asyncio.Queue = asyncio.Queue()
    two = members[:2] if request.param == "the dialler asks" else members[1::-1]
    endpoints = [EdgeEndpoint.open(member, HOST, fast_core=fast_core) for member in two]
    endpoints[0].enter(session_of(*two))
    endpoints[1].enter(session_of(*reversed(two)), lambda peer, stream: asked.put_nowait((peer, stream)))
    edges = await asyncio.gather(
        endpoints[0].connect(two[1].fingerprint, await endpoints[1].candidates()),
        endpoints[1].connect(two[0].fingerprint, await endpoints[0].candidates()),
    )
    yield Pair(edges, asked)
    for endpoint in endpoints:
        await endpoint.close()


async def all_of(stream) -> bytes:
    data = b""
    while (more := await stream.receive()) is not None:
        data += more
    return data


async def test_a_question_and_its_answer_arrive_whole_and_frames_go_on_beside_them(pair):
    question, reply = os.urandom(300_000), os.urandom(2_000_000)
    frames = []
    pair.theirs.on_frame = frames.append
    stream = pair.ours.streams.open()
    stream.send(question, end=True)
    pair.ours.send(b"frame")
    peer, asked = await pair.asked.get()
    assert peer == pair.theirs.peer
    assert await all_of(asked) == question
    asked.send(reply[:1000])
    asked.send(reply[1000:], end=True)
    assert await all_of(stream) == reply
    assert [bytes(frame) for frame in frames] == [b"frame"]
    assert stream.is_over
    assert asked.is_over


async def test_several_at_once_do_not_mix(pair):
    streams = [pair.ours.streams.open() for _ in range(20)]
    for number, stream in enumerate(streams):
        stream.send(b"%d" % number, end=True)
    for _ in streams:
        _, asked = await pair.asked.get()
        asked.send(b"answer to " + await all_of(asked), end=True)
    assert [await all_of(stream) for stream in streams] == [b"answer to %d" % n for n in range(20)]


async def test_breaking_off_reaches_the_other_end(pair):
    stream = pair.ours.streams.open()
    stream.send(b"question", end=True)
    _, asked = await pair.asked.get()
    asked.send(b"begun")
    assert await stream.receive() == b"begun"
    stream.break_off()
    assert "broke it off" in await asked.broken()
    asked.send(b"more")  # nobody listens; nothing breaks
    await asked.drained()
    with pytest.raises(EdgeError, match="broken off"):
        await stream.receive()
    again = pair.ours.streams.open()
    again.send(b"still there", end=True)
    _, asked = await pair.asked.get()
    assert await all_of(asked) == b"still there"


async def test_the_answering_end_may_break_off_too(pair):
    stream = pair.ours.streams.open()
    stream.send(b"question", end=True)
    _, asked = await pair.asked.get()
    asked.break_off()
    with pytest.raises(EdgeError, match="broke it off"):
        await stream.receive()


async def test_what_had_come_whole_before_it_broke_off_is_whole(pair):
    stream = pair.ours.streams.open()
    stream.send(b"question, first part")
    _, asked = await pair.asked.get()
    asked.send(b"answer", end=True)
    assert await stream.receive() == b"answer"
    asked.break_off()
    assert "broke it off" in await stream.broken()
    assert await stream.receive() is None


async def test_a_lost_edge_ends_every_exchange_with_its_reason(pair):
    stream = pair.ours.streams.open()
    stream.send(b"question")
    _, asked = await pair.asked.get()
    pair.ours.streams.close("the cable is out")
    with pytest.raises(EdgeError, match="the cable is out"):
        await stream.receive()
    with pytest.raises(EdgeError, match="the cable is out"):
        pair.ours.streams.open()
    assert not asked.is_over


async def test_a_writer_waits_for_a_reader_that_is_far_behind(pair):
    stream = pair.ours.streams.open()
    stream.send(b"x" * (4 << 20), end=False)
    await asyncio.wait_for(stream.drained(), 30)
    _, asked = await pair.asked.get()
    stream.send(b"", end=True)
    assert len(await all_of(asked)) == 4 << 20


async def test_more_than_can_be_held_is_broken_off_and_then_let_go(pair, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_HELD_BYTES", 100_000)
    stream = pair.ours.streams.open()
    stream.send(b"x" * 200_000, end=True)
    await stream.broken()
    assert pair.theirs.streams.held_bytes == 0


async def test_too_many_at_once_are_broken_off(pair, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_STREAMS", 2)
    streams = [pair.ours.streams.open() for _ in range(3)]
    for stream in streams:
        stream.send(b"question")
    assert "broke it off" in await streams[2].broken()
    assert pair.asked.qsize() == 2


async def test_where_nobody_answers_it_is_broken_off(pair):
    stream = pair.theirs.streams.open()
    stream.send(b"question", end=True)
    with pytest.raises(EdgeError, match="broke it off"):
        await stream.receive()
