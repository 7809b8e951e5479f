"""What this agent can do for an API client right now, and the server that tells it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from kafila_agent.api.listening import ApiServerError
from kafila_agent.api.openai_routes import SERVING, Service
from kafila_agent.api.server import ApiServer
from kafila_agent.config import AgentConfig
from kafila_agent.control.local import AgentError, Fault
from kafila_agent.session.lifecycle import State
from kafila_agent.session.membership import Membership
from kafila_agent.view.document import page_document
from kafila_proto import agent_pb2 as pb

_HELD_RETRY_S = 15  # about what an agent takes to start


async def open_api(
    config: AgentConfig,
    listening: socket.socket,
    membership: Callable[[], Membership | None],
    status: Callable[[], pb.Status],
) -> ApiServer:
    """Serve OpenAI's API and the page where ``listening`` does, which is where ``config`` says. Raises AgentError."""
    try:
        server = ApiServer(
            config.api_host,
            config.api_port,
            lambda: describe_service(membership()),
            get_session=lambda: page_document(status()),
            api_key=config.api_key,
        )
        await server.start(listening)
    except ApiServerError as error:
        raise AgentError(Fault.REFUSED, str(error)) from error
    return server


def describe_service(membership: Membership | None) -> Service:
    """What a client may ask of a member in this state, or what it is told instead."""
    if membership is None or membership.state is State.LEFT:
        reason = f" ({membership.reason})" if membership else ""
        return Service("idle", f"this machine is in no session{reason}: create or join one with kafila-ctl")
    model = membership.charter.model.name or None
    if membership.state is State.HELD:
        message = f"the session waits and serves again by itself: {membership.reason}"
        return Service("held", message, model, retry_after_s=_HELD_RETRY_S)
    created = membership.served_since
    if membership.seat is not None and membership.seat.engine is not None:
        ring = membership.seat.plan.ring
        return Service(SERVING, "", model, membership.seat.engine, created, ring=ring)
    if membership.state is State.SERVING and not membership.is_head:
        return Service(SERVING, "", model, created=created, reach_head=membership.reach_head)
    state = membership.state.name.lower()
    return Service(state, f"the session does not serve yet: this machine is {state}", model)
