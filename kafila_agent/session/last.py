"""The session that this agent was in when it stopped, by itself or not, told after its restart.

A plan has no spare, so whoever goes away after it has ended the session for everyone, and a code admits only before
the plan: nothing can be resumed. What can be done is said, with the very command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kafila_agent.session.lifecycle import State

if TYPE_CHECKING:
    from kafila_agent.session.membership import Membership
    from kafila_proto.rendezvous_pb2 import Charter

FILE = "last-session.json"


def keep(state_dir: Path, membership: Membership | None, name: str) -> None:
    """Note the session if it is planned and this member in it; forget it once it is over for another reason."""
    file = state_dir / FILE
    if membership is None or not membership.epoch:
        return
    if membership.state is State.LEFT:
        file.unlink(missing_ok=True)
        return
    charter = membership.charter
    host = charter.roster[0].name
    create = _command(charter) if host == name else ""
    noted = {"model": charter.model.name, "host": host, "create": create}
    text = json.dumps(noted)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def _command(charter: Charter) -> str:
    """What creates the same session anew."""
    dtype, _, quant = charter.model.dtype.partition("/")
    options = {
        "model": charter.model.name,
        "members": charter.expected_members,
        "context": charter.context_tokens,
        "concurrency": charter.concurrency,
        "dtype": dtype,
        "quant": quant,
        "objective": charter.objective,
        "division": charter.division,
    }
    return " ".join(
        ["kafila-ctl session create", *(f"--{key} {value}" for key, value in options.items() if value)]
    )


def recall(state_dir: Path) -> str:
    """What became of the session that was noted, and the next step; empty if none was."""
    try:
        noted = json.loads((state_dir / FILE).read_text())
        ended = f"its session of {noted['model']} ended when this agent stopped"
        if noted["create"]:
            return f"{ended}: create it anew with `{noted['create']}`"
        return f"{ended}: {noted['host']} creates it anew, then join with its new code"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
