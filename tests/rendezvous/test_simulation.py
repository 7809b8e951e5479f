"""Agents that do anything at any time, seeded: whatever the order, the registry's books stay true."""

from __future__ import annotations

import random

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.presence import GRACE_S
from kafila_rendezvous.session import HOLD_S, Session
from kafila_rendezvous.session_states import SessionState

SEEDS = range(40)
STEPS = 400
AGENTS = 7
LIMITS = Limits(sessions_per_source=3, wrong_numbers_per_source=50, number_valid_s=120.0)
INTRODUCTION_STEPS = list(pb.Introduction.Step.values())


class Simulation:
    """One seed's run. Each step one agent does one thing, sensible or not; then everything is checked."""

    def __init__(self, seed: int, world_module, agents) -> None:
        self.random = random.Random(seed)
        self.module = world_module
        self.agents = agents
        self.world = world_module.World(agents, LIMITS)
        self.registry = self.world.registry
        self.registry._pick_number = lambda: f"{self.random.randrange(10**6):06}"
        self.states: dict[Session, tuple[int, int]] = {}
        self.visited: set[SessionState] = set()
        self.revision = 0
        self.graces = 0

    def step(self) -> None:
        agent = self.random.choice(self.agents)
        peer = self.registry.attached.get(agent.id)
        if peer is not None and peer.grace_until is not None and self.random.random() < 0.8:
            self.world.come_again(agent)
            assert self.registry.attached[agent.id] is peer
        elif peer is None or peer.grace_until is not None:
            self.world.attach(agent)
            assert self.registry.attached[agent.id].session_id is None
            if self.random.random() < 0.9:
                self.resume(agent)
        else:
            names, weights = zip(*ACTIONS, strict=True)
            action = self.random.choices(names, weights)[0]
            getattr(self, action)(agent)
        self.check()

    def session_id(self, agent) -> bytes:
        own = self.registry.attached[agent.id].session_id
        return own if own and self.random.random() < 0.95 else bytes([self.random.randrange(3)]) * 16

    def session_of(self, agent):
        own = self.registry.attached[agent.id].session_id
        return self.registry.sessions[own].session if own else None

    def create(self, agent) -> None:
        request = pb.CreateSession(
            session_id=self.session_id(agent), expected_members=self.random.randint(0, 4)
        )
        self.world.say(agent, create=request)

    def join(self, agent) -> None:
        numbers = [entry.number for entry in self.registry.sessions.values() if entry.number]
        number = self.random.choice(numbers) if numbers and self.random.random() < 0.9 else "000000"
        self.world.say(agent, join=pb.JoinSession(number=number))

    def introduce(self, agent) -> None:
        """Mostly what an honest agent would say next; sometimes anything."""
        peer = self.registry.attached[agent.id]
        entry = self.registry.sessions.get(peer.calling or peer.session_id or b"")
        attempt = entry.introductions._attempt if entry else None
        number = attempt.number if attempt and self.random.random() < 0.95 else self.random.randrange(9)
        step = self.random.choice(INTRODUCTION_STEPS)
        if attempt and self.random.random() < 0.9:
            step = {"OPENED": 2, "CHALLENGED": 3, "PROVED": 4}.get(attempt.state.name, 0)
            if step == 0:
                self.world.say(agent, admit=pb.Admit(attempt=number))
                return
        self.world.say(agent, introduction=pb.Introduction(attempt=number, step=step))

    def charter(self, agent) -> None:
        session = self.session_of(agent)
        members = [self.world.by_id[m] for m in session.members] if session else [agent]
        if self.random.random() < 0.1:
            self.random.shuffle(members)
        self.revision += 1
        self.world.charter(
            agent,
            members,
            session_id=self.session_id(agent),
            revision=self.revision if self.random.random() < 0.9 else 0,
            expected_members=session.expected_members if session else 1,
        )

    def report(self, agent) -> None:
        problem = "no such model here" if self.random.random() < 0.02 else ""
        memory = 10**6 if self.random.random() < 0.95 else 11
        session = self.session_of(agent)
        epoch = session._asked if session and self.random.random() < 0.9 else 0
        self.world.report(agent, self.session_id(agent), problem=problem, memory_bytes=memory, epoch=epoch)

    def resume(self, agent) -> None:
        """Mostly what an agent does that was in a session."""
        waiting = [i for i, entry in self.registry.sessions.items() if agent.id in entry.session.absent]
        session_id = self.random.choice(waiting or list(self.registry.sessions) or [b"t" * 16])
        self.world.say(agent, resume=pb.Resume(session_id=session_id))

    def countersign(self, agent) -> None:
        if self.world.plans and self.random.random() < 0.8:
            self.world.plan()
        if self.world.heard(agent, "reports"):
            self.world.countersign(agent, session_id=self.session_id(agent))

    def circuit(self, agent) -> None:
        peer = self.random.choice(self.agents).id
        self.world.say(agent, circuit=pb.CircuitRequest(epoch=self.random.randrange(3), peer=peer))

    def progress(self, agent) -> None:
        session = self.session_of(agent)
        epoch = session.epoch if session and self.random.random() < 0.9 else 0
        self.world.progress(agent, self.random.choice([3, 4, 5, 6, 6, 6, 7, 8, 9]), epoch)

    def stop_admitting(self, agent) -> None:
        self.world.say(agent, stop_admitting=pb.StopAdmitting())

    def leave(self, agent) -> None:
        self.world.say(agent, leave=pb.Leave(returns=self.random.random() < 0.5))

    def detach(self, agent) -> None:
        self.world.detach(agent)
        self.graces += agent.id in self.registry.attached

    def edge_lost(self, agent) -> None:
        session, peer = self.session_of(agent), self.random.choice(self.agents).id
        epoch = session.epoch if session and self.random.random() < 0.9 else 0
        self.world.say(agent, edge_lost=pb.EdgeLost(epoch=epoch, peer=peer))

    def tick(self, _agent) -> None:
        self.world.tick(self.world.now + self.random.choice([0.0, 1.0, 30.0]))

    def check(self) -> None:
        """What must hold after every step."""
        registry = self.registry
        for agent, peer in registry.attached.items():
            assert peer.session_id is None or peer.calling is None
            if peer.session_id is not None:
                assert agent in registry.sessions[peer.session_id].session.members
            if peer.grace_until is not None:
                assert peer.calling is None
            if peer.calling is not None:
                assert agent in registry.sessions[peer.calling].introductions.joiners
        assert registry._numbers == {e.number: i for i, e in registry.sessions.items() if e.number}
        for session_id, entry in registry.sessions.items():
            self.check_session(session_id, entry)

    def check_session(self, session_id, entry) -> None:
        session = entry.session
        assert session.host in session.members
        assert len(session.members) <= session.expected_members
        assert session.state is not SessionState.CLOSED
        for member in session.members:
            peer = self.registry.attached.get(member)
            assert (peer is not None and peer.session_id == session_id) == (member not in session.absent)
        assert session.absent.keys() <= session.members.keys()
        assert bool(session.absent) == (session.state is SessionState.HELD)
        for joiner in entry.introductions.joiners:
            assert self.registry.attached[joiner].calling == session_id
        order = (session.epoch, list(SessionState).index(session.state))
        assert order >= self.states.get(session, (0, 0))
        self.states[session] = order
        self.visited.add(session.state)
        if session.state is SessionState.SERVING:
            assert session.is_full


ACTIONS = [
    ("create", 4),
    ("join", 6),
    ("introduce", 30),
    ("charter", 8),
    ("report", 12),
    ("countersign", 10),
    ("circuit", 3),
    ("progress", 18),
    ("stop_admitting", 0.5),
    ("resume", 0.5),
    ("leave", 0.3),
    ("detach", 0.3),
    ("edge_lost", 0.5),
    ("tick", 3),
]


@pytest.fixture(scope="module")
def agents(world_module):
    return [world_module.Agent(f"m{i}") for i in range(AGENTS)]


def test_any_order_of_anything(world_module, agents):
    visited: set[SessionState] = set()
    refused: set[str] = set()
    graces = 0
    for seed in SEEDS:
        simulation = Simulation(seed, world_module, agents)
        try:
            for _ in range(STEPS):
                simulation.step()
            for agent in agents:
                peer = simulation.registry.attached.get(agent.id)
                if peer is not None and peer.grace_until is None:
                    simulation.detach(agent)
                    simulation.check()
            simulation.world.tick(simulation.world.now + GRACE_S)
            assert simulation.registry.attached == {}
            simulation.world.tick(simulation.world.now + HOLD_S)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        registry = simulation.registry
        assert (registry.attached, registry.sessions, registry._numbers) == ({}, {}, {})
        visited |= simulation.visited
        graces += simulation.graces
        refused |= set(registry.totals.refusals)
    # The runs are worth nothing unless they get everywhere.
    assert visited == set(SessionState) - {SessionState.CLOSED}
    assert graces > 10
    assert refused >= {"invalid", "forbidden", "not_found", "full"}
