from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kafila_agent.probe.machine_lock import machine_lock

_HOLD = """
import sys
from kafila_agent.probe.machine_lock import machine_lock
with machine_lock(0, sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name(request) -> str:
    return f"kafila-test-{request.node.name}"


def test_another_process_waits_until_the_holder_ends_however_it_ends(name: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(TimeoutError, match="another probe has held this machine for 0 s"),
            machine_lock(0, name),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with machine_lock(5, name):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="abstract socket names are Linux's")
def test_no_file_is_left_behind(name: str) -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    with machine_lock(0, name):
        pass
    assert not any(name in path.name for path in set(Path(tempfile.gettempdir()).iterdir()) - before)
