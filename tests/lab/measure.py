"""One trial run: the session is made, used by one and by several users, and all that was seen of it written down.

Seconds are the laboratory's own here, and bytes those of scale models.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Any

from kafila_agent.view.sentences import measured_paths
from kafila_proto import agent_pb2 as pb
from tests.lab.client import Answer, AnswerBroken
from tests.lab.laboratory import Laboratory, Session
from tests.lab.trials import Trial

_PROMPT_TOKENS, _WORDS = 8, 256
_WARM_UP_TOKENS = 3
_ATTEMPTS = 3

Record = dict[str, Any]


def prompts(users: int) -> list[str]:
    """The same ones for every session."""
    words = random.Random(0)
    return [" ".join(f"w{words.randrange(_WORDS)}" for _ in range(_PROMPT_TOKENS)) for _ in range(users)]


class TrialFailed(RuntimeError):
    """A session neither served nor was refused: something broke, and the message says what."""


def run_trial(lab: Laboratory, trial: Trial) -> Record:
    """Hold the session of a trial; what it was and what it did. Raises TrialFailed."""
    names = [m.name for m in lab.fleet.machines if m.name != trial.without]
    lab.show_all()
    lab.hide(names[-1], trial.hidden)
    with lab.session(trial.model, names, division=trial.division, objective=trial.objective) as session:
        record: Record = {
            "trial": asdict(trial) | {"hidden": list(trial.hidden)},
            "time_scale": lab.fleet.time_scale,
            "formed": session.formed,
            "reason": session.status.session.reason,
            "setup_s": session.setup_s,
            "facts": session.fleet,
            "plan": session.plan,
        }
        if session.formed:
            try:
                record |= _serve(lab, session, trial.is_framed)
            except AnswerBroken as error:
                raise TrialFailed(str(error)) from error
        elif not session.status.session.refused:
            raise TrialFailed(session.status.session.reason)
    return record


def run_patiently(lab: Laboratory, trial: Trial) -> Record:
    """A trial's record. What breaks is tried again, and said: nobody sits by."""
    failures: list[str] = []
    while True:
        try:
            # What else runs here shows in every figure: it is kept beside them.
            return run_trial(lab, trial) | {"failures": failures, "load": os.getloadavg()[0]}
        except TrialFailed as failure:
            failures.append(str(failure))
            print(f"{lab.fleet.name} {trial.key}: {failure}", file=sys.stderr, flush=True)
            if len(failures) == _ATTEMPTS:
                raise


def edge_setups_s(log: str) -> dict[str, float]:
    """Seconds from the plan to each open edge in the last session that an agent's log tells of, by peer."""
    began_s, found = 0.0, {}
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        at_s = datetime.fromisoformat(said["timestamp"]).timestamp()
        if said["event"] == "member" and said["state"] == "connecting":
            began_s, found = at_s, {}
        elif said["event"] == "edge open":
            found[said["peer"]] = at_s - began_s
    return found


def _serve(lab: Laboratory, session: Session, is_framed: bool) -> Record:
    """What users get. A user alone before and after all of them: a drift of this machine is in both alike."""
    assert session.client is not None
    users, tokens = lab.fleet.concurrency, lab.fleet.tokens
    session.client.ask(prompts(1), _WARM_UP_TOKENS)
    alone = session.client.ask(prompts(1), tokens)
    seen = lab.measured(session)
    many = session.client.ask(prompts(users), tokens * 2 if is_framed else tokens)
    loaded = lab.measured(session)
    if is_framed:
        alone += session.client.ask(prompts(1), tokens)
    sent = lab.edge_bytes(session.plan["ring"])
    return {
        "stages": _stages(session.plan, seen),
        "edges": _edges(session.plan, seen, sent),
        "edge_setups_s": {name: edge_setups_s(lab.agents.log(name)) for name in session.plan["ring"]},
        "network_share": seen.measured.network_share,
        "one_user": [_answer(answer) for answer in alone],
        "many_users": {
            "stages": _stages(session.plan, loaded),
            "users": [_answer(answer) for answer in many],
        },
    }


def _answer(answer: Answer) -> Record:
    return {
        "tokens_per_s": answer.tokens_per_s,
        "ttft_s": answer.ttft_s,
        "token_ids": list(answer.token_ids),
    }


def _stages(plan: Record, seen: pb.SessionStatus) -> list[Record]:
    measured = {member.name: member.measured_stage_s for member in seen.members}
    return [
        {
            "member": stage["member"],
            "blocks": stage["blocks"][1] - stage["blocks"][0],
            "predicted_s": stage["predicted_s"],
            "measured_s": measured[stage["member"]],
        }
        for stage in plan["stages"]
    ]


def _edges(plan: Record, seen: pb.SessionStatus, sent: dict[tuple[str, str], float]) -> list[Record]:
    paths = measured_paths(seen)
    found = []
    for edge in plan["edges"]:
        ends = (edge["from"], edge["to"])
        path, rtt_s = paths[ends]
        found.append(
            {
                "from": ends[0],
                "to": ends[1],
                "predicted": edge["path"],
                "actual": path,
                "cost_s": edge["cost_s"],
                "rtt_s": rtt_s,
                "sent_bytes": sent[ends],
            }
        )
    return found
