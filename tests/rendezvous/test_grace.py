"""A member at work whose stream breaks has a while to come back unnoticed; whoever is really gone has not."""

from __future__ import annotations

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.outcome import RequestRefused
from kafila_rendezvous.presence import GRACE_S
from kafila_rendezvous.session_states import SessionState

SESSION_ID = b"s" * 16
ANOTHER = "198.51.100.7"


@pytest.fixture
def at_work(world, agents, session_of):
    """Three members of a session that serves."""
    members = agents[:3]
    world.serve(*members)
    assert session_of().state is SessionState.SERVING
    return members


def lose_edge(world, agent, peer, epoch=1):
    world.say(agent, edge_lost=pb.EdgeLost(epoch=epoch, peer=peer.id))


def holds(world, agent) -> list[list[str]]:
    """Who was away, by each Hold that has reached ``agent``."""
    return [[world.by_id[absent].name for absent in hold.absent] for hold in world.heard(agent, "hold")]


def test_who_comes_back_in_time_is_not_missed(world, at_work, session_of):
    desk, lap, attic = at_work
    world.tick(100.0)
    assert world.detach(lap) == []
    world.progress(attic, pb.SERVING)
    assert (
        world.heard(lap, "member")[-1].name == "attic"
    )  # said to it all the same: it is kept until it is heard
    world.tick(99.9 + GRACE_S)
    assert world.come_again(lap, ANOTHER) == []
    assert world.registry.attached[lap.id].source == ANOTHER
    world.tick(100.0 + 2 * GRACE_S)
    assert (session_of().state, session_of().epoch) == (SessionState.SERVING, 1)
    assert holds(world, desk) == holds(world, lap) == []
    assert world.forsaken == []
    world.say(lap, circuit=pb.CircuitRequest(epoch=1, peer=attic.id))
    assert world.circuits[-1].member == lap.id


def test_who_comes_back_too_late_is_waited_for(world, at_work, session_of):
    desk, lap, _ = at_work
    world.tick(100.0)
    world.detach(lap)
    world.tick(100.0 + GRACE_S)
    assert holds(world, desk) == [["lap"]]
    assert world.heard(desk, "member")[-1].progress.detail == "lost its connection to the rendezvous"
    assert world.forsaken == [lap.id]
    world.come_again(lap)  # the same process, and the rendezvous knows nothing of it any more
    assert world.registry.attached[lap.id].session_id is None
    world.say(lap, resume=pb.Resume(session_id=SESSION_ID))
    assert session_of().state is SessionState.GATHERING


def test_another_process_of_the_member_is_told_at_once(world, at_work, session_of):
    desk, lap, _ = at_work
    world.detach(lap)
    world.attach(lap)
    assert holds(world, desk) == [["lap"]]
    assert world.forsaken == [lap.id]
    world.say(lap, resume=pb.Resume(session_id=SESSION_ID))
    assert holds(world, desk)[-1] == []
    assert session_of().state is SessionState.GATHERING


def test_a_lost_edge_ends_the_grace_at_once(world, at_work):
    desk, lap, attic = at_work
    world.detach(lap)
    lose_edge(world, desk, attic)  # of somebody else
    lose_edge(world, desk, lap, epoch=0)
    assert holds(world, desk) == []
    lose_edge(world, desk, lap)
    assert holds(world, desk) == holds(world, attic) == [["lap"]]
    lose_edge(world, attic, lap)  # the other neighbour: it is known
    assert holds(world, attic) == [["lap"]]


def test_who_is_missed_already_has_no_grace_unless_it_is_heard_of(world, at_work, session_of):
    """A machine without power: its edges are silent before its stream is known to be dead."""
    desk, lap, attic = at_work
    lose_edge(world, desk, lap)
    world.progress(lap, pb.SERVING)
    assert world.detach(lap) == []
    world.come_again(lap)
    lose_edge(world, desk, lap)
    world.detach(lap)
    assert holds(world, attic) == [["lap"]]
    assert session_of().state is SessionState.HELD


def test_two_at_once_and_all(world, at_work, session_of):
    desk, lap, attic = at_work
    for member in at_work:
        world.detach(member)
    world.tick(GRACE_S - 1)
    world.come_again(desk)
    world.come_again(attic)
    assert holds(world, desk) == []
    world.tick(GRACE_S)
    assert holds(world, desk) == [["lap"]]
    assert list(session_of().absent) == [lap.id]


def test_who_has_another_stream_before_the_first_is_known_dead_is_not_locked_out(world, at_work):
    desk, lap, _ = at_work
    before = world.registry.attached[lap.id]
    assert world.come_again(lap, ANOTHER) == []
    assert world.registry.attached[lap.id] is before
    for process in (bytes(16), world.associations[desk.id]):  # a copy of its key is another agent
        with pytest.raises(RequestRefused, match="lap is attached already"):
            world.registry.attach(lap.id, "lap", ANOTHER, process, world.now)
    assert holds(world, desk) == []


def test_nobody_comes_back_with_another_s_association(world, agents, at_work):
    """Its id is no key: the agent has proved who it is."""
    _, lap, _, spare = agents
    world.detach(lap)
    world.detach(spare)
    world.registry.attach(spare.id, "spare", ANOTHER, world.associations[lap.id], world.now)
    assert world.registry.attached[spare.id].session_id is None
    assert world.registry.attached[lap.id].grace_until is not None


@pytest.mark.parametrize("returns", [False, True])
def test_who_said_good_bye_has_no_grace(world, at_work, returns):
    desk, lap, _ = at_work
    world.say(lap, leave=pb.Leave(reason="bedtime", returns=returns))
    told = holds(world, desk) == [["lap"]] if returns else len(world.heard(desk, "closed")) == 1
    assert told
    world.detach(lap)
    assert world.forsaken[-1] == lap.id


def test_who_leaves_while_another_is_in_its_grace_ends_it_for_both(world, at_work):
    desk, lap, attic = at_work
    world.detach(lap)
    world.say(attic, leave=pb.Leave())
    for member in (desk, lap):
        assert world.heard(member, "closed")[-1].reason == "attic left the session"
    world.come_again(lap)
    world.create(lap, 1, b"t" * 16)  # free for another


def test_a_hold_reaches_who_is_in_its_grace_and_it_reports_with_the_others(world, at_work, session_of):
    _, lap, attic = at_work
    world.detach(lap)
    world.say(attic, leave=pb.Leave(returns=True))
    assert holds(world, lap) == [["attic"]]
    world.come_again(lap)
    world.say(attic, resume=pb.Resume(session_id=SESSION_ID))
    for member in at_work:
        world.report(member, epoch=2)
    assert session_of().state is SessionState.GATHERING
    assert [work.epoch for work in world.plans] == [3]


def test_there_is_grace_where_edges_stand_and_nowhere_else(world, agents, session_of):
    desk, lap, attic, _ = agents
    world.form(desk, lap, attic)
    world.detach(lap)  # edges are being opened: who is gone would have the others give up
    assert session_of().state is SessionState.HELD
    world.detach(attic)  # nothing is at work
    assert holds(world, desk)[-1] == ["lap", "attic"]


def test_a_network_has_room_for_so_many_however_they_come(world_module, agents):
    world = world_module.World(agents, Limits(agents_per_source=3))
    for agent in agents[:3]:
        world.attach(agent)
    world.serve(*agents[:3])
    world.detach(agents[1])
    with pytest.raises(RequestRefused, match="3 agents from"):
        world.attach(agents[3])
    world.come_again(agents[1])  # its own place is not another's
    world.attach(agents[3], ANOTHER)
