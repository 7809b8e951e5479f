"""What a session may use of this machine: made once by the agent, handed to every session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafila_agent.config import AgentConfig
from kafila_agent.control.link import RendezvousLink
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.neighbour import Answer
from kafila_agent.identity import Identity
from kafila_agent.metrics import AgentMetrics
from kafila_agent.nat.port_mapping import PortMapping
from kafila_proto.rendezvous_pb2 import FromAgent


@dataclass
class Machine:
    """One agent's machine."""

    config: AgentConfig
    identity: Identity
    endpoint: EdgeEndpoint
    link: RendezvousLink
    metrics: AgentMetrics
    port_mapping: PortMapping | None  # None: the router is not asked
    changed: Callable[[], None]  # a snapshot of the status would show something new
    answer: Answer  # to what another member asks over an edge

    def post(self, message: FromAgent) -> None:
        """Say ``message`` to the rendezvous behind what was said before."""
        self.link.post(message)
