"""One session as this member lives it. ``lifecycle.py`` decides what comes next; this carries it out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kafila_agent.control.charter import StatementError, verify_charter, verify_plan
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.machine import Machine
from kafila_agent.session.kept import Kept, start_anew
from kafila_agent.session.lifecycle import Command, Event, Lifecycle, State
from kafila_agent.session.part import Part
from kafila_agent.session.reporting import Reporting
from kafila_agent.session.seat import Seat
from kafila_agent.session.telling import Telling
from kafila_agent.session.work import Blocks, WorkError
from kafila_planner.ring import Refusal, RingPlan, plan_from_json
from kafila_proto.names import session_label
from kafila_proto.rendezvous_pb2 import (
    Charter,
    CircuitGrant,
    FromAgent,
    Hold,
    Leave,
    MemberUpdate,
    Plan,
    Problem,
    Progress,
    Resume,
    Serve,
    Signed,
    ToAgent,
)

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest

log = structlog.get_logger()

_WORD_S = 2.0  # how long after a lost edge the rendezvous may take to say who left
_HOLD_S = 660.0  # a little longer than the rendezvous waits, so that it says who did not come back


class Membership:
    """Made when this agent is in; ``receive`` gets what the rendezvous delivers; over when ``state`` is LEFT."""

    def __init__(
        self,
        machine: Machine,
        *,
        session_id: bytes,
        host_fingerprint: bytes,
        manifest: Manifest | None = None,
        model_path: Path | None = None,
    ):
        self.lifecycle = Lifecycle()
        self.session_id = session_id
        self.charter, self.signed_charter = Charter(), Signed()
        self.plan_message = Plan()
        self.served_since = 0  # Unix seconds
        self.reason, self.refused = "", False
        self._machine = machine
        self._log = log.bind(session=session_label(session_id))
        self._host = host_fingerprint
        self._blocks = Blocks()
        self._part: Part | None = None
        self._telling = Telling(machine, lambda: (self.epoch, self.state, self.edges))
        self._reporting = Reporting(
            machine, session_id, self._telling, manifest=manifest, model_path=model_path
        )
        self._task: asyncio.Task[None] | None = None
        self._vacating: asyncio.Task[None] | None = None  # the seat of a plan that is over
        self._patience: asyncio.TimerHandle | None = None

    @classmethod
    def restored(cls, machine: Machine, kept: Kept) -> Membership:
        """As it was kept before a restart: held, until the rendezvous takes this member back."""
        charter = kept.charter
        membership = cls(
            machine,
            session_id=charter.session_id,
            host_fingerprint=charter.roster[0].fingerprint,
            model_path=kept.model,
        )
        membership.charter, membership.signed_charter = charter, kept.signed_charter
        membership.plan_message = Plan(epoch=kept.epoch)
        membership.lifecycle.state = State.HELD
        membership._wait("waiting for the rendezvous to take this machine back into its session")
        return membership

    @property
    def kept(self) -> Kept | None:
        """What a restart needs to come back; None before there is a plan, and when the session is over."""
        path = self._reporting.model_path
        if not self.epoch or self.state is State.LEFT or path is None:
            return None
        return Kept(self.signed_charter, self.epoch, path)

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
        """Whether there was no plan yet: the roster may change."""
        return not self.epoch and self.state < State.CONNECTING

    @property
    def awaits_plan(self) -> bool:
        """Whether the first plan, or another one, is to come."""
        return self.state < State.CONNECTING

    @property
    def plan(self) -> RingPlan | None:
        """The plan in force, or the last one."""
        return self._part.plan if self._part is not None else None

    @property
    def seat(self) -> Seat | None:
        """This member's place in the ring at work."""
        return self._part.seat if self._part is not None else None

    @property
    def edges(self) -> list[Edge]:
        """This member's edges that stand."""
        return self._part.edges if self._part is not None else []

    @property
    def progress(self) -> dict[bytes, Progress]:
        """How far each member is, by fingerprint."""
        return self._telling.progress

    @property
    def is_host(self) -> bool:
        """Whether this member opened the session."""
        return self._host == self._machine.identity.fingerprint

    @property
    def is_head(self) -> bool:
        """Whether the plan has made this member the head."""
        return self.plan is not None and self.plan.head == self._machine.identity.name

    async def reach_head(self) -> Edge:
        """The edge to the head of the plan, opened if there is none yet. Raises EdgeError saying why there is none."""
        if self._part is None:
            raise EdgeError("the session has no plan")
        return await self._part.reach(self._part.plan.head)

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
            "hold": self._take_hold,
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
        self.charter = verify_charter(signed, self._host, self.charter.revision, session_id=self.session_id)
        self.signed_charter = signed
        self._reporting.set_roster(self.charter)
        if self.state is State.JOINING:
            self._step(Event.CHARTERED)

    def _take_plan(self, signed: Signed) -> None:
        if self.state is not State.WAITING or self._reporting.report is None:
            raise StatementError(f"a plan cannot come while this member is {self.state.name}")
        message = verify_plan(signed, self.charter, self._reporting.report, self.epoch)
        plan = plan_from_json(json.loads(message.plan_json))
        self.plan_message = message
        if isinstance(plan, Refusal):
            self.refused = True
            self.end(plan.reason)
            return
        self._part = Part(self._machine, self.charter, plan, message)
        self._step(Event.PLANNED)

    def _take_circuit(self, grant: CircuitGrant) -> None:
        if self._part is not None:
            self._part.take_circuit(grant)

    def _take_update(self, update: MemberUpdate) -> None:
        roster = [entry.fingerprint for entry in self.charter.roster]
        if self._telling.hear(update, roster):
            self._reporting.add_candidates(update.member, update.progress.candidates)

    def _take_serve(self, serve: Serve) -> None:
        if serve.epoch == self.epoch and self.state is State.READY:
            self._step(Event.SERVE)

    def _take_hold(self, hold: Hold) -> None:
        if not self.epoch:
            raise StatementError("a session waits for nobody before its plan")
        names = [entry.name for entry in self.charter.roster if entry.fingerprint in hold.absent]
        if names:
            self.hold(f"waiting for {' and '.join(names)}")
        elif self.state is State.HELD:
            self._gather(hold.epoch)

    def _take_problem(self, problem: Problem) -> None:
        if problem.request == "circuit" and self._part is not None:
            self._part.refuse_circuits(problem.detail)
        elif problem.request in ("charter", "report", "plan"):
            self.leave(problem.detail)  # without these the session cannot go on
        elif problem.request == "resume":
            own = self._machine.identity.name
            self.end(f"{problem.detail}; {start_anew(self.charter, own, self._reporting.model_path)}")
        else:
            self._log.warning("refused", request=problem.request, reason=problem.detail)

    # What is to be done

    def _step(self, event: Event) -> None:
        command = self.lifecycle.handle(event)
        self._log.info("member", state=self.state.name.lower(), epoch=self.epoch)
        self._telling.tell()
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
        structlog.contextvars.bind_contextvars(session=session_label(self.session_id))
        if self._vacating is not None:
            await asyncio.wait({self._vacating})
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
        problem = await self._reporting.probe(self.charter)
        if not problem:
            return Event.PROBED
        await self._send_report()
        self.refused = True
        self.end(problem)
        return None

    async def _send_report(self) -> None:
        self._machine.post(FromAgent(report=self._reporting.report))

    async def _connect(self) -> Event:
        assert self._part is not None
        await self._part.connect(self._edge_lost)
        self._telling.keep_on()
        return Event.CONNECTED

    def _edge_lost(self, peer: str, reason: str) -> None:
        """Whoever waits for a token hears at once; what comes of the session the rendezvous says, which knows more."""
        text = f"lost its edge to {peer}: {reason}"
        if self._part is not None:
            self._part.miss(peer, f"{self._machine.identity.name} {text}")
        asyncio.get_running_loop().call_later(_WORD_S, self._replan, self.epoch, text)

    def _replan(self, epoch: int, reason: str) -> None:
        """Everybody seems to be there, and yet an edge of plan ``epoch`` is gone: go and come back, for a new plan."""
        if epoch == self.epoch and self.lifecycle.is_at_work:
            self._machine.post(FromAgent(leave=Leave(reason=reason, returns=True)))
            self.hold(reason)
            self.resume()

    async def _load(self) -> Event:
        assert self._part is not None
        await self._part.load(self._blocks, self._reporting.manifest, self._telling.loading)
        return Event.LOADED

    async def _serve(self) -> None:
        assert self._part is not None
        self.served_since = int(time.time())
        self._part.serve()

    # Waiting for a member that is away

    def hold(self, reason: str) -> None:
        """Wait, for ``reason``: requests under way fail with it, edges are closed, the blocks are kept."""
        self._wait(reason)
        if self.state is not State.HELD:
            self._stop()
            self.lifecycle.handle(Event.HOLD)
            self._log.info("member", state="held", epoch=self.epoch, reason=reason)
            self._telling.forget()
            if self._part is not None:
                self._vacating = asyncio.create_task(self._part.vacate(reason))
        self._telling.tell()

    def resume(self) -> None:
        """Say to the rendezvous that this member is back."""
        self._machine.post(FromAgent(resume=Resume(session_id=self.session_id)))

    def _gather(self, epoch: int) -> None:
        """Everyone is here: report anew."""
        self._be_patient_no_more()
        self.reason = ""
        self._reporting.ask(epoch, self.charter)
        self._step(Event.ALL_BACK)

    def _wait(self, reason: str) -> None:
        self.reason = reason
        self._be_patient_no_more()
        late = f"{reason}, in vain for {_HOLD_S / 60:.0f} minutes"
        self._patience = asyncio.get_running_loop().call_later(_HOLD_S, self.leave, late)

    def _be_patient_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # The end

    def leave(self, reason: str = "") -> None:
        """Leave of our own accord, or because of ``reason``; the others are told."""
        if self.state is not State.LEFT:
            self._machine.post(FromAgent(leave=Leave(reason=reason)))
            self.end(reason or "left the session")

    def go_away(self, reason: str) -> None:
        """End, for ``reason``, with this program: from the plan on the others wait for its next start."""
        if not self.epoch or self.state is State.LEFT:
            self.leave(reason)
            return
        self._machine.post(FromAgent(leave=Leave(reason=reason, returns=True)))
        self.end(reason)

    def end(self, reason: str) -> None:
        """The session is over for us. What it held is let go, in the background."""
        if self.state is State.LEFT:
            return
        self.reason = reason
        self._stop()
        self._be_patient_no_more()
        self.lifecycle.handle(Event.END)
        self._log.info("member", state="left", reason=self.reason)
        self._telling.tell()
        self._reporting.close()
        self._task = asyncio.create_task(self._let_go())

    def _stop(self) -> None:
        """What the state that is left had begun, and the edges."""
        self._telling.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._part is not None:
            self._part.disconnect()
        self._machine.endpoint.leave(self.reason)

    async def _let_go(self) -> None:
        if self._vacating is not None:
            await asyncio.wait({self._vacating})
        if self._part is not None:
            await self._part.vacate(self.reason)
        await self._blocks.let_go()

    async def closed(self) -> None:
        """Wait until what the session held is let go."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
