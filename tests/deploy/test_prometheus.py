"""A real Prometheus scrapes real processes at work: every panel of every dashboard has something to show."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb
from tests.deploy.queries import DEPLOY, filled, panel_queries, rule_queries

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed (make tools)"),
    pytest.mark.timeout(240),
]
NAMES = ("desk", "laptop", "tower")
PATIENCE_S = 90
RATE_INTERVAL = "20s"


@pytest.fixture(scope="module")
def fleet(smollm2) -> Iterator[LocalFleet]:
    options = ["--model-dir", str(smollm2.parent), "--threads", "1"]
    with LocalFleet({name: [*options, *["--relay-only"] * (name == "tower")] for name in NAMES}) as fleet:
        request = pb.CreateRequest(
            model=str(smollm2), members=3, context_tokens=128, concurrency=2, dtype="bfloat16"
        )
        code = fleet.agent("desk").CreateSession(request).session.code
        for name in NAMES[1:]:
            fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
        yield fleet


@pytest.fixture(scope="module")
def prometheus(fleet, tmp_path_factory) -> Iterator[httpx2.Client]:
    """Prometheus with the deployed configuration, at this fleet's ports and in a hurry."""
    directory = tmp_path_factory.mktemp("prometheus")
    shutil.copy(DEPLOY / "prometheus/rules.yml", directory)
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    agents = [fleet.agent(name).GetStatus(pb.StatusRequest()).metrics_url.split("/")[2] for name in NAMES]
    targets = {"kafila-agent": agents, "kafila-rendezvous": [f"127.0.0.1:{fleet.rendezvous_metrics_port}"]}
    assert [job["job_name"] for job in config["scrape_configs"]] == list(targets)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (
        running(directory) as address,
        httpx2.Client(base_url=f"{address}/api/v1", trust_env=False) as client,
    ):
        yield client


@contextlib.contextmanager
def running(directory: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
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
        until(lambda: httpx2.get(f"http://{address}/-/ready", trust_env=False).status_code == 200)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def until(holds, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.HTTPError):
            if holds():
                return
        time.sleep(0.2)
    raise AssertionError("it does not come to hold")


def test_every_panel_has_data_and_every_rule_is_evaluated(fleet, prometheus):
    url, model = serving(fleet)
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as api:
        empty = {"all"}
        deadline = time.monotonic() + PATIENCE_S
        while empty and time.monotonic() < deadline:
            body = {"model": model, "prompt": "ab", "max_tokens": 16, "ignore_eos": True}
            api.post("/completions", json=body).raise_for_status()
            empty = {where for where, expression in panel_queries() if not data(prometheus, expression)}
    assert not empty
    assert {where.split(":")[0] for where, _ in panel_queries()} == {"ring", "member", "rendezvous"}
    paths = {series["metric"]["path"] for series in data(prometheus, "kafila_edge_rtt_seconds")}
    assert paths == {"direct", "relayed"}
    assert {series["metric"]["member"] for series in data(prometheus, "kafila_agent_info")} == set(NAMES)
    rules = [rule for group in prometheus.get("/rules").json()["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {alert for alert, _ in rule_queries()}
    assert {rule["health"] for rule in rules} == {"ok"}
    pending = {alert["labels"]["alertname"] for alert in prometheus.get("/alerts").json()["data"]["alerts"]}
    # An idle machine's two cores are shared here: how fast a stage is says nothing.
    assert pending <= {"KafilaStageSlowerThanPredicted", "KafilaEdgeRelayedThoughPredictedDirect"}


def serving(fleet: LocalFleet) -> tuple[str, str]:
    """The URL of the head's API and the model's name, once the session serves."""
    for status in fleet.agent("desk").WatchStatus(pb.StatusRequest(), timeout=PATIENCE_S):
        if status.session.state in (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED):
            break
    assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
    head = json.loads(status.session.plan_json)["head"]
    for status in fleet.agent(head).WatchStatus(pb.StatusRequest(), timeout=PATIENCE_S):
        if status.session.state == pb.SessionStatus.SERVING:
            break
    return status.api_url, status.session.model


def data(prometheus: httpx2.Client, expression: str) -> list[dict]:
    """The series that an expression has now, with a number each."""
    reply = prometheus.get(
        "/query", params={"query": filled(expression, RATE_INTERVAL, peer="laptop")}
    ).json()
    assert reply["status"] == "success", reply
    return [series for series in reply["data"]["result"] if math.isfinite(float(series["value"][1]))]
