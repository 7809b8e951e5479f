"""The program as its users start it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

HEAVY = ("torch", "transformers", "aioquic", "fastapi", "pydantic", "openai", "kafila_agent")


def start(state_dir, *args: str) -> subprocess.Popen:
    ports = ("--host", "127.0.0.1", "--port", "0", "--metrics-port", "0")
    return subprocess.Popen(
        [sys.executable, "-m", "kafila_rendezvous.main", *ports, "--state-dir", str(state_dir), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, None])
def test_one_line_says_where_it_serves_and_it_ends_cleanly(tmp_path, end):
    process = start(tmp_path, "--until-stdin-closes")
    where = json.loads(process.stdout.readline())
    assert set(where) == {"grpc_port", "udp_port", "metrics_port", "fingerprint"}
    assert len(bytes.fromhex(where["fingerprint"])) == 32
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{where['metrics_port']}/metrics").read()
    assert b"kafila_rendezvous_agents 0.0" in metrics
    assert resident_bytes(process.pid) < 150 * 2**20  # a small always-on machine is enough
    if end is not None:
        process.send_signal(end)
        process.wait(10)
    rest, logs = process.communicate(timeout=10)  # closes standard input
    assert (process.returncode, rest) == (0, "")
    assert [json.loads(line)["event"] for line in logs.splitlines()][-1] == "serving"


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        out, err = start(tmp_path, "--port", str(port)).communicate(timeout=20)
    assert out == ""
    message = err.splitlines()[-1]
    assert message.startswith(f"kafila-rendezvous: cannot serve on TCP port {port} of 127.0.0.1")
    assert "--port" in message
    assert "Traceback" not in err


def test_a_damaged_certificate_is_named(tmp_path):
    (tmp_path / "rendezvous.pem").write_text("garbage")
    process = start(tmp_path)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "rendezvous.pem" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_the_base_install_is_enough():
    code = f"import sys, kafila_rendezvous.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert result.stdout.strip() == "[]"
