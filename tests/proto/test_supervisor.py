"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from kafila_proto.supervisor import Supervisor


@pytest.fixture
def heard(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


def told_by(receiver: socket.socket, **environment: str) -> Supervisor:
    return Supervisor({"NOTIFY_SOCKET": receiver.getsockname(), **environment})


def test_a_life_is_told_in_order_and_a_status_once(heard):
    supervisor = told_by(heard)
    supervisor.ready()
    for text in ("in no session", "in no session", "serving m with 3 members"):
        supervisor.status(text)
    supervisor.stopping()
    lines = [heard.recv(200).decode() for _ in range(4)]
    assert lines == ["READY=1", "STATUS=in no session", "STATUS=serving m with 3 members", "STOPPING=1"]


async def test_the_watchdog_is_fed_twice_a_period_while_the_loop_turns(heard):
    supervisor = told_by(heard, WATCHDOG_USEC="40000", WATCHDOG_PID=str(os.getpid()))
    assert supervisor.watchdog_s == 0.04
    feeding = asyncio.create_task(supervisor.keep_alive())
    for _ in range(3):
        assert await asyncio.to_thread(heard.recv, 200) == b"WATCHDOG=1"
    feeding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await feeding


async def test_a_watchdog_of_another_process_is_not_fed(heard):
    supervisor = told_by(heard, WATCHDOG_USEC="40000", WATCHDOG_PID="1")
    await asyncio.wait_for(supervisor.keep_alive(), 1)
    heard.setblocking(False)
    with pytest.raises(BlockingIOError):
        heard.recv(200)


@pytest.mark.skipif(not Path("/proc").exists(), reason="abstract names are Linux's")
def test_an_abstract_address():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0kafila-test-{os.getpid()}")
        receiver.settimeout(5)
        Supervisor({"NOTIFY_SOCKET": f"@kafila-test-{os.getpid()}"}).ready()
        assert receiver.recv(200) == b"READY=1"


def test_one_that_does_not_read_or_is_gone_holds_nothing_up(heard, tmp_path):
    supervisor = told_by(heard)
    for number in range(2000):  # far more than a socket holds
        supervisor.status(str(number))
    (tmp_path / "notify").unlink()
    supervisor.stopping()


def test_without_a_supervisor_nothing_is_said():
    supervisor = Supervisor({})
    supervisor.ready()
    assert supervisor.watchdog_s == 0
