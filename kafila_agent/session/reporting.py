"""What a member reports of itself, found out anew each time that it is asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafila_agent.control.charter import make_report
from kafila_agent.edge.candidate import Reachable
from kafila_agent.machine import Machine
from kafila_agent.nat.neighbourhood import Neighbourhood
from kafila_agent.session.measuring import Measured, measure_member
from kafila_agent.session.telling import Telling
from kafila_proto.rendezvous_pb2 import Charter, Signed

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest


class Reporting:
    """``report`` is the last one. ``model_path``: where the model lies, or lay before a restart, once that is known."""

    def __init__(
        self,
        machine: Machine,
        session_id: bytes,
        telling: Telling,
        *,
        manifest: Manifest | None = None,
        model_path: Path | None = None,
    ):
        self.report: Signed | None = None
        self.model_path = model_path
        self._machine = machine
        self._session_id = session_id
        self._telling = telling
        self._measured = Measured(None, (), manifest) if manifest is not None else None
        self._epoch = 0
        self._neighbourhood = self._meet()

    @property
    def manifest(self) -> Manifest | None:
        """The session's model on this machine, once it is found."""
        return self._measured.manifest if self._measured is not None else None

    def set_roster(self, charter: Charter) -> None:
        """Who is in the session; what some have told of themselves may have come before."""
        self._neighbourhood.set_roster(entry.fingerprint for entry in charter.roster)
        for member, progress in self._telling.progress.items():
            self.add_candidates(member, progress.candidates)

    def add_candidates(self, member: bytes, candidates: Iterable[Reachable]) -> None:
        """Where a member may be reached: perhaps it is on this LAN."""
        self._neighbourhood.add_candidates(member, candidates)

    def ask(self, epoch: int, charter: Charter) -> None:
        """The next report is of ``epoch``: everyone may be somewhere else by now."""
        self._epoch = epoch
        self._neighbourhood.close()
        self._neighbourhood = self._meet()
        self.set_roster(charter)

    async def probe(self, charter: Charter) -> str:
        """Make the report. Returns why this member cannot take part; empty if it can."""
        measured = self._measured = await measure_member(
            self._machine,
            charter.model,
            self._measured,
            path=self.model_path,
            needs_udp=charter.expected_members > 1,
            found=self._telling.found,
            find_site=self._neighbourhood.find_site,
        )
        if measured.manifest is not None:
            self.model_path = measured.manifest.path
        self.report = make_report(
            self._machine.identity,
            session_id=self._session_id,
            epoch=self._epoch,
            member_json=measured.member_json,
            candidates=measured.candidates,
            problem=measured.problem,
        )
        return measured.problem

    def close(self) -> None:
        """Answer no neighbour any more."""
        self._neighbourhood.close()

    def _meet(self) -> Neighbourhood:
        return Neighbourhood(self._machine.endpoint, self._session_id, self._machine.identity.fingerprint)
