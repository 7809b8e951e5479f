"""A fleet at work: emulated machines at their places on the network, one set of agents for all of its sessions."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kafila_proto import agent_pb2 as pb
from tests.lab.client import Client
from tests.lab.fleets import FleetFacts, Machine
from tests.lab.scale_model import BYTES_STOOD_FOR, DTYPE, MODELS, make_scale_model
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab

_SETTLE_S = 60.0
_PHASES = ("FORMING", "CONNECTING", "LOADING", "SERVING")


@dataclass
class Session:
    """One that came to its end, or still serves. ``setup_s``: seconds spent in each phase before it served."""

    status: pb.Status
    setup_s: dict[str, float]
    client: Client | None = None

    @property
    def formed(self) -> bool:
        """Whether it serves."""
        return self.client is not None

    @property
    def plan(self) -> dict[str, Any]:
        """The plan, or the refusal, as JSON."""
        return json.loads(self.status.session.plan_json or "{}")

    @property
    def fleet(self) -> dict[str, Any]:
        """What the plan was made from."""
        return json.loads(self.status.session.fleet_json or "{}")


@dataclass
class Laboratory:
    """Enter it, then hold sessions. Everything it writes lies in ``directory``; scale models in ``models``."""

    fleet: FleetFacts
    directory: Path
    models: Path
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Laboratory:
        with contextlib.ExitStack() as stack:
            self.lab = stack.enter_context(network_of(self.fleet))
            self.directory.mkdir(parents=True, exist_ok=True)
            self.show_all()
            options = {machine.name: self._options(machine) for machine in self.fleet.machines}
            self.agents = stack.enter_context(LabFleet(self.lab, self.directory, options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def show_all(self) -> None:
        """Every member measures all there is, from its next session on."""
        for machine in self.fleet.machines:
            self.hide(machine.name, ())

    def hide(self, name: str, fields: Sequence[str]) -> None:
        """From its next session on a member fails to measure these fields of its report."""
        pace = pace_of(self.fleet.machine(name), self.fleet.time_scale) | {"unmeasured": list(fields)}
        self._pace_file(name).write_text(json.dumps(pace))

    @contextlib.contextmanager
    def session(self, model: str, names: Sequence[str] = (), **options: Any) -> Iterator[Session]:
        """A session of these members (all, if none is named), the first its host, until the block ends."""
        names = list(names) or [machine.name for machine in self.fleet.machines]
        asked = {
            "context_tokens": self.fleet.context_tokens,
            "concurrency": self.fleet.concurrency,
            "dtype": DTYPE,
        }
        path = make_scale_model(MODELS[model], self.models)
        session = self._open(names, path, asked | options)
        try:
            yield session
        finally:
            if session.client is not None:
                session.client.close()
            self._dissolve(names)

    def edge_bytes(self, names: Sequence[str]) -> dict[tuple[str, str], float]:
        """Frame bytes sent over each edge so far, by (member, peer), as the agents' own metrics have it."""
        sent: dict[tuple[str, str], float] = {}
        for name in names:
            url = self.agents.agent(name).GetStatus(pb.StatusRequest()).metrics_url
            with contextlib.closing(Client(self.lab.namespace(name), url, "")) as client:
                sent |= {(name, peer): value for peer, value in client.edge_bytes_sent().items()}
        return sent

    def _open(self, names: list[str], model: Path, options: dict[str, Any]) -> Session:
        entered: dict[str, float] = {}
        status = None
        for status in self.agents.form(names, model, **options):
            entered.setdefault(pb.SessionStatus.State.Name(status.session.state), time.monotonic())
        assert status is not None
        times = [entered[phase] for phase in _PHASES if phase in entered]
        setup_s = {
            phase.lower(): after - before
            for phase, before, after in zip(_PHASES, times, times[1:], strict=False)
        }
        if status.session.state != pb.SessionStatus.SERVING:
            return Session(status, setup_s)
        head = json.loads(status.session.plan_json)["head"]
        served = self._serving(head)
        client = Client(self.lab.namespace(head), served.api_url, served.session.model)
        return Session(status, setup_s, client)

    def measured(self, session: Session) -> pb.SessionStatus:
        """What the head has measured of the session."""
        return self.agents.agent(session.plan["head"]).GetStatus(pb.StatusRequest()).session

    def _serving(self, name: str) -> pb.Status:
        """Each member learns by itself that all are ready."""
        for status in self.agents.agent(name).WatchStatus(pb.StatusRequest(), timeout=_SETTLE_S):
            if status.session.state == pb.SessionStatus.SERVING:
                return status
        raise AssertionError(f"{name} does not serve")

    def _dissolve(self, names: list[str]) -> None:
        host = self.agents.agent(names[0])
        if host.GetStatus(pb.StatusRequest()).session.state != pb.SessionStatus.CLOSED:
            host.LeaveSession(pb.LeaveRequest())
        for name in names:
            for status in self.agents.agent(name).WatchStatus(pb.StatusRequest(), timeout=_SETTLE_S):
                if status.session.state in (pb.SessionStatus.CLOSED, pb.SessionStatus.NONE):
                    break

    def _options(self, machine: Machine) -> list[str]:
        room_bytes = machine.memory_gb * 1e9 / BYTES_STOOD_FOR
        return [
            *("--model-dir", str(self.models), "--threads", "1", "--no-upnp"),
            *("--pace", str(self._pace_file(machine.name)), "--memory", str(round(room_bytes))),
        ]

    def _pace_file(self, name: str) -> Path:
        return self.directory / f"{name}.pace.json"


def pace_of(machine: Machine, time_scale: float) -> Mapping[str, Any]:
    """The figures of a machine in the bytes of a scale model and the seconds of a slowed laboratory."""
    per_unit = BYTES_STOOD_FOR * time_scale
    return {
        "bandwidth_bytes_per_s": machine.bandwidth_gb_per_s * 1e9 / per_unit,
        "flops_per_s": machine.tflops * 1e12 / per_unit,
        "overhead_s": machine.overhead_us * 1e-6 * time_scale,
    }


def network_of(fleet: FleetFacts) -> Lab:
    """The fleet's network: a NAT and a round trip for each LAN."""
    lab = Lab()
    for machine in fleet.machines:
        if machine.lan:
            lab.add_to_lan(machine.name, machine.lan)
        else:
            lab.add(machine.name, machine.nat, rtt_ms=machine.rtt_ms * fleet.time_scale)
    return lab
