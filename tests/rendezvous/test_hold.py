"""From the plan on a session waits for a member that is away, and for nobody else."""

from __future__ import annotations

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_rendezvous.session import HOLD_S
from kafila_rendezvous.session_states import SessionState

SESSION_ID = b"s" * 16


def hold_of(world, agent):
    """The last Hold that reached ``agent``: its epoch, and who is away."""
    hold = world.heard(agent, "hold")[-1]
    return hold.epoch, [world.by_id[absent].name for absent in hold.absent]


def come_back(world, agent, session_id=SESSION_ID):
    world.attach(agent)
    world.say(agent, resume=pb.Resume(session_id=session_id))


@pytest.mark.parametrize("gone", ["says so", "is lost"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_member_that_is_away_is_waited_for_and_a_new_plan_is_made(world, agents, session_of, gone, who):
    desk, lap, attic, _ = members = agents
    world.form(desk, lap, attic)
    goer, others = agents[who], [agent for agent in members[:3] if agent is not members[who]]
    if gone == "says so":
        world.say(goer, leave=pb.Leave(reason="its agent was stopped", returns=True))
    world.detach(goer)
    for other in others:
        away = world.heard(other, "member")[-1]
        assert (away.name, away.progress.state) == (goer.name, pb.LEFT)
        assert away.progress.detail == (
            "its agent was stopped" if gone == "says so" else "lost its connection to the rendezvous"
        )
        assert hold_of(world, other) == (2, [goer.name])
    assert session_of().state is SessionState.HELD
    assert [released.session_id for released in world.released] == [SESSION_ID]
    world.progress(others[0], pb.HELD, 1)

    come_back(world, goer)
    for member in members[:3]:
        assert hold_of(world, member) == (2, [])
    assert [m.progress.state for m in world.heard(goer, "member") if m.name == others[0].name] == [pb.HELD]
    assert session_of().state is SessionState.GATHERING
    for member in members[:3]:
        world.report(member, epoch=2)
    world.plan()
    world.countersign(desk)
    assert session_of().state is SessionState.CONNECTING
    for member in members[:3]:
        assert len(world.heard(member, "plan")) == 2
        world.progress(member, pb.READY, 1)  # of the plan that is over
    assert session_of().state is SessionState.CONNECTING
    for member in members[:3]:
        world.progress(member, pb.READY, 3)
    assert session_of().state is SessionState.SERVING
    assert world.heard(desk, "problem") == []


def test_all_may_be_away_at_once(world, agents, session_of):
    desk, lap, *_ = agents
    world.form(desk, lap)
    world.detach(lap)
    world.detach(desk)
    come_back(world, lap)
    assert hold_of(world, lap) == (3, ["desk"])
    come_back(world, desk)
    assert hold_of(world, lap) == hold_of(world, desk) == (3, [])
    world.report(lap, epoch=2)  # it crossed the news that desk was away as well
    assert session_of().members[lap.id].report is None
    world.report(lap, epoch=3)
    world.report(desk, epoch=3)
    assert [work.epoch for work in world.plans] == [4]


def test_who_goes_while_all_report_anew_is_waited_for_again(world, agents, session_of):
    desk, lap, *_ = agents
    world.form(desk, lap)
    world.detach(lap)
    come_back(world, lap)
    for member in (desk, lap):
        world.report(member, epoch=2)
    world.detach(lap)
    world.plan()  # of reports that are no more
    assert len(world.heard(desk, "reports")) == 1
    world.report(desk, epoch=2)
    world.countersign(desk)
    assert world.heard(desk, "problem") == []
    assert session_of().state is SessionState.HELD
    assert len(world.heard(desk, "plan")) == 1


def test_only_the_very_member_comes_back(world, agents, world_module):
    desk, lap, attic, spare = agents
    world.form(desk, lap, attic)
    world.detach(attic)
    for stranger, session_id in ((spare, SESSION_ID), (spare, b"t" * 16), (lap, SESSION_ID)):
        world.say(stranger, resume=pb.Resume(session_id=session_id))
        assert world.problem(stranger).request == "resume"
    world.registry.attach(attic.id, "cellar", "192.0.2.1", bytes(16), world.now)
    world.say(attic, resume=pb.Resume(session_id=SESSION_ID))
    assert world.problem(attic).detail == "in this session the agent is attic, not cellar"
    world.detach(attic)
    impostor = world_module.Agent("attic")  # its name, another key
    world.by_id[impostor.id] = impostor
    come_back(world, impostor)
    assert world.problem(impostor).code == "not_found"
    assert hold_of(world, desk) == (2, ["attic"])
    come_back(world, attic)
    assert hold_of(world, desk) == (2, [])
    assert len(world.heard(spare, "hold")) == 0


def test_who_does_not_come_back_ends_the_session_by_name(world, agents):
    desk, lap, attic, _ = agents
    world.form(desk, lap, attic)
    world.tick(100.0)
    world.detach(attic)
    world.tick(99.0 + HOLD_S)
    assert world.heard(desk, "closed") == []
    world.tick(100.0 + HOLD_S)
    for other in (desk, lap):
        assert world.heard(other, "closed")[0].reason == "attic did not come back within 10 minutes"
    come_back(world, attic)
    assert world.problem(attic).code == "not_found"
    world.create(desk, 1, b"t" * 16)  # free for another


def test_who_leaves_while_another_is_away_ends_it_too(world, agents):
    desk, lap, attic, _ = agents
    world.form(desk, lap, attic)
    world.detach(attic)
    world.say(lap, leave=pb.Leave())
    assert world.heard(desk, "closed")[0].reason == "lap left the session"
    assert world.registry.sessions == {}
