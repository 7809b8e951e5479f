"""Sessions over a real rendezvous: gRPC on loopback, every key and signature real."""

from __future__ import annotations

import json

from kafila_proto import rendezvous_pb2 as pb

from kafila_agent.control.charter import countersign, verify_plan


async def plan_session(members) -> None:
    """From reports to the plan in everyone's hands, each having verified it."""
    host = members[0]
    for member in members:
        await member.report()
    complete = await host.expect("reports", skip=("member", "Send", "Stopped"))
    await host.send(plan=countersign(complete, host.charter, host.identity))
    for member in members:
        signed = await member.expect("plan")
        member.plan = verify_plan(signed, member.charter, member.own_report, 0)


async def test_session_from_code_to_serving(session):
    members = await session("desk", "lap", "attic")
    desk, lap, attic = members
    assert [entry.name for entry in attic.charter.roster] == ["desk", "lap", "attic"]
    assert desk.charter == lap.charter == attic.charter
    await plan_session(members)
    plan = json.loads(attic.plan.plan_json)
    assert sorted(plan["ring"]) == ["attic", "desk", "lap"]
    assert sum(end - start for start, end in (s["blocks"] for s in plan["stages"])) == 6
    await desk.send(circuit=pb.CircuitRequest(epoch=1, peer=lap.identity.fingerprint))
    own, other = await desk.expect("circuit"), await lap.expect("circuit")
    assert own.circuit_id == other.circuit_id
    assert own.key != other.key
    assert (own.peer, other.peer) == (lap.identity.fingerprint, desk.identity.fingerprint)
    for member in members:
        await member.progress(pb.LOADING)
        await member.progress(pb.READY)
    for member in members:
        assert (await member.expect("serve")).epoch == 1
