from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.edge.stream import EdgeStreams
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.session.seat import Seat
from kafila_agent.stage.executor import StageExecutor

RING = ("desk", "lap", "attic")


def edge_to(peer: str, sent: asyncio.Queue[bytes]) -> Edge:
    streams = EdgeStreams(carrier=None, pump=lambda: None, answer=lambda stream: None)  # no exchanges here
    return Edge(peer, b"", "direct", sent.put_nowait, streams)


async def test_what_a_stage_finishes_after_its_edge_has_gone_disturbs_nobody(checkpoint):
    disturbed: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: disturbed.append(context))
    stage = load_stage(read_manifest(checkpoint("llama")), 2, 4, is_head=False, dtype="float32")
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    edges = {"desk": edge_to("desk", asyncio.Queue()), "attic": edge_to("attic", sent)}
    seat = Seat(
        SimpleNamespace(ring=RING),
        "lap",
        edges,
        StageExecutor(stage, slots=1, context_tokens=32, threads=1),
        session_id=bytes(16),
        epoch=1,
        concurrency=1,
        context_tokens=32,
        head=None,
        observer=None,
    )
    step = Frame(Kind.HIDDEN, 1, 1, 0, 0, 1, Dtype.FLOAT32, width=64, rows_wanted=1, payload=bytes(64 * 4))
    fails = replace(step, sequence=2, position=40)  # beyond the context
    for frame in (step, fails):
        edges["desk"].deliver(memoryview(frame.encode()))
    for _ in range(2):
        await sent.get()
    edges["attic"].end("its agent was stopped", lost=True)
    for frame in (replace(step, position=1), fails):
        edges["desk"].deliver(memoryview(frame.encode()))
    while seat.loop.queued_frames:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await seat.close("the test is over")  # the worker has told all that it did
    await asyncio.sleep(0)
    assert (sent.empty(), disturbed) == (True, [])
