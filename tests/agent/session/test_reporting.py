"""What a member reports when a session is planned anew: its machine as it was, its network as it is now."""

from __future__ import annotations

import json

from kafila_agent.model.manifest import read_manifest
from kafila_agent.session.lifecycle import State
from kafila_agent.session.measuring import Measured
from kafila_agent.session.reporting import Reporting
from kafila_agent.session.telling import Telling
from kafila_planner.facts import Behaviour, MemberFacts, parse_member
from kafila_proto import rendezvous_pb2 as pb

SESSION_ID = b"s" * 16


async def test_after_a_hold_round_trip_nat_and_candidates_are_measured_anew(make_member):
    desk = await make_member("desk")
    manifest = read_manifest(desk.model)
    before = MemberFacts(
        name="desk",
        bandwidth_bytes_per_s=1.25e9,
        overhead_s=1e-4,
        memory_bytes=10**9,
        rendezvous_rtt_s=7.0,
        mapping=Behaviour.ADDRESS_AND_PORT_DEPENDENT,
        nat="another network's",
        hairpin=False,
    )
    elsewhere = pb.Candidate(kind=pb.Candidate.HOST, host="192.0.2.77", port=1)
    telling = Telling(desk.machine, lambda: (1, State.PROBING, []))
    reporting = Reporting(desk.machine, SESSION_ID, telling, manifest=manifest)
    reporting._measured = Measured(before, (elsewhere,), manifest)
    charter = pb.Charter(
        model=pb.ModelReference(name=manifest.name, digest=manifest.digest, dtype="float32"),
        expected_members=1,
        roster=[pb.RosterEntry(name="desk", fingerprint=desk.fingerprint)],
    )
    reporting.ask(2, charter)
    assert await reporting.probe(charter) == ""
    report = pb.Report.FromString(reporting.report.payload)
    after = parse_member(json.loads(report.member_json))
    assert report.epoch == 2
    assert after.bandwidth_bytes_per_s == before.bandwidth_bytes_per_s
    assert after.rendezvous_rtt_s is not None
    assert after.rendezvous_rtt_s < 1.0
    assert after.mapping is not before.mapping
    assert after.nat != before.nat
    assert {candidate.host for candidate in report.candidates} == {"127.0.0.1"}
    assert [c.host for c in telling.progress[desk.fingerprint].candidates] == ["127.0.0.1"]
