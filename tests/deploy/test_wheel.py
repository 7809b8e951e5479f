"""From the wheel alone: the programs, what comes beside them, and a session of services in namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import ROOT, Installed
from tests.deploy.service import Service
from tests.natlab.lab import RENDEZVOUS, RENDEZVOUS_2, Lab, why_not

BESIDE = (
    *("systemd/kafila-agent.service", "systemd/kafila-rendezvous.service", "systemd/sysusers.conf"),
    *("prometheus/rules.yml", "grafana/ring.json", "grafana/member.json", "grafana/rendezvous.json"),
    *("compose.yml", "docs/getting-started.md"),
)
HOMES = ("oslo", "lima")


def test_the_programs_run_from_the_wheel_and_not_from_this_tree(installed, tmp_path):
    where = "import kafila_agent, kafila_planner, kafila_proto, kafila_rendezvous as r; print(r.__file__)"
    found = subprocess.run(
        [installed.program("python"), "-c", where],
        cwd=tmp_path,
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(installed.prefix))
    helped = subprocess.run(
        [installed.program("kafila-rendezvous"), "--help"],
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--second-host" in helped.stdout
    fleet = (ROOT / "docs/fleet.json").read_text()
    planned = subprocess.run(
        [installed.program("kafila-ctl"), "plan", "-", "--json"],
        input=fleet,
        cwd=tmp_path,
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(planned.stdout)["ring"]


def test_what_a_machine_needs_lies_beside_the_programs(installed):
    assert [name for name in BESIDE if not (installed.share / name).is_file()] == []


def test_the_wheel_holds_the_packages_and_nothing_of_the_tests(installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    packages = {"kafila_agent", "kafila_planner", "kafila_proto", "kafila_rendezvous"}
    assert {root for root in roots if "-" not in root} == packages
    assert "kafila_proto/words.txt" in names
    page = {f"kafila_agent/api/page/{path.name}" for path in (ROOT / "kafila_agent/api/page").iterdir()}
    assert "kafila_agent/api/page/index.html" in page <= set(names)


def test_uninstalling_leaves_nothing(installed, tmp_path):
    def pip(*command: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "--python", str(tmp_path / "venv/bin/python"), *command],
            check=True,
        )

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    before = files(tmp_path / "venv")
    pip("install", "--no-deps", "--no-index", "--no-compile", str(installed.wheel))
    assert files(tmp_path / "venv") > before
    pip("uninstall", "--yes", "kafila")
    assert files(tmp_path / "venv") == before


def files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    lab = Lab()
    for name in HOMES:
        lab.add(name, "ordinary", rtt_ms=20)
    with lab:
        yield lab


@pytest.fixture(scope="module")
def services(lab, installed, smollm2, tmp_path_factory) -> Iterator[dict[str, Service]]:
    """The rendezvous and two agents, each as its unit says."""
    directory = tmp_path_factory.mktemp("s")
    units = installed.share / "systemd"
    options = {"KAFILA_RENDEZVOUS_OPTIONS": f"--host {RENDEZVOUS} --second-host {RENDEZVOUS_2}"}
    rendezvous = Service(
        lab, "rv", units / "kafila-rendezvous.service", installed.prefix, directory / "r", options
    )
    agents = {
        name: Service(
            lab,
            name,
            units / "kafila-agent.service",
            installed.prefix,
            directory / name[0],
            {
                "KAFILA_RENDEZVOUS": f"{RENDEZVOUS}:7470",
                "KAFILA_NAME": name,
                # This machine has no group kafila, and its namespaces no router that speaks UPnP.
                "KAFILA_AGENT_OPTIONS": "--control-group root --no-upnp --threads 1",
            },
        )
        for name in HOMES
    }
    for agent in agents.values():
        models = agent.directory("CacheDirectory") / "models"
        models.mkdir(parents=True)
        (models / smollm2.name).symlink_to(smollm2)
    with rendezvous, agents["oslo"], agents["lima"]:
        for service in (rendezvous, *agents.values()):
            service.hear("READY=1")
        yield {"rv": rendezvous, **agents}


def ctl(lab: Lab, installed: Installed, service: Service, node: str, *command: str) -> list[str]:
    directory = str(service.directory("RuntimeDirectory"))
    return lab.command(node, [installed.program("kafila-ctl"), "--state-dir", directory, *command])


@pytest.mark.timeout(300)
def test_services_from_the_wheel_form_a_session_and_answer(lab, installed, services, smollm2):
    oslo = services["oslo"]
    model = str(oslo.directory("CacheDirectory") / "models" / smollm2.name)
    create = (
        "session",
        "create",
        "--model",
        model,
        "--members",
        "2",
        "--context",
        "256",
        "--concurrency",
        "1",
    )
    creating = subprocess.Popen(
        ctl(lab, installed, oslo, "oslo", *create),
        env=installed.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code = creating.stdout.readline().strip()
    drained = threading.Thread(target=creating.stderr.read, daemon=True)
    drained.start()

    def run(node: str, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ctl(lab, installed, services[node], node, *command),
            env=installed.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    joined = run("lima", "session", "join", code)
    assert joined.stdout.strip() == "http://127.0.0.1:7480/v1", joined.stderr
    assert "Chat in a browser: http://127.0.0.1:7480/\n" in joined.stderr
    assert creating.wait(60) == 0
    status = json.loads(run("oslo", "session", "status", "--json").stdout)["session"]
    assert status["state"] == "serving"
    assert {edge["path"] for member in status["members"] for edge in member["edges"]} == {"direct"}
    head = status["plan"]["head"]
    answered = run(head, "chat", "--max-tokens", "8", input="Say hello.")
    assert answered.stdout.strip()
    for name in HOMES:
        services[name].hear(f"STATUS=serving {status['model']} with 2 members")
        assert "WATCHDOG=1" in services[name].heard
    services["rv"].hear("STATUS=2 agents, 1 sessions")
    assert services[head].stop() == 0
    services["rv"].hear("STATUS=1 agents, 1 sessions")  # the other waits for it
    (waiting,) = set(HOMES) - {head}
    assert run(waiting, "session", "leave").returncode == 0
    services["rv"].hear("STATUS=1 agents, 0 sessions")
