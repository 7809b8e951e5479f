"""A real Prometheus with the deployed configuration, at a fleet's own ports and in a hurry."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import yaml

from tests.deploy.queries import DEPLOY, filled
from tests.ports import free_port

RATE_INTERVAL = "20s"
_START_S = 30


@contextlib.contextmanager
def scraping(directory: Path, agents: list[str], rendezvous: str) -> Iterator[httpx2.Client]:
    """Its API, while it runs; ``agents`` and ``rendezvous`` are HOST:PORT of their metrics."""
    shutil.copy(DEPLOY / "prometheus/rules.yml", directory)
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    targets = {"kafila-agent": agents, "kafila-rendezvous": [rendezvous]}
    assert [job["job_name"] for job in config["scrape_configs"]] == list(targets)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx2.Client(base_url=f"http://{address}/api/v1", trust_env=False) as client:
            _until(lambda: client.get(f"http://{address}/-/ready").status_code == 200)
            yield client
    finally:
        process.terminate()
        process.wait()


def data(prometheus: httpx2.Client, expression: str, **variables: str) -> list[dict]:
    """The series that a panel's expression has now, those with a number."""
    reply = prometheus.get("/query", params={"query": filled(expression, RATE_INTERVAL, **variables)}).json()
    assert reply["status"] == "success", reply
    return [series for series in reply["data"]["result"] if math.isfinite(float(series["value"][1]))]


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.HTTPError):
            if holds():
                return
        time.sleep(0.1)
    raise AssertionError("Prometheus does not start")
