"""The Unix socket on which ``kafila-ctl`` talks to this agent: for this user alone, or for one group as well."""

from __future__ import annotations

import enum
import grp
import os
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import grpc

from kafila_proto import agent_pb2 as pb
from kafila_proto import agent_pb2_grpc

# The kernel's sun_path holds 108 bytes, the last a NUL.
_SOCKET_PATH_BYTES = 107


class Fault(enum.Enum):
    """Why the agent did not do what it was asked."""

    INVALID = grpc.StatusCode.INVALID_ARGUMENT  # the request itself is wrong
    NOT_FOUND = grpc.StatusCode.NOT_FOUND
    REFUSED = grpc.StatusCode.FAILED_PRECONDITION
    UNREACHABLE = grpc.StatusCode.UNAVAILABLE


class AgentError(Exception):
    """A refusal for a person to read: what, where, and what to do next."""

    def __init__(self, fault: Fault, detail: str):
        super().__init__(detail)
        self.fault = fault
        self.detail = detail


class Controlled(Protocol):
    """What the socket asks of the agent. Each may raise AgentError."""

    async def create_session(self, request: pb.CreateRequest) -> None:
        """Open a session."""

    async def join_session(self, code: str) -> None:
        """Join the session of that code."""

    async def renew_code(self) -> None:
        """Make a new code for the session that this machine hosts."""

    async def leave_session(self) -> None:
        """Leave the session."""

    async def probe(self, request: pb.ProbeRequest) -> pb.ProbeReply:
        """Measure this machine."""

    async def examine(self, model: str) -> pb.ExamineReply:
        """Check what a session needs of this machine."""

    def status(self) -> pb.Status:
        """A snapshot."""

    def watch(self) -> AsyncIterator[pb.Status]:
        """A snapshot at once, then one at each change."""


class ControlSocket(agent_pb2_grpc.AgentServicer):
    """Serves one agent at one path, mode 0600, or 0660 for ``group``; the path exists only while it does."""

    def __init__(self, path: Path, agent: Controlled, group: str | None = None):
        self._path = path
        self._agent = agent
        self._group = group
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises AgentError if the path is too long or another agent lives there."""
        if len(os.fsencode(self._path)) > _SOCKET_PATH_BYTES:
            raise AgentError(
                Fault.INVALID,
                f"{self._path} is longer than the {_SOCKET_PATH_BYTES} bytes a Unix socket's path may have: "
                "choose a shorter --state-dir",
            )
        if _alive(self._path):
            raise AgentError(
                Fault.REFUSED,
                f"an agent already runs with the state directory {self._path.parent}: "
                "stop it, or give this one another --state-dir",
            )
        self._path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServicer_to_server(self, self._server)
        before = os.umask(0o177)  # the socket is the user's alone from its first moment
        try:
            self._server.add_insecure_port(f"unix:{self._path}")
            await self._server.start()
        finally:
            os.umask(before)
        self._admit_group()

    async def close(self) -> None:
        """Stop listening and remove the path."""
        if self._server is not None:
            await self._server.stop(grace=0.2)
            self._path.unlink(missing_ok=True)

    def _admit_group(self) -> None:
        if self._group is None:
            return
        try:
            # A service's group is its own already, and its unit forbids any other.
            if self._path.stat().st_gid != grp.getgrnam(self._group).gr_gid:
                shutil.chown(self._path, group=self._group)
            self._path.chmod(0o660)
        except (LookupError, OSError) as error:
            raise AgentError(
                Fault.INVALID,
                f"cannot give {self._path} to the group {self._group} ({error}): make the group, or let this"
                " user be of it (--control-group)",
            ) from error

    async def _answer(self, context: grpc.aio.ServicerContext, action: Callable[[], Awaitable]) -> pb.Status:
        try:
            await action()
        except AgentError as error:
            await context.abort(error.fault.value, error.detail)
        return self._agent.status()

    async def CreateSession(self, request, context):  # noqa: N802, D102
        return await self._answer(context, lambda: self._agent.create_session(request))

    async def JoinSession(self, request, context):  # noqa: N802, D102
        return await self._answer(context, lambda: self._agent.join_session(request.code))

    async def RenewCode(self, request, context):  # noqa: N802, D102
        return await self._answer(context, self._agent.renew_code)

    async def LeaveSession(self, request, context):  # noqa: N802, D102
        return await self._answer(context, self._agent.leave_session)

    async def GetStatus(self, request, context):  # noqa: N802, D102
        return self._agent.status()

    async def WatchStatus(self, request, context):  # noqa: N802, D102
        async for status in self._agent.watch():
            yield status

    async def Probe(self, request, context):  # noqa: N802, D102
        try:
            return await self._agent.probe(request)
        except AgentError as error:
            await context.abort(error.fault.value, error.detail)

    async def Examine(self, request, context):  # noqa: N802, D102
        return await self._agent.examine(request.model)


def _alive(path: Path) -> bool:
    """Whether something listens at ``path``: a killed agent leaves its path behind, but nobody listening."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
