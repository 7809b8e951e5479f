"""Statements of host and members, and what a lying rendezvous could make of them."""

from __future__ import annotations

import json

import pytest

from kafila_agent.control.charter import (
    StatementError,
    countersign,
    make_charter,
    make_report,
    verify_charter,
    verify_plan,
    verify_reports,
)
from kafila_agent.identity import Identity
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.fleet import plan_fleet
from kafila_proto.signed import Label, seal

SESSION_ID = b"s" * 16
MODEL = {"name": "m", "blocks": 6, "block_bytes": 10, "head_bytes": 5, "kv_bytes_per_token_per_block": 1}
DESK, LAP, ATTIC, STRANGER = (
    Identity(name, make_certificate("kafila-agent")) for name in ("desk", "lap", "attic", "stranger")
)
MEMBERS = (DESK, LAP, ATTIC)


def member_json(name: str, **changes) -> str:
    facts = {
        "name": name,
        "bandwidth_bytes_per_s": 1e9,
        "overhead_s": 1e-4,
        "memory_bytes": 10**6,
        "rendezvous_rtt_s": 0.001,
    }
    return json.dumps(facts | changes)


def charter_of(host=DESK, **changes) -> pb.Signed:
    fields = {
        "session_id": SESSION_ID,
        "revision": 3,
        "expected_members": 3,
        "context_tokens": 16,
        "concurrency": 1,
        "model": pb.ModelReference(name="m", facts_json=json.dumps(MODEL)),
        "roster": [(member.name, member.fingerprint) for member in MEMBERS],
    }
    return make_charter(host, **fields | changes)


def report_of(member: Identity, session_id: bytes = SESSION_ID, **facts) -> pb.Signed:
    return make_report(member, session_id=session_id, member_json=member_json(member.name, **facts))


CHARTER = verify_charter(charter_of(), DESK.fingerprint, 0, session_id=SESSION_ID)
REPORTS = [report_of(member) for member in MEMBERS]


def complete(reports=None, epoch: int = 1, **changes) -> pb.ReportsComplete:
    """What an honest rendezvous sends, but for ``changes``."""
    honest = verify_reports(REPORTS, CHARTER)
    fleet_json, plan_json = plan_fleet(CHARTER, honest)
    fields = {"epoch": epoch, "reports": reports or REPORTS, "fleet_json": fleet_json, "plan_json": plan_json}
    return pb.ReportsComplete(**fields | changes)


def test_an_honest_plan_is_countersigned_and_believed():
    signed = countersign(complete(), CHARTER, DESK)
    for own in REPORTS:
        plan = verify_plan(signed, CHARTER, own, 0)
        assert (plan.epoch, plan.charter_revision) == (1, 3)
        assert sorted(json.loads(plan.plan_json)["ring"]) == ["attic", "desk", "lap"]


def test_a_refusal_is_signed_like_a_plan():
    reports = [report_of(member, memory_bytes=20) for member in MEMBERS]
    fleet_json, plan_json = plan_fleet(CHARTER, verify_reports(reports, CHARTER))
    signed = countersign(complete(reports, fleet_json=fleet_json, plan_json=plan_json), CHARTER, DESK)
    refusal = json.loads(verify_plan(signed, CHARTER, reports[1], 0).plan_json)
    assert {entry["member"] for entry in refusal["refused"]} <= {"desk", "lap", "attic"}


@pytest.mark.parametrize(
    ("signed", "why"),
    [
        (charter_of(STRANGER), "signed by"),
        (charter_of(session_id=b"t" * 16), "another session"),
        (charter_of(revision=2), "revision 2, 2 is known"),
        (charter_of(roster=[("lap", LAP.fingerprint)]), "start with the host"),
        (charter_of(roster=[]), "start with the host"),
        (charter_of(roster=[("desk", DESK.fingerprint), ("desk", LAP.fingerprint)]), "twice"),
        (charter_of(roster=[("desk", DESK.fingerprint), ("lap", DESK.fingerprint)]), "twice"),
        (charter_of(roster=[("desk", DESK.fingerprint), ("a b", LAP.fingerprint)]), "cannot be a name"),
        (charter_of(roster=[("desk", DESK.fingerprint), ("lap", b"short")]), "fingerprint"),
        (charter_of(expected_members=2), "3 members where 2"),
        (seal(DESK, Label.PLAN, charter_of().payload), "does not hold"),
        (seal(DESK, Label.CHARTER, b"\xff\xff"), "Error parsing"),
    ],
)
def test_charters_that_are_not_believed(signed, why):
    with pytest.raises(StatementError, match=why):
        verify_charter(signed, DESK.fingerprint, 2, session_id=SESSION_ID)


def test_a_member_that_the_host_did_not_admit_cannot_be_added():
    charter = pb.Charter.FromString(charter_of().payload)
    charter.roster.append(pb.RosterEntry(name="stranger", fingerprint=STRANGER.fingerprint))
    forged = charter_of()
    forged.payload = charter.SerializeToString()
    with pytest.raises(StatementError, match="does not hold"):
        verify_charter(forged, DESK.fingerprint, 2, session_id=SESSION_ID)


def forge_report(member: Identity, **facts) -> pb.Signed:
    """A report whose payload the rendezvous has changed."""
    forged = report_of(member)
    forged.payload = report_of(member, **facts).payload
    return forged


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([REPORTS[0], forge_report(LAP, memory_bytes=1), REPORTS[2]], "report of lap does not hold"),
        ([REPORTS[0], report_of(STRANGER), REPORTS[2]], "report of lap does not hold"),
        ([REPORTS[0], REPORTS[2], REPORTS[1]], "report of lap does not hold"),
        ([REPORTS[0], report_of(LAP, b"t" * 16), REPORTS[2]], "lap is of another session"),
        (REPORTS[:2], "2 reports for the 3 members"),
        ([*REPORTS, report_of(STRANGER)], "4 reports"),
        (
            [
                REPORTS[0],
                make_report(LAP, session_id=SESSION_ID, member_json=member_json("desk")),
                REPORTS[2],
            ],
            "report of lap: it is about 'desk'",
        ),
        (
            [REPORTS[0], make_report(LAP, session_id=SESSION_ID, member_json="{"), REPORTS[2]],
            "report of lap: not JSON",
        ),
    ],
)
def test_reports_that_are_not_planned_from(reports, why):
    with pytest.raises(StatementError, match=why):
        countersign(complete(reports), CHARTER, DESK)


def changed(text: str, change) -> str:
    value = json.loads(text)
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("field", "change", "why"),
    [
        (
            "fleet_json",
            lambda f: f["members"][1].update(memory_bytes=1),
            r"fleet.*members\[1\]\.memory_bytes is 1 there",
        ),
        ("fleet_json", lambda f: f.update(anchor="lap"), "anchor is 'lap' there, 'desk' here"),
        ("plan_json", lambda p: p.update(head="lap"), "head is 'lap' there, 'desk' here"),
        ("plan_json", lambda p: p["stages"][0].update(blocks=[0, 1]), r"stages\[0\]\.blocks\[1\] is 1 there"),
        ("plan_json", lambda p: p["stages"].pop(), "stages is"),
        ("plan_json", lambda p: p.pop("head"), "head is None there"),
        ("plan_json", lambda p: p.update(extra=1), "extra is 1 there"),
    ],
)
def test_a_fleet_or_plan_of_the_rendezvous_s_own_is_not_signed(field, change, why):
    honest = complete()
    with pytest.raises(StatementError, match=why):
        countersign(complete(**{field: changed(getattr(honest, field), change)}), CHARTER, DESK)


def test_a_rounding_of_another_machine_is_no_lie():
    honest = complete()
    plan = json.loads(honest.plan_json)
    plan["bottleneck_s"] *= 1 + 1e-14
    assert countersign(complete(plan_json=json.dumps(plan)), CHARTER, DESK)
    plan["bottleneck_s"] *= 1 + 1e-6
    with pytest.raises(StatementError, match="bottleneck_s"):
        countersign(complete(plan_json=json.dumps(plan)), CHARTER, DESK)


def test_a_plan_without_everyone_is_neither_signed_nor_believed():
    """The rendezvous says that all have reported, where some have not come yet."""
    some = pb.Charter()
    some.CopyFrom(CHARTER)
    del some.roster[2:]
    fleet_json, plan_json = plan_fleet(some, verify_reports(REPORTS[:2], some))
    early = pb.ReportsComplete(epoch=1, reports=REPORTS[:2], fleet_json=fleet_json, plan_json=plan_json)
    with pytest.raises(StatementError, match="2 members, 3 are expected"):
        countersign(early, some, DESK)
    plan = pb.Plan(session_id=SESSION_ID, epoch=1, charter_revision=some.revision, reports=REPORTS[:2])
    plan.fleet_json, plan.plan_json = fleet_json, plan_json
    with pytest.raises(StatementError, match="2 members, 3 are expected"):
        verify_plan(seal(DESK, Label.PLAN, plan.SerializeToString()), some, REPORTS[1], 0)


def test_json_that_is_nested_beyond_reason_is_a_statement_like_any_other():
    with pytest.raises(StatementError, match="not JSON"):
        countersign(complete(plan_json="[" * 100_000), CHARTER, DESK)


def test_a_stale_epoch_is_neither_signed_nor_believed():
    with pytest.raises(StatementError, match="epoch 1 is over, 1 is in force"):
        countersign(complete(epoch=1), CHARTER, DESK, known_epoch=1)
    signed = countersign(complete(epoch=1), CHARTER, DESK)
    with pytest.raises(StatementError, match="epoch 1, 1 is in force"):
        verify_plan(signed, CHARTER, REPORTS[0], 1)


def plan_by(author: Identity, **changes) -> pb.Signed:
    plan = pb.Plan.FromString(countersign(complete(), CHARTER, DESK).payload)
    reports = changes.pop("reports", None)
    for name, value in changes.items():
        setattr(plan, name, value)
    if reports is not None:
        del plan.reports[:]
        plan.reports.extend(reports)
    return seal(author, Label.PLAN, plan.SerializeToString())


@pytest.mark.parametrize(
    ("signed", "why"),
    [
        (plan_by(STRANGER), "signed by"),
        (plan_by(LAP), "signed by"),
        (plan_by(DESK, session_id=b"t" * 16), "another session"),
        (plan_by(DESK, charter_revision=2), "revision 2 of the charter, 3 is in force"),
        (plan_by(DESK, reports=[REPORTS[0], report_of(LAP, memory_bytes=7), REPORTS[2]]), "another report"),
        (plan_by(DESK, reports=[REPORTS[0], REPORTS[1], report_of(STRANGER)]), "report of attic"),
        (plan_by(DESK, fleet_json="{}"), "fleet received"),
        (plan_by(DESK, fleet_json=""), "not JSON"),
        (seal(DESK, Label.CHARTER, plan_by(DESK).payload), "does not hold"),
    ],
)
def test_plans_that_are_not_believed(signed, why):
    with pytest.raises(StatementError, match=why):
        verify_plan(signed, CHARTER, REPORTS[1], 0)
