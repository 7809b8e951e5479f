"""Sessions without a network: what each message leads to."""

from __future__ import annotations

import json

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_rendezvous.introduction import ATTEMPT_S
from kafila_rendezvous.session_states import SessionState

SESSION_ID = b"s" * 16


def test_a_session_of_one(world, agents, session_of):
    desk = agents[0]
    world.form(desk)
    world.progress(desk, pb.LOADING)
    assert session_of().state is SessionState.LOADING
    world.progress(desk, pb.READY)
    assert session_of().state is SessionState.SERVING
    assert world.heard(desk, "serve")[0].epoch == 1


def test_from_the_number_to_serving(world, agents, session_of):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    assert number.isdigit()
    assert len(number) == 6
    assert world.heard(desk, "created")[0].valid_s == 3600
    for joiner in (lap, attic):
        world.admit(desk, joiner, number)
    world.charter(desk, [desk, lap, attic])
    assert [len(world.heard(m, "charter")) for m in (desk, lap, attic)] == [1, 1, 1]
    world.report(attic)
    world.report(desk)
    assert world.plans == []
    world.report(lap)
    world.plan()
    complete = world.heard(desk, "reports")[0]
    assert (complete.epoch, len(complete.reports)) == (1, 3)
    assert [m["name"] for m in json.loads(complete.fleet_json)["members"]] == ["desk", "lap", "attic"]
    assert sorted(json.loads(complete.plan_json)["ring"]) == ["attic", "desk", "lap"]
    assert session_of().state is SessionState.FORMING
    world.countersign(desk)
    assert session_of().state is SessionState.CONNECTING
    assert [len(world.heard(m, "plan")) for m in (desk, lap, attic)] == [1, 1, 1]
    for member in (desk, lap, attic):
        world.progress(member, pb.READY)
    assert session_of().state is SessionState.SERVING
    assert [len(world.heard(m, "serve")) for m in (desk, lap, attic)] == [1, 1, 1]


def test_progress_is_passed_on_by_name_and_newcomers_catch_up(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    world.admit(desk, lap, number)
    world.progress(lap, pb.PROBING, epoch=0)
    (update,) = world.heard(desk, "member")
    assert (update.name, update.member, update.progress.state) == ("lap", lap.id, pb.PROBING)
    assert world.heard(lap, "member") == []
    world.admit(desk, attic, number)
    assert [u.name for u in world.heard(attic, "member")] == ["lap"]


def test_progress_of_a_stale_epoch_is_dropped(world, agents, session_of):
    desk, lap, *_ = agents
    world.form(desk, lap)
    assert world.progress(lap, pb.WAITING, epoch=0) == []
    assert world.progress(lap, pb.READY, epoch=2) == []
    assert session_of().state is SessionState.CONNECTING


def test_progress_cannot_stand_for_leaving(world, agents):
    world.form(agents[0], agents[1])
    world.progress(agents[1], pb.LEFT)
    assert "Leave" in world.problem(agents[1]).detail


def test_wrong_number(world, agents):
    number = world.create(agents[0], 2)
    wrong = f"{(int(number) + 1) % 10**6:06}"
    world.say(agents[1], join=pb.JoinSession(number=wrong))
    problem = world.problem(agents[1])
    assert (problem.code, problem.request) == ("not_found", "join")


def test_one_friend_too_many_is_told(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.say(desk, stop_admitting=pb.StopAdmitting())
    world.say(attic, join=pb.JoinSession(number=number))
    assert world.problem(attic).code == "full"
    assert "2 members already" in world.problem(attic).detail


def test_who_waits_at_the_door_when_the_last_seat_goes_is_told(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(attic, join=pb.JoinSession(number=number))
    attempt = world.heard(desk, "introduction")[-1].attempt
    for sender, step in ((desk, "HOST_ELEMENT"), (lap, "JOINER_PROOF"), (desk, "HOST_PROOF")):
        world.say(sender, introduction=pb.Introduction(attempt=attempt, step=step))
    world.say(desk, admit=pb.Admit(attempt=attempt))
    assert world.problem(attic).code == "full"
    world.create(attic, 1, b"t" * 16)  # it is free again


def test_a_host_that_stops_admitting_cannot_be_told_from_no_host(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(attic, join=pb.JoinSession(number=number))
    world.say(desk, stop_admitting=pb.StopAdmitting())
    assert world.problem(attic).code == "not_found"
    world.say(agents[3], join=pb.JoinSession(number=number))
    assert world.problem(agents[3]) == world.problem(attic)


def test_a_new_number_voids_the_old_and_unseats_nobody(world, agents, session_of):
    desk, lap, attic, _ = agents
    old = world.create(desk, 3)
    world.admit(desk, lap, old)
    new = world.create(desk, 3)
    assert new != old
    assert list(session_of().members) == [desk.id, lap.id]
    world.say(attic, join=pb.JoinSession(number=old))
    assert world.problem(attic).code == "not_found"
    world.admit(desk, attic, new)
    assert session_of().is_full


def test_numbers_expire_and_the_host_is_told(world, agents):
    number = world.create(agents[0], 2)
    assert world.tick(3599.0) == []
    world.tick(3600.0)
    assert world.problem(agents[0]).code == "expired"
    world.say(agents[1], join=pb.JoinSession(number=number))
    assert world.problem(agents[1]).code == "not_found"


def test_a_silent_attempt_ends_and_its_joiner_may_call_again(world, agents):
    number = world.create(agents[0], 2)
    world.say(agents[1], join=pb.JoinSession(number=number))
    world.tick(ATTEMPT_S)
    assert world.heard(agents[1], "introduction")[-1].step == pb.Introduction.FAILED
    assert world.registry.introductions_failed == 1
    world.admit(agents[0], agents[1], number)


@pytest.mark.parametrize("who", [0, 1])
def test_a_member_that_leaves_ends_the_session_by_name(world, agents, who):
    desk, lap, attic, _ = agents
    world.form(desk, lap, attic)
    goer = agents[who]
    world.say(goer, leave=pb.Leave(reason="bedtime"))
    reason = "left the session: bedtime"
    name = "desk, the host," if who == 0 else "lap"
    others = [agent for agent in (desk, lap, attic) if agent is not goer]
    assert {world.heard(other, "closed")[0].reason for other in others} == {f"{name} {reason}"}
    assert world.heard(goer, "closed") == []
    assert [over.session_id for over in world.over] == [SESSION_ID]
    assert world.registry.sessions == {}
    world.create(others[0], 1, b"t" * 16)  # free for another


@pytest.fixture
def reported(world, agents):
    """Three members that have all reported: the planner is at work."""
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    for joiner in (lap, attic):
        world.admit(desk, joiner, number)
    world.charter(desk, [desk, lap, attic])
    for member in (desk, lap, attic):
        world.report(member)
    return desk, lap, attic


def test_who_leaves_while_it_is_planned_takes_the_plan_along(world, reported, session_of):
    desk, lap, attic = reported
    world.say(lap, leave=pb.Leave())
    world.plan()
    assert world.heard(desk, "reports") == []
    assert session_of().state is SessionState.FORMING
    for member in (desk, attic):
        gone = world.heard(member, "member")[-1]
        assert (gone.name, gone.progress.state, gone.progress.detail) == ("lap", pb.LEFT, "left the session")
    assert session_of().epoch == 2


def test_what_the_host_said_before_it_heard_that_someone_left_is_dropped(world, reported, session_of):
    desk, lap, attic = reported
    world.plan()
    world.say(lap, leave=pb.Leave())
    world.countersign(desk)
    world.charter(desk, [desk, lap, attic], revision=2)
    assert world.heard(desk, "problem") == []
    assert world.heard(attic, "plan") == []
    world.charter(desk, [desk, attic], revision=3, expected_members=3)
    assert len(world.heard(attic, "charter")) == 2
    world.say(desk, plan=pb.Signed())  # what is not of an older epoch is refused as ever
    assert world.problem(desk).request == "plan"


def test_a_code_that_was_used_up_stays_so_when_somebody_leaves(world, reported, agents):
    desk, lap, _ = reported
    world.say(lap, leave=pb.Leave())
    number = world.heard(desk, "created")[-1].number
    world.say(agents[3], join=pb.JoinSession(number=number))
    assert world.problem(agents[3]).code == "not_found"
    renewed = world.create(desk, 3)
    world.admit(desk, agents[3], renewed)
    assert agents[3].id in world.registry.sessions[SESSION_ID].session.members


def test_a_joiner_that_goes_ends_only_its_attempt(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.detach(lap)
    assert world.heard(desk, "introduction")[-1].step == pb.Introduction.FAILED
    assert SESSION_ID in world.registry.sessions


def test_a_session_that_ends_tells_who_waits_at_its_door(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(desk, leave=pb.Leave())
    assert world.problem(lap).code == "not_found"
    world.create(lap, 1, b"t" * 16)


def test_a_member_that_cannot_take_part_ends_it_by_name(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.charter(desk, [desk, lap])
    world.report(lap, problem="no model m here: download it")
    for member in (desk, lap):
        assert world.heard(member, "closed")[0].reason == "lap cannot take part: no model m here: download it"


def test_a_refusal_goes_to_everyone_and_ends_it(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.charter(desk, [desk, lap])
    for member in (desk, lap):
        world.report(member, memory_bytes=12)
    world.plan()
    world.countersign(desk)
    for member in (desk, lap):
        kinds = [m.WhichOneof("message") for m in world.inbox[member.id]][-2:]
        assert kinds == ["plan", "closed"]
    reason = json.loads(world.heard(desk, "reports")[0].plan_json)["reason"]
    assert world.heard(lap, "closed")[0].reason == reason


def test_a_planner_that_fails_ends_the_session(world, agents):
    world.create(agents[0], 1)
    world.charter(agents[0], [agents[0]])
    world.report(agents[0])
    work = world.plans.pop()
    world.note(world.registry.plan_failed(work.session_id, work.epoch, "members: odd"))
    assert world.heard(agents[0], "closed")[0].reason == "the session cannot be planned: members: odd"
    assert world.registry.planned(work.session_id, work.epoch, "", "") == []


def test_a_report_that_changes_while_it_is_planned_is_planned_anew(world, agents):
    desk = agents[0]
    world.create(desk, 1)
    world.charter(desk, [desk])
    world.report(desk)
    world.report(desk, memory_bytes=999)
    first, second = world.plans
    assert (first.epoch, second.epoch) == (1, 2)
    world.plan()
    assert world.heard(desk, "reports") == []
    world.plan()
    assert world.heard(desk, "reports")[0].epoch == 2
