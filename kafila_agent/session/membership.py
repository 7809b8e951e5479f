"""One session as this member lives it. ``lifecycle.py`` decides what comes next; this carries it out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from kafila_agent.control.charter import StatementError, make_report, verify_charter, verify_plan
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.machine import Machine
from kafila_agent.nat.neighbourhood import Neighbourhood
from kafila_agent.session.edges import SessionEdges
from kafila_agent.session.lifecycle import Command, Event, Lifecycle, State
from kafila_agent.session.measuring import measure_member
from kafila_agent.session.seat import Seat
from kafila_agent.session.work import Work, WorkError, load_work
from kafila_planner.facts import MAX_MEMBERS
from kafila_planner.ring import Refusal, RingPlan, plan_from_json
from kafila_proto.names import session_label
from kafila_proto.rendezvous_pb2 import (
    Candidate,
    Charter,
    CircuitGrant,
    EdgeState,
    FromAgent,
    Leave,
    MemberState,
    MemberUpdate,
    Plan,
    Problem,
    Progress,
    Serve,
    Signed,
    ToAgent,
)

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest

log = structlog.get_logger()

_PROGRESS_S = 0.2  # how often the others hear how much is loaded
_WORD_S = 2.0  # how long after a lost edge the rendezvous may take to say who left
_EDGE_REPORT_S = 5.0  # how often they hear the edges' round trips


class Membership:
    """Made when this agent is in; ``receive`` gets what the rendezvous delivers; over when ``state`` is LEFT."""

    def __init__(
        self,
        machine: Machine,
        *,
        session_id: bytes,
        host_fingerprint: bytes,
        manifest: Manifest | None = None,
    ):
        self.lifecycle = Lifecycle()
        self.charter = Charter()
        self.plan: RingPlan | None = None
        self.plan_message = Plan()
        self.progress: dict[bytes, Progress] = {}
        self.seat: Seat | None = None
        self.served_since = 0  # Unix seconds
        self.reason = ""
        self.refused = False
        self._machine = machine
        self._session_id = session_id
        self._log = log.bind(session=session_label(session_id))
        self._host = host_fingerprint
        self._manifest = manifest
        self._report: Signed | None = None
        self._work: Work | None = None
        self._edges: SessionEdges | None = None
        self._neighbourhood = Neighbourhood(machine.endpoint, session_id, machine.identity.fingerprint)
        self._candidates: tuple[Candidate, ...] = ()
        self._loaded = (0, 0)
        self._last_told_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """Where this member is."""
        return self.lifecycle.state

    @property
    def epoch(self) -> int:
        """Number of the plan in force; 0 before the first."""
        return self.plan_message.epoch

    @property
    def is_forming(self) -> bool:
        """Whether there is no plan yet."""
        return self.state < State.CONNECTING

    @property
    def edges(self) -> list[Edge]:
        """This member's edges that stand."""
        return [] if self._edges is None else [e for e in self._edges.ring.values() if not e.closed]

    @property
    def is_head(self) -> bool:
        """Whether the plan has made this member the head."""
        return self.plan is not None and self.plan.head == self._machine.identity.name

    async def reach_head(self) -> Edge:
        """The edge to the head of the plan, opened if there is none yet. Raises EdgeError saying why there is none."""
        if self._edges is None or self.plan is None:
            raise EdgeError("the session is over")
        return await self._edges.to(self.plan.head)

    # What the rendezvous delivers

    def receive(self, message: ToAgent) -> None:
        """Take one message. What does not verify is dropped with a warning: the rendezvous is not trusted."""
        kind = message.WhichOneof("message")
        handlers: dict[str | None, Callable[[Any], None]] = {
            "charter": self._take_charter,
            "plan": self._take_plan,
            "circuit": self._take_circuit,
            "member": self._take_update,
            "serve": self._take_serve,
            "closed": lambda closed: self.end(closed.reason),
            "problem": self._take_problem,
        }
        handler = handlers.get(kind)
        if handler is None or self.state is State.LEFT:
            return
        try:
            handler(getattr(message, str(kind)))
        except StatementError as error:
            self._log.warning("statement refused", kind=kind, reason=str(error))
        self._machine.changed()

    def _take_charter(self, signed: Signed) -> None:
        if not self.is_forming:
            raise StatementError("a charter after the plan: the roster is settled by then")
        self.charter = verify_charter(signed, self._host, self.charter.revision, session_id=self._session_id)
        self._neighbourhood.set_roster(entry.fingerprint for entry in self.charter.roster)
        for member, progress in self.progress.items():  # some may have come before the charter
            self._neighbourhood.add_candidates(member, progress.candidates)
        if self.state is State.JOINING:
            self._step(Event.CHARTERED)

    def _take_plan(self, signed: Signed) -> None:
        if self.state is not State.WAITING or self._report is None:
            raise StatementError(f"a plan cannot come while this member is {self.state.name}")
        message = verify_plan(signed, self.charter, self._report, self.epoch)
        plan = plan_from_json(json.loads(message.plan_json))
        self.plan_message = message
        if isinstance(plan, Refusal):
            self.refused = True
            self.end(plan.reason)
            return
        self.plan = plan
        self._edges = SessionEdges(self._machine, self._session_id, self.charter, plan, message)
        self._step(Event.PLANNED)

    def _take_circuit(self, grant: CircuitGrant) -> None:
        if grant.epoch == self.epoch and self._edges is not None:
            self._edges.take_circuit(grant)

    def _take_update(self, update: MemberUpdate) -> None:
        roster = [entry.fingerprint for entry in self.charter.roster]
        if update.member not in roster and (roster or len(self.progress) >= MAX_MEMBERS):
            return  # what is said before the first charter is kept: of so many at most
        self.progress[update.member] = update.progress
        self._neighbourhood.add_candidates(update.member, update.progress.candidates)

    def _take_serve(self, serve: Serve) -> None:
        if serve.epoch == self.epoch and self.state is State.READY:
            self._step(Event.SERVE)

    def _take_problem(self, problem: Problem) -> None:
        if problem.request == "circuit" and self._edges is not None:
            self._edges.refuse_circuits(problem.detail)
        elif problem.request in ("charter", "report", "plan"):
            self.leave(problem.detail)  # without these the session cannot go on
        else:
            self._log.warning("refused", request=problem.request, reason=problem.detail)

    # What is to be done

    def _step(self, event: Event) -> None:
        command = self.lifecycle.handle(event)
        self._log.info("member", state=self.state.name.lower(), epoch=self.epoch)
        self.tell()
        if command is not None:
            self._task = asyncio.create_task(self._carry_out(command))

    async def _carry_out(self, command: Command) -> None:
        action = {
            Command.PROBE: self._probe,
            Command.SEND_REPORT: self._send_report,
            Command.CONNECT: self._connect,
            Command.LOAD: self._load,
            Command.SERVE: self._serve,
        }[command]
        try:
            following = await action()
        except (WorkError, EdgeError) as error:
            self.leave(str(error))
            return
        except Exception as error:  # a fault of ours ends our session with its name, not the agent
            self._log.exception("session failed")
            self.leave(f"{type(error).__name__}: {error}")
            return
        if following is not None:
            self._step(following)

    async def _probe(self) -> Event | None:
        reference = self.charter.model
        measured = await measure_member(
            self._machine,
            reference,
            self._manifest,
            needs_udp=self.charter.expected_members > 1,
            found=self._found,
            find_site=self._neighbourhood.find_site,
        )
        self._manifest = measured.manifest
        self._report = make_report(
            self._machine.identity,
            session_id=self._session_id,
            member_json=measured.member_json,
            candidates=measured.candidates,
            problem=measured.problem,
        )
        if measured.problem:
            self._machine.post(FromAgent(report=self._report))
            self.refused = True
            self.end(measured.problem)
            return None
        return Event.PROBED

    def _found(self, candidates: tuple[Candidate, ...]) -> None:
        """Where we are reached: whoever joins after us and is on our LAN finds out before it reports."""
        self._candidates = candidates
        self.tell()

    async def _send_report(self) -> None:
        self._machine.post(FromAgent(report=self._report))

    async def _connect(self) -> Event:
        assert self._edges is not None
        await self._edges.connect_ring(self._edge_lost)
        self._telling = asyncio.create_task(self._keep_telling())
        return Event.CONNECTED

    def _edge_lost(self, peer: str, reason: str) -> None:
        """Whoever waits for a token hears at once; the session ends with the rendezvous's word, which knows more."""
        text = f"lost its edge to {peer}: {reason}"
        if self.seat is not None and self.seat.engine is not None:
            self.seat.engine.fail(f"{self._machine.identity.name} {text}")
        asyncio.get_running_loop().call_later(_WORD_S, self.leave, text)

    async def _load(self) -> Event:
        assert self.plan is not None
        if self._machine.identity.name in self.plan.ring:
            assert self._manifest is not None
            self._work = await load_work(
                self._machine.config,
                self.plan,
                self.charter,
                self._manifest,
                self._machine.identity.name,
                self._loading,
            )
        return Event.LOADED

    def _loading(self, loaded_bytes: int, total_bytes: int) -> None:
        self._loaded = (loaded_bytes, total_bytes)
        now = asyncio.get_running_loop().time()
        if loaded_bytes == total_bytes or now - self._last_told_s >= _PROGRESS_S:
            self._last_told_s = now
            self.tell()

    async def _serve(self) -> None:
        self.served_since = int(time.time())
        if self._work is None:
            return  # no seat in this plan: there is nothing to do but to be a member
        assert self.plan is not None
        assert self._edges is not None
        self.seat = Seat(
            self.plan,
            self._machine.identity.name,
            self._edges.ring,
            self._work.executor,
            epoch=self.epoch,
            concurrency=self.charter.concurrency,
            context_tokens=self.charter.context_tokens,
            head=self._work.head,
            observer=self._machine.metrics,
        )

    # What the others hear

    def tell(self) -> None:
        """How far this member is, to the rendezvous and so to the others."""
        edges = [EdgeState(peer=e.fingerprint, path=e.path, rtt_s=e.rtt_s or 0.0) for e in self.edges]
        progress = Progress(
            epoch=self.epoch,
            state=MemberState.Name(self.state),
            loaded_bytes=self._loaded[0],
            total_bytes=self._loaded[1],
            edges=edges,
            candidates=self._candidates,
        )
        self.progress[self._machine.identity.fingerprint] = progress
        if self.state is not State.LEFT:
            self._machine.post(FromAgent(progress=progress))
        self._machine.changed()

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(_EDGE_REPORT_S)
            self.tell()

    # The end

    def leave(self, reason: str = "") -> None:
        """Leave of our own accord, or because of ``reason``; the others are told."""
        if self.state is not State.LEFT:
            self._machine.post(FromAgent(leave=Leave(reason=reason)))
            self.end(reason or "left the session")

    def end(self, reason: str) -> None:
        """The session is over for us. What it held is let go, in the background."""
        if self.state is State.LEFT:
            return
        self.reason = reason
        for task in (self._task, self._telling):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._step_to_left()

    def _step_to_left(self) -> None:
        self.lifecycle.handle(Event.END)
        self._log.info("member", state="left", reason=self.reason)
        self.tell()
        self._neighbourhood.close()
        if self._edges is not None:
            self._edges.close()
            self._edges = None
        self._machine.endpoint.leave(self.reason)
        self._task = asyncio.create_task(self._let_go())

    async def _let_go(self) -> None:
        seat, self._work = self.seat, None
        if seat is not None:
            await seat.close(self.reason)
            self.seat = None

    async def closed(self) -> None:
        """Wait until what the session held is let go."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
