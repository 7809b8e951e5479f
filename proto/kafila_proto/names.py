"""Names of members, and what may be shown of other text and numbers that come from elsewhere."""

from __future__ import annotations

import re

from kafila_proto.rendezvous_pb2 import Introduction

MAX_NAME_LENGTH = 32
MAX_SHOWN_LENGTH = 500

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class InvalidName(ValueError):
    """Text that cannot be a member's name."""


def check_name(name: str) -> str:
    """``name``, if it can be a member's name. Raises InvalidName saying what a name is."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name[: 2 * MAX_NAME_LENGTH]!r} cannot be a name: use 1 to {MAX_NAME_LENGTH} of the letters"
            " A-Z a-z, the digits, '.', '_' and '-' (kafila-agent --name NAME)"
        )
    return name


def derive_name(hostname: str) -> str:
    """A member's name made from a machine's own: its first label, without what names may not hold."""
    label = hostname.split(".")[0]
    return _NOT_IN_NAMES.sub("-", label).strip("-")[:MAX_NAME_LENGTH] or "member"


def printable(text: str) -> str:
    """What somebody else said, fit to be shown: one line, bounded, without what drives a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_SHOWN_LENGTH])


def step_name(step: int) -> str:
    """An introduction's step in words, or its number: messages may carry one that nobody knows."""
    known = Introduction.Step.DESCRIPTOR.values_by_number.get(step)
    return known.name if known else f"step {step}"


def session_label(session_id: bytes) -> str:
    """How logs call a session: the same at every member and at the rendezvous, and of no use to anybody else."""
    return session_id.hex()[:8]
