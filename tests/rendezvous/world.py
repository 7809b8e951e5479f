"""A rendezvous's registry and agents without a network: what is sent lands in ``inbox``, time is given."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.fleet import plan_fleet
from kafila_proto.signed import Label, make_signature, seal
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.outcome import Forsaken, GrantCircuit, PlanFleet, ReleaseCircuits, Send, SessionOver
from kafila_rendezvous.registry import Registry

MODEL = {"name": "m", "blocks": 6, "block_bytes": 10, "head_bytes": 5, "kv_bytes_per_token_per_block": 1}
STEPS = ("HOST_ELEMENT", "JOINER_PROOF", "HOST_PROOF")


class Agent:
    """An agent's key and name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.certificate = make_certificate("kafila-agent")
        self.certificate_der = self.certificate.certificate_der
        self.id = self.certificate.fingerprint

    def sign(self, label: str, payload: bytes) -> bytes:
        return make_signature(self.certificate.private_key, label, payload)


class World:
    """The registry, driven by hand. ``say`` returns what the registry decided."""

    def __init__(self, agents: list[Agent], limits: Limits | None = None) -> None:
        self.registry = Registry(limits)
        self.by_id = {agent.id: agent for agent in agents}
        self.inbox: dict[bytes, list[pb.ToAgent]] = defaultdict(list)
        self.plans: list[PlanFleet] = []
        self.circuits: list[GrantCircuit] = []
        self.over: list[SessionOver] = []
        self.released: list[ReleaseCircuits] = []
        self.forsaken: list[bytes] = []
        self.associations: dict[bytes, bytes] = {}
        self._associations = itertools.count()
        self.now = 0.0

    def attach(self, agent: Agent, source: str = "192.0.2.1") -> list:
        """A process of the agent's begins: its association is a new one."""
        self.associations[agent.id] = next(self._associations).to_bytes(16)
        return self.come_again(agent, source)

    def come_again(self, agent: Agent, source: str = "192.0.2.1") -> list:
        """Another stream of the same process."""
        association = self.associations[agent.id]
        return self.note(self.registry.attach(agent.id, agent.name, source, association, self.now))

    def detach(self, agent: Agent) -> list:
        return self.note(self.registry.detach(agent.id, self.now))

    def say(self, agent: Agent, **fields) -> list:
        return self.note(self.registry.receive(agent.id, pb.FromAgent(**fields), self.now))

    def tick(self, now: float) -> list:
        self.now = now
        return self.note(self.registry.tick(now))

    def note(self, commands: list) -> list:
        for command in commands:
            match command:
                case Send(to, message):
                    self.inbox[to].append(message)
                case PlanFleet():
                    self.plans.append(command)
                case GrantCircuit():
                    self.circuits.append(command)
                case ReleaseCircuits():
                    self.released.append(command)
                case SessionOver():
                    self.over.append(command)
                case Forsaken(agent):
                    self.forsaken.append(agent)
        return commands

    def plan(self) -> list:
        """Answer the oldest PlanFleet."""
        work = self.plans.pop(0)
        answer = plan_fleet(work.charter, work.reports)
        return self.note(self.registry.planned(work.session_id, work.epoch, *answer))

    def heard(self, agent: Agent, kind: str) -> list:
        """Every message of one kind that has reached ``agent``."""
        found = self.inbox[agent.id]
        return [getattr(m, kind) for m in found if m.WhichOneof("message") == kind]

    def problem(self, agent: Agent) -> pb.Problem:
        """What was last refused to ``agent``."""
        return self.heard(agent, "problem")[-1]

    def create(self, host: Agent, members: int, session_id: bytes = b"s" * 16) -> str:
        self.say(host, create=pb.CreateSession(session_id=session_id, expected_members=members))
        return self.heard(host, "created")[-1].number

    def admit(self, host: Agent, joiner: Agent, number: str) -> None:
        """From the call to the admission; the rendezvous knows nothing of what the elements hold."""
        self.say(joiner, join=pb.JoinSession(number=number))
        attempt = self.heard(host, "introduction")[-1].attempt
        for step in STEPS:
            sender = joiner if step == "JOINER_PROOF" else host
            self.say(sender, introduction=pb.Introduction(attempt=attempt, step=step))
        self.say(host, admit=pb.Admit(attempt=attempt))

    def charter(self, host: Agent, members: list[Agent], **changes) -> list:
        return self.say(host, charter=signed_charter(host, members, **changes))

    def report(self, member: Agent, session_id: bytes = b"s" * 16, **changes) -> list:
        return self.say(member, report=signed_report(member, session_id, **changes))

    def countersign(self, host: Agent, **changes) -> list:
        return self.say(host, plan=signed_plan(host, self.heard(host, "reports")[-1], **changes))

    def form(self, *members: Agent) -> None:
        """A full session of these, planned and countersigned."""
        host = members[0]
        number = self.create(host, len(members))
        for joiner in members[1:]:
            self.admit(host, joiner, number)
        self.charter(host, list(members))
        for member in members:
            self.report(member)
        self.plan()
        self.countersign(host)

    def serve(self, *members: Agent) -> None:
        """As ``form``, up to the last word."""
        self.form(*members)
        for member in members:
            self.progress(member, pb.LOADING)
        for member in members:
            self.progress(member, pb.READY)

    def progress(self, member: Agent, state: int, epoch: int = 1) -> list:
        return self.say(member, progress=pb.Progress(epoch=epoch, state=state))


def signed_charter(host: Agent, members: list[Agent], **changes) -> pb.Signed:
    fields = {
        "session_id": b"s" * 16,
        "revision": 1,
        "expected_members": len(members),
        "context_tokens": 16,
        "concurrency": 1,
        "model": pb.ModelReference(name="m", facts_json=json.dumps(MODEL)),
        "roster": [pb.RosterEntry(name=member.name, fingerprint=member.id) for member in members],
    }
    return seal(host, Label.CHARTER, pb.Charter(**fields | changes).SerializeToString())


def signed_report(member: Agent, session_id: bytes, problem: str = "", epoch: int = 0, **facts) -> pb.Signed:
    measured = {
        "name": member.name,
        "bandwidth_bytes_per_s": 1e9,
        "overhead_s": 1e-4,
        "memory_bytes": 10**6,
        "rendezvous_rtt_s": 0.001,
    }
    report = pb.Report(
        session_id=session_id, member_json=json.dumps(measured | facts), problem=problem, epoch=epoch
    )
    return seal(member, Label.REPORT, report.SerializeToString())


def signed_plan(host: Agent, complete: pb.ReportsComplete, **changes) -> pb.Signed:
    fields = {
        "session_id": b"s" * 16,
        "epoch": complete.epoch,
        "reports": complete.reports,
        "fleet_json": complete.fleet_json,
        "plan_json": complete.plan_json,
    }
    return seal(host, Label.PLAN, pb.Plan(**fields | changes).SerializeToString())
