"""What host and members state about a session, made and checked: charters, reports and plans.

Everything here is signed end to end, so that the rendezvous, which carries it, can withhold it and no more.
Pure: bytes in, statements or a StatementError out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from kafila_planner.facts import FleetError
from kafila_proto.certificate import FINGERPRINT_BYTES
from kafila_proto.fleet import canonical_json, compose_fleet, first_difference, parse_json, plan_fleet
from kafila_proto.names import InvalidName, check_name, printable
from kafila_proto.rendezvous_pb2 import (
    Candidate,
    Charter,
    ModelReference,
    Plan,
    Report,
    ReportsComplete,
    RosterEntry,
    Signed,
)
from kafila_proto.signed import Label, SignatureError, Signer, seal, verify

_M = TypeVar("_M", bound=Message)


class StatementError(ValueError):
    """A charter, report or plan that must not be believed; the message says why."""


def make_charter(
    host: Signer,
    *,
    session_id: bytes,
    revision: int,
    expected_members: int,
    context_tokens: int,
    concurrency: int,
    model: ModelReference,
    roster: Sequence[tuple[str, bytes]],
    objective: str = "throughput",
    division: str = "",
    draft: ModelReference | None = None,
) -> Signed:
    """The host's statement of the session. ``roster`` holds (name, fingerprint), the host's own first."""
    charter = Charter(
        session_id=session_id,
        revision=revision,
        expected_members=expected_members,
        context_tokens=context_tokens,
        concurrency=concurrency,
        model=model,
        roster=[RosterEntry(name=name, fingerprint=fingerprint) for name, fingerprint in roster],
        objective=objective,
        division=division,
        draft=draft,
    )
    return seal(host, Label.CHARTER, charter.SerializeToString())


def make_report(
    member: Signer,
    *,
    session_id: bytes,
    member_json: str,
    candidates: Iterable[Candidate] = (),
    problem: str = "",
    epoch: int = 0,
) -> Signed:
    """A member's statement about itself, asked for in ``epoch``; ``member_json`` is a "members" object of a planning
    file.
    """
    report = Report(
        session_id=session_id,
        member_json=member_json,
        candidates=list(candidates),
        problem=problem,
        epoch=epoch,
    )
    return seal(member, Label.REPORT, report.SerializeToString())


def verify_charter(
    signed: Signed, host_fingerprint: bytes, known_revision: int, *, session_id: bytes
) -> Charter:
    """The charter, if the host of this session made it and it is newer than revision ``known_revision``.

    Raises StatementError.
    """
    charter = _open(signed, Label.CHARTER, host_fingerprint, Charter())
    if charter.session_id != session_id:
        raise StatementError("the charter is of another session")
    if charter.revision <= known_revision:
        raise StatementError(f"the charter is revision {charter.revision}, {known_revision} is known already")
    _check_roster(charter, host_fingerprint)
    return charter


def verify_reports(reports: Sequence[Signed], charter: Charter) -> list[Report]:
    """What the roster's members reported, in its order, each by its own signature, all when asked last.

    Raises StatementError.
    """
    if len(reports) != len(charter.roster):
        raise StatementError(f"{len(reports)} reports for the {len(charter.roster)} members of the roster")
    opened = [
        _verify_report(signed, entry, charter) for signed, entry in zip(reports, charter.roster, strict=True)
    ]
    latest = max((report.epoch for report in opened), default=0)
    for report, entry in zip(opened, charter.roster, strict=True):
        if report.epoch != latest:
            raise StatementError(
                f"the report of {entry.name} is of epoch {report.epoch}, others are of epoch {latest}"
            )
    return opened


def countersign(
    reports_complete: ReportsComplete, charter: Charter, host: Signer, *, known_epoch: int = 0
) -> Signed:
    """The plan of epoch ``reports_complete.epoch`` as the host states it, computed here from signed reports.

    Raises StatementError naming the first difference if the rendezvous's fleet or plan is another, or the
    member whose report does not hold.
    """
    if reports_complete.epoch <= known_epoch:
        raise StatementError(f"epoch {reports_complete.epoch} is over, {known_epoch} is in force")
    _check_full(charter)
    reports = verify_reports(reports_complete.reports, charter)
    try:
        fleet_json, plan_json = plan_fleet(charter, reports)
    except ValueError as error:
        raise StatementError(f"the members' reports make no fleet: {error}") from error
    _check_same("fleet", reports_complete.fleet_json, fleet_json)
    _check_same("plan", reports_complete.plan_json, plan_json)
    plan = Plan(
        session_id=charter.session_id,
        epoch=reports_complete.epoch,
        charter_revision=charter.revision,
        reports=reports_complete.reports,
        fleet_json=fleet_json,
        plan_json=plan_json,
    )
    return seal(host, Label.PLAN, plan.SerializeToString())


def verify_plan(signed: Signed, charter: Charter, own_report: Signed, known_epoch: int) -> Plan:
    """The plan, if the host made it for this charter, from our own last report, after ``known_epoch``.

    Raises StatementError.
    """
    plan = _open(signed, Label.PLAN, charter.roster[0].fingerprint, Plan())
    if plan.session_id != charter.session_id:
        raise StatementError("the plan is of another session")
    if plan.charter_revision != charter.revision:
        raise StatementError(
            f"the plan is for revision {plan.charter_revision} of the charter, {charter.revision} is in force"
        )
    if plan.epoch <= known_epoch:
        raise StatementError(f"the plan is of epoch {plan.epoch}, {known_epoch} is in force")
    _check_full(charter)
    reports = verify_reports(plan.reports, charter)
    if own_report not in plan.reports:
        raise StatementError("the plan was made from another report than the one this member sent last")
    try:
        _check_same("fleet", plan.fleet_json, canonical_json(compose_fleet(charter, reports)))
    except FleetError as error:
        raise StatementError(f"the members' reports make no fleet: {error}") from error
    return plan


def _open(signed: Signed, label: Label, author: bytes, message: _M) -> _M:
    """``message`` filled with what ``author`` stated under ``label``."""
    try:
        message.ParseFromString(verify(signed, label, author))
    except (SignatureError, DecodeError) as error:
        raise StatementError(str(error)) from error
    return message


def _verify_report(signed: Signed, entry: RosterEntry, charter: Charter) -> Report:
    try:
        report = _open(signed, Label.REPORT, entry.fingerprint, Report())
    except StatementError as error:
        raise StatementError(f"the report of {entry.name} does not hold: {error}") from error
    if report.session_id != charter.session_id:
        raise StatementError(f"the report of {entry.name} is of another session")
    return report


def _check_roster(charter: Charter, host_fingerprint: bytes) -> None:
    names = [entry.name for entry in charter.roster]
    fingerprints = [entry.fingerprint for entry in charter.roster]
    if not fingerprints or fingerprints[0] != host_fingerprint:
        raise StatementError("the charter's roster does not start with the host")
    if len(set(names)) < len(names) or len(set(fingerprints)) < len(fingerprints):
        raise StatementError("the charter's roster names a member twice")
    if any(len(fingerprint) != FINGERPRINT_BYTES for fingerprint in fingerprints):
        raise StatementError("the charter's roster holds a fingerprint that is not one")
    if len(names) > charter.expected_members:
        raise StatementError(f"{len(names)} members where {charter.expected_members} are expected")
    try:
        for name in names:
            check_name(name)
    except InvalidName as error:
        raise StatementError(str(error)) from error
    for shown in (charter.model.name, charter.model.dtype):
        if shown != printable(shown):
            raise StatementError(
                f"the charter's model is called {shown[:100]!r}, which is no name of a model"
            )


def _check_full(charter: Charter) -> None:
    """The rendezvous says when everyone has reported; who is everyone it does not say."""
    if len(charter.roster) < charter.expected_members:
        raise StatementError(
            f"a plan for {len(charter.roster)} members, {charter.expected_members} are expected"
        )


def _check_same(what: str, theirs_json: str, ours_json: str) -> None:
    try:
        theirs = parse_json(theirs_json)
    except ValueError:
        raise StatementError(f"the rendezvous's {what} is not JSON") from None
    difference = first_difference(theirs, json.loads(ours_json))
    if difference is not None:
        raise StatementError(f"the {what} received is not the one these reports make: {difference}")
