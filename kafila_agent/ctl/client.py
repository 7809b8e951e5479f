"""One call to the agent on this machine, with its faults turned into exit statuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import typer

from kafila_agent.config import CONTROL_SOCKET
from kafila_agent.ctl.exit_status import FAILURE, NOT_FOUND, USAGE, fail
from kafila_proto import agent_pb2_grpc

_EXIT = {
    grpc.StatusCode.INVALID_ARGUMENT: USAGE,
    grpc.StatusCode.NOT_FOUND: NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: NOT_FOUND,
}


@contextmanager
def local_agent(state_dir: Path) -> Iterator[agent_pb2_grpc.AgentStub]:
    """A stub of the agent whose state directory this is. Where it cannot, leaves with a message."""
    path = state_dir / CONTROL_SOCKET
    # A proxy in the environment is for other people's machines, never for this one.
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            yield agent_pb2_grpc.AgentStub(channel)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not _listening(channel):
                fail(
                    NOT_FOUND,
                    f"no agent is running with the state directory {state_dir}: start one with "
                    f"`kafila-agent --state-dir {state_dir} --rendezvous HOST:PORT`, "
                    "or name the right one with --state-dir",
                )
            fail(_EXIT.get(error.code(), FAILURE), error.details() or str(error.code()))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _listening(channel: grpc.Channel) -> bool:
    try:
        grpc.channel_ready_future(channel).result(timeout=0.2)
    except grpc.FutureTimeoutError:
        return False
    return True
