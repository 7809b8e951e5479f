"""The control socket is the user's, or one group's as well, from its first moment."""

from __future__ import annotations

import grp
import os

import grpc
import pytest

from kafila_agent.control.local import AgentError, ControlSocket
from kafila_proto import agent_pb2 as pb
from kafila_proto.agent_pb2_grpc import AgentStub


class Idle:
    def status(self) -> pb.Status:
        return pb.Status(name="desk")


@pytest.fixture
async def serve(tmp_path):
    started = []

    async def start(group: str | None = None):
        path = tmp_path / f"{len(started)}.sock"
        started.append(ControlSocket(path, Idle(), group))
        await started[-1].start()
        return path

    yield start
    for control in started:
        await control.close()


async def test_for_the_user_alone(serve):
    before = os.umask(0)
    try:
        path = await serve()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await AgentStub(channel).GetStatus(pb.StatusRequest())).name == "desk"


async def test_for_a_group_as_well(serve):
    group = grp.getgrgid(os.getgid())
    path = await serve(group.gr_name)
    assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, group.gr_gid)


async def test_a_group_that_it_has_already_is_not_given_again(serve, monkeypatch):
    """The service's unit forbids it."""

    def forbidden(*_, **__):
        raise PermissionError("not permitted")

    monkeypatch.setattr("shutil.chown", forbidden)
    monkeypatch.setattr("os.chown", forbidden)
    path = await serve(grp.getgrgid(os.getgid()).gr_name)
    assert path.stat().st_mode & 0o777 == 0o660


async def test_a_group_that_is_not_there_is_named(serve):
    with pytest.raises(AgentError) as refused:
        await serve("no-such-group")
    assert "no-such-group" in refused.value.detail
