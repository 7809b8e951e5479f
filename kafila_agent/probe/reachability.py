"""Where this machine stands on the network, as far as two ports of the reflector tell (RFC 5780, in part)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kafila_agent.edge.candidate import Candidate, CandidateKind
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_planner.facts import Behaviour

Address = tuple[str, int]


@dataclass(frozen=True)
class Reachability:
    """``mapping`` is None where a vantage point did not answer; ``nat`` names the outermost address, opaquely."""

    candidates: tuple[Candidate, ...]
    rendezvous_rtt_s: float | None
    mapping: Behaviour | None
    nat: str | None


async def measure_reachability(endpoint: EdgeEndpoint, host: str, udp_port: int) -> Reachability:
    """Ask the reflector at ``udp_port`` and at the next port where it sees our socket, and how far it is."""
    candidates = await endpoint.candidates((host, udp_port))
    seen = [await endpoint.reflect((host, port)) for port in (udp_port, udp_port + 1)]
    own = {(c.host, c.port) for c in candidates if c.kind is CandidateKind.HOST}
    return Reachability(
        tuple(candidates),
        await endpoint.measure_rtt_s((host, udp_port)),
        classify_mapping(*seen),
        None if seen[0] is None or seen[0] in own else opaque(seen[0][0]),
    )


def classify_mapping(first: Address | None, second: Address | None) -> Behaviour | None:
    """The mapping behaviour from where two ports of one address saw one socket; None if one did not answer.

    Two ports of one address cannot tell address-dependent from endpoint-independent mapping. The first is rare, so
    the second is believed, and an edge that then fails is relayed.
    """
    if first is None or second is None:
        return None
    return Behaviour.ENDPOINT_INDEPENDENT if first == second else Behaviour.ADDRESS_AND_PORT_DEPENDENT


def opaque(host: str) -> str:
    """A name for an address that tells who shares it, and nobody's address."""
    return hashlib.sha256(host.encode()).hexdigest()[:12]
