"""``kafila-ctl probe``: what this machine measures about itself."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.options import AsJson, Dtype, Quant, StateDir, from_here
from kafila_agent.ctl.render import console
from kafila_agent.view.figures import seconds, size
from kafila_proto import agent_pb2 as pb


def probe(
    model: Annotated[
        str, typer.Option(help="Measure with this model's blocks; a typical block if left out.")
    ] = "",
    dtype: Dtype = "bfloat16",
    quant: Quant = "none",
    as_json: AsJson = False,
    *,
    state_dir: StateDir,
) -> None:
    """Measure memory bandwidth, overheads, arithmetic, room and the round trip to the rendezvous."""
    with local_agent(state_dir) as agent:
        reply = agent.Probe(pb.ProbeRequest(model=from_here(model), dtype=dtype, quant=quant))
    if as_json:
        typer.echo(reply.member_json)
        return
    facts = json.loads(reply.member_json)
    rows = (
        ("memory bandwidth", facts.get("bandwidth_bytes_per_s"), lambda v: size(v) + "/s"),
        ("overhead per token", facts.get("overhead_s"), seconds),
        ("overhead per block", facts.get("block_overhead_s"), seconds),
        ("arithmetic", facts.get("flops_per_s"), lambda v: f"{v / 1e9:.1f} GFLOP/s"),
        ("room", facts.get("memory_bytes"), size),
        ("round trip to the rendezvous", facts.get("rendezvous_rtt_s"), seconds),
        ("NAT mapping", facts.get("mapping"), str),
        ("NAT filtering", facts.get("filtering"), str),
    )
    out = console(stderr=False)
    for label, value, show in rows:
        out.print(f"{label:30} {'unknown' if value is None else show(value)}", highlight=False)
    for notice in reply.notices:
        out.print(notice, highlight=False, markup=False)
