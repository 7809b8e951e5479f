"""What a member keeps of its session, so that it can come back after a restart: who is in it, as the host signed it.

Written once there is a plan: whoever is lost before makes room for another, later the others wait for that very member.
No secret: who may come back is proved by the agent's key, which lies beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from kafila_agent.control.charter import verify_charter
from kafila_agent.identity import Identity
from kafila_proto.certificate import fingerprint
from kafila_proto.rendezvous_pb2 import Charter, Signed

FILE = "session.json"

log = structlog.get_logger()


@dataclass(frozen=True)
class Kept:
    """``epoch`` is that of the last plan this member believed: it believes none but later ones. ``model``: its path."""

    signed_charter: Signed
    epoch: int
    model: Path

    @property
    def charter(self) -> Charter:
        """The session, as its host stated it."""
        return Charter.FromString(self.signed_charter.payload)


def keep(state_dir: Path, kept: Kept | None) -> None:
    """Put ``kept`` in place of what was kept before; None forgets it. The file is never half-written.

    Raises OSError where nothing can be written.
    """
    file = state_dir / FILE
    if kept is None:
        file.unlink(missing_ok=True)
        return
    fields = {
        "charter": b64encode(kept.signed_charter.SerializeToString()).decode(),
        "epoch": kept.epoch,
        "model": str(kept.model),
    }
    draft = file.with_name(f".{FILE}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as text:
            json.dump(fields, text)
            text.flush()
            os.fsync(text.fileno())
        os.replace(draft, file)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def recall(state_dir: Path, identity: Identity) -> Kept | None:
    """What was kept, if it holds and ``identity`` is a member of it under its name."""
    try:
        fields = json.loads((state_dir / FILE).read_bytes())
        signed = Signed.FromString(b64decode(fields["charter"], validate=True))
        kept = Kept(signed, int(fields["epoch"]), Path(fields["model"]))
        charter = verify_charter(
            signed, fingerprint(signed.certificate), 0, session_id=kept.charter.session_id
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        log.warning("what was kept of a session cannot be used", file=FILE, reason=str(error))
        return None
    if (identity.name, identity.fingerprint) not in {(e.name, e.fingerprint) for e in charter.roster}:
        log.warning("what was kept of a session is another member's", file=FILE, name=identity.name)
        return None
    return kept


def start_anew(charter: Charter, name: str, model: Path | None) -> str:
    """What member ``name``, whose files of the model are at ``model``, can do once the session is over.

    A sentence with the very command.
    """
    host = charter.roster[0].name
    if host != name:
        return f"{host} creates it anew, then join with its new code"
    dtype, _, quant = charter.model.dtype.partition("/")
    options = {
        "model": charter.model.name if model is None else model,
        "members": charter.expected_members,
        "context": charter.context_tokens,
        "concurrency": charter.concurrency,
        "dtype": dtype,
        "quant": quant,
        "objective": charter.objective,
        "division": charter.division,
        "draft": charter.draft.name,
    }
    command = ["kafila-ctl", "session", "create"]
    for key, value in options.items():
        if value:
            command += [f"--{key}", str(value)]
    return f"create it anew with `{shlex.join(command)}`"
