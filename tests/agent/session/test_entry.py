"""Introductions that a rendezvous plays again, mixes up or makes up, at the code that real agents run."""

from __future__ import annotations

import asyncio

import pytest

from kafila_agent.control import introduction as intro
from kafila_agent.control.charter import make_charter
from kafila_agent.control.local import AgentError
from kafila_agent.identity import load_identity
from kafila_agent.session import hosting
from kafila_agent.session.kept import FILE, Kept, keep
from kafila_agent.session.lifecycle import State
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.session_code import make_words, parse_session_code
from kafila_rendezvous import registry

OPENED, HOST_ELEMENT = pb.Introduction.OPENED, pb.Introduction.HOST_ELEMENT
JOINER_PROOF, HOST_PROOF = pb.Introduction.JOINER_PROOF, pb.Introduction.HOST_PROOF
PATIENCE_S = 10.0


def replayed(introduction: pb.Introduction, attempt: int) -> pb.Introduction:
    """The same, under the number of another attempt."""
    again = pb.Introduction()
    again.CopyFrom(introduction)
    again.attempt = attempt
    return again


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_over_this_wire_a_friend_is_admitted(make_member, wire):
    desk, lap = await make_member("desk"), await make_member("lap")
    await lap.entry.join(await desk.create(3))
    assert desk.roster == ["desk", "lap"]
    assert lap.entry.membership.state is State.JOINING
    assert [len(wire.introductions(step)) for step in (OPENED, HOST_ELEMENT, JOINER_PROOF, HOST_PROOF)] == [
        1
    ] * 4


async def test_a_proof_played_again_admits_nobody_and_counts(make_member, wire):
    desk, lap = await make_member("desk"), await make_member("lap")
    await lap.entry.join(await desk.create(4))
    (proof,) = wire.introductions(JOINER_PROOF)
    await lap.entry.leave()
    await until(lambda: desk.roster == ["desk"])
    for failures in (1, 2, 3):  # the same code, the same words, each time the host's element is another
        wire.say(desk.fingerprint, introduction=pb.Introduction(attempt=50 + failures, step=OPENED))
        wire.say(desk.fingerprint, introduction=replayed(proof, 50 + failures))
        await until(lambda n=failures: desk.entry.hosting._introduction.failures == n)
    assert desk.roster == ["desk"]
    assert desk.entry.hosting.code == ""
    assert "3 attempts with this code failed" in desk.entry.hosting.notice


async def test_a_host_s_half_played_again_is_no_host(make_member, wire):
    desk, lap, attic = [await make_member(name) for name in ("desk", "lap", "attic")]
    code = await desk.create(4)
    await lap.entry.join(code)
    element, proof = wire.introductions(HOST_ELEMENT)[0], wire.introductions(HOST_PROOF)[0]
    keep_charters = wire.change

    def play_again(to, message):
        if message.WhichOneof("message") == "introduction" and to == attic.fingerprint:
            old = {HOST_ELEMENT: element, HOST_PROOF: proof}[message.introduction.step]
            return pb.ToAgent(introduction=replayed(old, message.introduction.attempt))
        if message.WhichOneof("message") == "introduction" and message.introduction.step == JOINER_PROOF:
            wire.say(attic.fingerprint, introduction=replayed(proof, message.introduction.attempt))
            return None  # the host never hears of it
        return keep_charters(to, message)

    wire.change = play_again
    with pytest.raises(AgentError, match="no session admits this code"):
        await attic.entry.join(code)
    assert attic.entry.membership is None
    assert desk.roster == ["desk", "lap"]


@pytest.mark.parametrize("late", ["leave", "report", "charter", "plan", "progress", "edge_lost"])
async def test_what_is_refused_of_the_session_before_does_not_concern_the_next(make_member, wire, late):
    """It may be on its way still when the next one is asked for, by its host or by a joiner."""
    desk, lap = await make_member("desk"), await make_member("lap")
    problem = pb.Problem(code="not_found", detail="this agent is in no session", request=late)
    keep_charters = wire.change

    def say_late(to, message):
        if message.WhichOneof("message") == "created" or (
            message.WhichOneof("message") == "introduction" and to == lap.fingerprint
        ):
            wire.say(to, problem=problem)
        return keep_charters(to, message)

    wire.change = say_late
    await lap.entry.join(await desk.create(3))
    assert desk.roster == ["desk", "lap"]


@pytest.mark.parametrize("early", [HOST_PROOF, JOINER_PROOF, OPENED, pb.Introduction.FAILED])
async def test_steps_out_of_order_are_no_step(make_member, wire, early):
    """What comes before its turn is dropped by both sides, and the next friend is admitted all the same."""
    desk, lap = await make_member("desk"), await make_member("lap")
    code = await desk.create(3)
    for member in (desk, lap):
        wire.say(member.fingerprint, introduction=pb.Introduction(attempt=1, step=early, element=bytes(33)))
    await desk.settled()
    if early == OPENED:  # it is the first of an attempt, which counts
        wire.say(desk.fingerprint, introduction=pb.Introduction(attempt=1, step=pb.Introduction.FAILED))
    await lap.entry.join(code)
    assert desk.roster == ["desk", "lap"]


async def test_halves_of_two_sessions_do_not_fit_together(make_member, wire):
    """The joiner of one session gets the other's host, and each host the other's joiner."""
    desk, shed, lap, attic = [await make_member(name) for name in ("desk", "shed", "lap", "attic")]
    codes = [await desk.create(2), await shed.create(2)]
    other = {
        a.fingerprint: b.fingerprint for a, b in ((desk, shed), (shed, desk), (lap, attic), (attic, lap))
    }
    opened: dict[bytes, int] = {}
    keep_charters = wire.change

    def cross(to, message):
        if message.WhichOneof("message") != "introduction":
            return keep_charters(to, message)
        introduction = message.introduction
        if introduction.step == OPENED:  # both at once
            opened[to] = introduction.attempt
            for host, attempt in opened.items() if len(opened) == 2 else ():
                wire.say(host, introduction=pb.Introduction(attempt=attempt, step=OPENED))
        elif introduction.step in (HOST_ELEMENT, JOINER_PROOF):
            attempt = sum(opened.values()) - introduction.attempt
            wire.say(other[to], introduction=replayed(introduction, attempt))
        else:
            return message
        return None

    wire.change = cross
    joins = [lap.entry.join(codes[0]), attic.entry.join(codes[1])]
    results = await asyncio.gather(*joins, return_exceptions=True)
    assert [str(result).split(":")[0] for result in results] == ["no session admits this code"] * 2
    assert (desk.roster, shed.roster) == (["desk"], ["shed"])


async def test_the_same_words_in_two_sessions_are_not_one_code(make_member, wire, monkeypatch):
    """A proof made for one session is worth nothing in another, even if chance gave both the same words."""
    words = make_words()
    monkeypatch.setattr(hosting, "make_words", lambda: words)
    desk, shed, lap = [await make_member(name) for name in ("desk", "shed", "lap")]
    code, other = await desk.create(2), await shed.create(2)
    assert parse_session_code(code).words == parse_session_code(other).words
    keep_charters = wire.change

    def divert(to, message):
        if message.WhichOneof("message") == "introduction" and message.introduction.step == JOINER_PROOF:
            wire.say(shed.fingerprint, introduction=pb.Introduction(attempt=70, step=OPENED))
            wire.say(shed.fingerprint, introduction=replayed(message.introduction, 70))
            return None
        return keep_charters(to, message)

    wire.change = divert
    joining = asyncio.create_task(lap.entry.join(code))
    await until(lambda: shed.entry.hosting._introduction.failures == 1)
    wire.say(lap.fingerprint, introduction=pb.Introduction(attempt=1, step=pb.Introduction.FAILED))
    with pytest.raises(AgentError, match="no session admits this code"):
        await joining
    assert (desk.roster, shed.roster) == (["desk"], ["shed"])


@pytest.mark.parametrize("number", ["", "12345", "123456\x1b[2J", "123456-otter", "१२३४५६"])
async def test_a_number_that_is_none_is_shown_to_nobody(make_member, wire, number):
    def lie(to, message):
        if message.WhichOneof("message") == "created":
            message.created.number = number
        return message

    desk = await make_member("desk")
    wire.change = lie
    with pytest.raises(AgentError, match="gave the session no number") as refused:
        await desk.create(2)
    assert refused.value.detail.isprintable()
    assert desk.entry.hosting.code == ""


async def test_a_number_that_nobody_asked_for_makes_no_code(make_member, wire):
    desk = await make_member("desk")
    code = await desk.create(2)
    wire.say(desk.fingerprint, created=pb.SessionCreated(number="999999"))
    await desk.settled()
    assert desk.entry.hosting.code == code
    desk.entry.hosting.expire("the code is old")
    wire.say(desk.fingerprint, created=pb.SessionCreated(number="999999"))
    await desk.settled()
    assert desk.entry.hosting.code == ""


async def test_a_code_ends_by_the_host_s_own_clock(make_member, wire, monkeypatch):
    """A rendezvous that never retires the number, and somebody who has read the code meanwhile."""
    monkeypatch.setitem(registry._RULES, "stop_admitting", lambda *_: [])
    desk, lap = await make_member("desk"), await make_member("lap")
    code = await desk.create(2)
    monkeypatch.setattr(hosting, "CODE_VALID_S", 0.0)
    desk.entry.hosting._expire_later()
    await until(lambda: desk.entry.hosting.code == "")
    assert "older than" in desk.entry.hosting.notice
    with pytest.raises(AgentError, match="no session admits this code"):
        await lap.entry.join(code)
    assert desk.roster == ["desk"]


async def test_the_clock_of_a_code_ends_with_its_session(make_member, wire):
    """It would stop the admissions of whatever session there is by then."""
    desk = await make_member("desk")
    await desk.create(2)
    first = desk.entry.hosting
    wire.server.service._carry_out(wire.server.registry.close_all("it is late"))
    await until(lambda: desk.entry.membership.state is State.LEFT)
    await desk.create(2)
    assert first._expiry.cancelled()
    assert not desk.entry.hosting._expiry.cancelled()


@pytest.mark.parametrize("lost", ["desk", "lap"])
async def test_a_stream_that_breaks_unnoticed_leaves_nobody_stuck(make_member, wire, lost):
    """The member takes itself for gone; the rendezvous sees the next stream go on, and knows of nothing."""
    desk, lap = await make_member("desk"), await make_member("lap")
    await lap.entry.join(await desk.create(3))
    member = {"desk": desk, "lap": lap}[lost]
    member.entry.lost("the stream broke")
    assert member.entry.membership.state is State.LEFT
    if lost == "lap":
        await until(lambda: desk.roster == ["desk"])
        await lap.entry.join(desk.entry.hosting.code)
        assert desk.roster == ["desk", "lap"]
    else:
        await until(lambda: lap.entry.membership.state is State.LEFT)
        assert (
            lap.entry.membership.reason
            == "desk, the host, left the session: lost its connection to the rendezvous"
        )
        assert await desk.create(2)


async def test_after_the_plan_nobody_is_introduced_and_nobody_struck_off(make_member, wire):
    desk, lap = await make_member("desk"), await make_member("lap")
    await lap.entry.join(await desk.create(3))
    attempt = wire.introductions(HOST_PROOF)[0].attempt
    desk.entry.membership.lifecycle.state = State.CONNECTING  # it has the plan
    wire.sent.clear()
    for step in (pb.Introduction.FAILED, OPENED):
        wire.say(desk.fingerprint, introduction=pb.Introduction(attempt=attempt, step=step))
    await desk.settled()
    assert desk.roster == ["desk", "lap"]
    assert desk.entry.hosting._introduction.state is intro.HostState.ADMITTING
    assert desk.entry.hosting._revision == 2


async def test_what_is_said_of_strangers_is_not_kept(make_member, wire):
    desk = await make_member("desk")
    await desk.create(2)
    for number in range(300):
        update = pb.MemberUpdate(member=number.to_bytes(32), name="x", progress=pb.Progress(state=pb.PROBING))
        wire.say(desk.fingerprint, member=update)
        wire.say(desk.fingerprint, circuit=pb.CircuitGrant(peer=(1000 + number).to_bytes(32)))
    await desk.settled()
    assert len(desk.entry.membership.progress) <= 64
    assert desk.entry.membership._part is None  # no plan, no edges: a circuit has nowhere to be kept


@pytest.fixture
async def desk_as_kept(make_member, tmp_path):
    """A member that was in a session before its agent was started, with plan 3."""
    identity = load_identity(tmp_path / "desk", "desk")
    charter = make_charter(
        identity,
        session_id=b"s" * 16,
        revision=1,
        expected_members=1,
        context_tokens=16,
        concurrency=1,
        model=pb.ModelReference(name="tiny", dtype="float32", facts_json="{}"),
        roster=[("desk", identity.fingerprint)],
    )
    keep(tmp_path / "desk", Kept(charter, 3, tmp_path))
    return await make_member("desk")


@pytest.mark.parametrize("state", [State.CONNECTING, State.SERVING])
async def test_a_session_at_work_goes_on_until_the_rendezvous_has_lost_the_member(desk_as_kept, state):
    entry, membership = desk_as_kept.entry, desk_as_kept.entry.membership
    membership.lifecycle.state, reason = state, membership.reason
    entry.lost("the stream broke")
    assert (membership.state, membership.reason) == (state, reason)
    entry.resume()  # what has come is not the association that broke off
    assert membership.state is State.HELD
    await until(lambda: membership.state is State.LEFT)
    assert membership.reason.startswith("no session waits for this agent here")


async def test_who_comes_back_to_no_session_says_so_with_the_next_step(desk_as_kept, tmp_path):
    desk = desk_as_kept
    membership = desk.entry.membership
    assert (membership.state, membership.epoch) == (State.HELD, 3)
    assert "waiting for the rendezvous" in membership.reason
    with pytest.raises(AgentError, match="in a session already"):
        await desk.create(2)
    desk.entry.lost("the stream broke")  # it goes on waiting, for its next attachment
    assert membership.state is State.HELD
    desk.entry.resume()
    await until(lambda: membership.state is State.LEFT)
    assert membership.reason.startswith("no session waits for this agent here")
    assert f"create it anew with `kafila-ctl session create --model {tmp_path} --members" in membership.reason
    assert not (tmp_path / "desk" / FILE).exists()
    assert await desk.create(2)
