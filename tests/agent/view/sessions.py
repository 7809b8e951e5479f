"""Statuses of sessions of three, planned by the planner."""

from __future__ import annotations

import json

from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from kafila_proto import agent_pb2 as pb

NAMES = ("desk", "laptop", "tower")
FLEET = {
    "model": {
        "name": "m",
        "blocks": 6,
        "block_bytes": 10**8,
        "head_bytes": 10**7,
        "kv_bytes_per_token_per_block": 9,
    },
    "context_tokens": 64,
    "concurrency": 1,
    "anchor": "desk",
    "members": [
        {
            "name": name,
            "bandwidth_bytes_per_s": 1e10,
            "overhead_s": 1e-3,
            "memory_bytes": 10**10,
            "rendezvous_rtt_s": 0.02,
            "mapping": "endpoint-independent",
            "filtering": "endpoint-independent",
        }
        for name in NAMES
    ],
}
PLAN = plan_to_json(plan_ring(parse_fleet(FLEET)))


def session(state: str, **fields: object) -> pb.SessionStatus:
    planned = {"fleet_json": json.dumps(FLEET), "plan_json": json.dumps(PLAN)}
    return pb.SessionStatus(state=state, expected_members=3, **planned | fields)


def serving_session() -> pb.SessionStatus:
    """As planned: stages as predicted, every edge direct and short."""
    made = session("SERVING")
    made.measured.network_share = 0.2
    for name in NAMES:
        member = made.members.add(name=name, predicted_stage_s=0.02, measured_stage_s=0.022)
        for edge in PLAN["edges"]:
            if edge["from"] == name:
                member.edges.add(peer=edge["to"], path="direct", rtt_s=0.01)
    return made
