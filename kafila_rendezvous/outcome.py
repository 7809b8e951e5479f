"""What the cores decide: commands for the shell to carry out, and refusals for who asked."""

from __future__ import annotations

from dataclasses import dataclass

from kafila_proto.rendezvous_pb2 import Charter, Report, ToAgent


class RequestRefused(Exception):
    """What was asked is refused. ``code`` is one of Problem's; ``detail`` is a sentence for a person."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Send:
    """Say ``message`` to the agent with the fingerprint ``to``."""

    to: bytes
    message: ToAgent


@dataclass(frozen=True, slots=True)
class PlanFleet:
    """Plan the fleet of these reports (in roster order), off the event loop; answer with ``Planned``."""

    session_id: bytes
    epoch: int
    charter: Charter
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class GrantCircuit:
    """Give both ends of an edge their sides of a circuit."""

    session_id: bytes
    epoch: int
    member: bytes
    peer: bytes


@dataclass(frozen=True, slots=True)
class ReleaseCircuits:
    """The epoch that they were granted in is over."""

    session_id: bytes


@dataclass(frozen=True, slots=True)
class Forsaken:
    """Nothing more is said to this agent, nor kept for it: if it comes again, it is here anew."""

    agent: bytes


@dataclass(frozen=True, slots=True)
class SessionOver:
    """The session is closed: release what it holds."""

    session_id: bytes
    reason: str


Command = Send | PlanFleet | GrantCircuit | ReleaseCircuits | Forsaken | SessionOver
