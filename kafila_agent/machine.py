"""What a session may use of this machine: made once by the agent, handed to every session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from kafila_agent.config import AgentConfig
from kafila_agent.control.link import LinkLost, RendezvousLink
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.neighbour import Answer
from kafila_agent.identity import Identity
from kafila_agent.metrics import AgentMetrics
from kafila_agent.nat.port_mapping import PortMapping
from kafila_proto.rendezvous_pb2 import FromAgent

log = structlog.get_logger()


@dataclass
class Machine:
    """``post`` puts a message to the rendezvous in line: what is said arrives in the order it was said."""

    config: AgentConfig
    identity: Identity
    endpoint: EdgeEndpoint
    link: RendezvousLink
    metrics: AgentMetrics
    port_mapping: PortMapping | None  # None: the router is not asked
    changed: Callable[[], None]  # a snapshot of the status would show something new
    answer: Answer  # to what another member asks over an edge
    _outbox: asyncio.Queue[FromAgent] = field(default_factory=asyncio.Queue)

    def post(self, message: FromAgent) -> None:
        """Say ``message`` to the rendezvous behind what was said before."""
        self._outbox.put_nowait(message)

    async def carry_out_posts(self) -> None:
        """Send what is posted, for ever. While the stream is down there is nobody to tell: the session is over."""
        while True:
            message = await self._outbox.get()
            try:
                await self.link.send(message)
            except LinkLost as error:
                log.warning("not sent", kind=message.WhichOneof("message"), reason=str(error))
            finally:
                self._outbox.task_done()

    async def flush(self) -> None:
        """Wait until all that was posted is sent, or has nobody to go to."""
        await self._outbox.join()
