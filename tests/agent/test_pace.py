"""A paced member: probe and stages alike keep the time of the machine it stands for."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import read_manifest
from kafila_agent.pace import Pace, PacedExecutor, PaceError, read_pace
from kafila_agent.stage.executor import StageExecutor
from kafila_agent.stage.loop import StageLoop
from kafila_planner.cost import Price
from kafila_planner.facts import MemberFacts

SIZES = {"slots": 1, "context_tokens": 32, "threads": 1}


@pytest.fixture(scope="module")
def manifest(checkpoint):
    return read_manifest(checkpoint("llama"))


@pytest.fixture(scope="module")
def facts(manifest):
    return describe_model(manifest, "float32", context_tokens=32, concurrency=1)


async def test_a_stage_takes_as_long_as_the_planner_expects_of_the_machine(manifest, facts):
    """A head of two blocks whose pace is far above what this machine needs, by the plan's own price of it."""
    pace = Pace(facts.block_read_bytes[0] / 0.02, flops_per_s=1e15, overhead_s=0.01, block_overhead_s=0.005)
    price = Price(0.01, 0.005, pace.bandwidth_bytes_per_s, facts.head_read_bytes)
    stage = load_stage(manifest, 0, 2, is_head=True, dtype="float32")
    done: asyncio.Queue[object] = asyncio.Queue()
    loop = StageLoop(
        PacedExecutor(stage, pace, facts, **SIZES),
        epoch=1,
        is_head=True,
        is_last=True,
        send=done.put_nowait,
        sample=lambda frame, logits: logits.shape,
        on_sampled=lambda frame, result: done.put_nowait(result),
        on_error=lambda frame, error: done.put_nowait(error),
    )
    for position in range(5):
        token = torch.tensor([position], dtype=torch.int32).numpy().tobytes()
        loop.submit(Frame(Kind.TOKENS, 1, 1, 0, position, 1, Dtype.INT32, rows_wanted=1, payload=token))
        assert await done.get() == (1, 128)
    await loop.close()
    expected_s = price.stage_s(2, sum(facts.block_read_bytes[:2]), is_head=True)
    assert expected_s > 0.06
    assert 0.97 * expected_s <= loop.measured_stage_s < 1.5 * expected_s


def test_what_comes_out_is_what_an_executor_that_does_not_wait_gives(manifest, facts):
    pace = Pace(1e15, 1e15)
    stage = load_stage(manifest, 0, 2, is_head=True, dtype="float32")
    ids = torch.tensor([3, 5, 7], dtype=torch.int32).numpy().tobytes()
    frame = Frame(Kind.TOKENS, 1, 1, 0, 0, 3, Dtype.INT32, rows_wanted=1, payload=ids)
    paced, plain = PacedExecutor(stage, pace, facts, **SIZES), StageExecutor(stage, **SIZES)
    assert paced.run_blocks(frame).equal(plain.run_blocks(frame))


def test_many_rows_are_bound_by_arithmetic():
    pace = Pace(1000.0, 8000.0, overhead_s=0.5, block_overhead_s=0.25)
    assert pace.stage_s(2000, rows=1, blocks=4) == 0.5 + 4 * 0.25 + 2.0
    assert pace.stage_s(2000, rows=8) == 2.0
    assert pace.stage_s(2000, rows=32) == 8.0


def test_the_probe_reports_the_machine_and_not_what_it_fails_to_measure(tmp_path):
    file = tmp_path / "pace.json"
    text = {"bandwidth_bytes_per_s": 5e9, "flops_per_s": 1e12, "overhead_s": 1e-4}
    file.write_text(json.dumps(text | {"unmeasured": ["rendezvous_rtt_s", "flops_per_s"]}))
    pace = read_pace(file)
    assert dataclasses.astuple(pace.capability(7)) == (5e9, 1e-4, 0.0, 1e12, 7)
    facts = MemberFacts("lap", bandwidth_bytes_per_s=5e9, flops_per_s=1e12, rendezvous_rtt_s=0.1)
    assert pace.forget(facts) == MemberFacts("lap", bandwidth_bytes_per_s=5e9)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"bandwidth_bytes_per_s": 0, "flops_per_s": 1}', '{"bandwidth": 1, "flops_per_s": 1}'],
)
def test_a_file_that_is_no_machine_is_refused_by_its_name(tmp_path, text):
    file = tmp_path / "pace.json"
    file.write_text(text)
    with pytest.raises(PaceError, match=r"pace\.json"):
        read_pace(file)
    with pytest.raises(PaceError, match=r"absent\.json"):
        read_pace(tmp_path / "absent.json")
