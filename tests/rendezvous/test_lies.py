"""A rendezvous that lies, over real streams: members notice, and nothing it makes up is believed."""

from __future__ import annotations

import json

import pytest

from kafila_agent.control import introduction as intro
from kafila_agent.control.charter import StatementError, countersign, verify_plan
from kafila_agent.identity import Identity
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.signed import Label, seal

LIAR = Identity("liar", make_certificate("kafila-agent"))
SKIP = ("member", "Send", "Stopped")


@pytest.fixture
def lie(rendezvous, monkeypatch):
    """``lie(kind, change)`` has the rendezvous change every message of a kind just before it is sent."""

    def install(kind: str, change) -> None:
        honest = rendezvous.service._send

        def send(to: bytes, message: pb.ToAgent) -> None:
            if message.WhichOneof("message") == kind:
                changed = pb.ToAgent.FromString(message.SerializeToString())
                message = change(changed) or changed
            honest(to, message)

        monkeypatch.setattr(rendezvous.service, "_send", send)

    return install


@pytest.mark.parametrize("step", [pb.Introduction.HOST_ELEMENT, pb.Introduction.JOINER_PROOF])
async def test_swapped_certificates_admit_nobody(make_party, lie, step):
    def swap(message):
        if message.introduction.step == step:
            message.introduction.certificate = LIAR.certificate_der

    lie("introduction", swap)
    desk, lap = await make_party("desk"), await make_party("lap")
    lap.join_soon(await desk.create(2))
    assert (await lap.expect("Refused")).reason == intro.NO_SUCH_CODE
    assert (await desk.expect("AttemptFailed")).failures == 1


async def test_a_guess_by_the_rendezvous_is_one_of_three(make_party, rendezvous):
    """It opens attempts itself and answers the host's element with a guess at the words."""
    desk = await make_party("desk")
    await desk.create(2)
    for guess in range(1, 4):
        opened = pb.Introduction(attempt=100 + guess, step=pb.Introduction.OPENED)
        rendezvous.service._send(desk.identity.fingerprint, pb.ToAgent(introduction=opened))
        joiner = intro.JoinerIntroduction(
            intro.Party("liar", LIAR.certificate_der, rendezvous.certificate.fingerprint)
        )
        joiner.join(intro.SessionCode("1" * 6, ("walnut", "otter")), 0.0)
        element = (await desk.expect("Send", skip=())).message.introduction
        (proof,) = joiner.handle(element, 0.0)
        message = pb.ToAgent(introduction=proof.message.introduction)
        rendezvous.service._send(desk.identity.fingerprint, message)
        assert (await desk.expect("AttemptFailed")).failures == guess
    assert "3 attempts" in (await desk.expect("Stopped")).reason


async def test_a_member_of_its_own_cannot_be_put_on_the_roster(make_party, lie):
    def add(message):
        charter = pb.Charter.FromString(message.charter.payload)
        charter.roster.append(pb.RosterEntry(name="liar", fingerprint=LIAR.fingerprint))
        return pb.ToAgent(charter=seal(LIAR, Label.CHARTER, charter.SerializeToString()))

    desk, lap = await make_party("desk"), await make_party("lap")
    code = await desk.create(3)
    lie("charter", add)
    with pytest.raises(StatementError, match="signed by"):
        await lap.join(code)


async def reported(session):
    members = await session("desk", "lap")
    for member in members:
        await member.report()
    return members


async def test_a_plan_of_its_own_is_not_countersigned(session, lie):
    def favour(message):
        plan = json.loads(message.reports.plan_json)
        plan["ring"].reverse()
        message.reports.plan_json = json.dumps(plan)

    lie("reports", favour)
    desk, _ = await reported(session)
    with pytest.raises(StatementError, match=r"the plan received.*ring\[0\]"):
        countersign(await desk.expect("reports", skip=SKIP), desk.charter, desk.identity)


async def test_a_report_of_its_own_is_not_planned_from(session, lie):
    def forge(message):
        report = pb.Report.FromString(message.reports.reports[1].payload)
        member = json.loads(report.member_json)
        report.member_json = json.dumps(member | {"memory_bytes": 1})
        message.reports.reports[1].payload = report.SerializeToString()

    lie("reports", forge)
    desk, _ = await reported(session)
    with pytest.raises(StatementError, match="report of lap does not hold"):
        countersign(await desk.expect("reports", skip=SKIP), desk.charter, desk.identity)


async def test_a_plan_that_the_host_did_not_sign_is_not_obeyed(session, lie):
    lie("plan", lambda message: pb.ToAgent(plan=seal(LIAR, Label.PLAN, message.plan.payload)))
    desk, lap = await reported(session)
    complete = await desk.expect("reports", skip=SKIP)
    await desk.send(plan=countersign(complete, desk.charter, desk.identity))
    with pytest.raises(StatementError, match="signed by"):
        verify_plan(await lap.expect("plan"), lap.charter, lap.own_report, 0)


async def test_a_plan_that_was_in_force_before_is_not_obeyed_again(session):
    desk, lap = await reported(session)
    complete = await desk.expect("reports", skip=SKIP)
    await desk.send(plan=countersign(complete, desk.charter, desk.identity))
    old = await lap.expect("plan")
    assert verify_plan(old, lap.charter, lap.own_report, 0).epoch == 1
    with pytest.raises(StatementError, match="epoch 1, 1 is in force"):
        verify_plan(old, lap.charter, lap.own_report, 1)


async def test_a_report_from_before_somebody_was_away_is_not_planned_from_again(session, lie, rendezvous):
    """A member says anew where it is and what it has; what it said before is another epoch's."""
    desk, lap = await reported(session)
    stale = lap.own_report
    first = await desk.expect("reports", skip=SKIP)
    await desk.send(plan=countersign(first, desk.charter, desk.identity))
    await desk.expect("plan")
    rendezvous.service._outboxes[lap.identity.fingerprint].finish()
    await lap.expect("lost", skip=("plan", *SKIP))
    await lap.expect("attached")
    await lap.send(resume=pb.Resume(session_id=lap.session_id))
    lie("reports", lambda message: message.reports.reports[1].CopyFrom(stale))
    for member in (desk, lap):
        while (hold := await member.expect("hold", skip=SKIP)).absent:
            pass
        await member.report(epoch=hold.epoch)
    with pytest.raises(StatementError, match="report of lap is of epoch 0, others are of epoch 2"):
        countersign(await desk.expect("reports", skip=SKIP), desk.charter, desk.identity, known_epoch=1)
