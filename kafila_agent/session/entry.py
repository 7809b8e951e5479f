"""The way into a session, by creating or joining one, and the one session this agent is in."""

from __future__ import annotations

import asyncio
import json
import os
import time

import structlog

from kafila_agent.control.charter import StatementError
from kafila_agent.control.introduction import (
    CALL_S,
    IllegalEvent,
    Joined,
    JoinerIntroduction,
    Party,
    Refused,
    Send,
    Tick,
)
from kafila_agent.control.link import Attachment
from kafila_agent.control.local import AgentError, Fault
from kafila_agent.machine import Machine
from kafila_agent.nat.words import describe_network
from kafila_agent.session.hosting import Hosting, SessionTerms
from kafila_agent.session.kept import FILE, Kept, keep, recall
from kafila_agent.session.lifecycle import State
from kafila_agent.session.measuring import measure_machine, measure_network
from kafila_agent.session.membership import Membership
from kafila_agent.session.proposal import DEFAULT_OBJECTIVE, describe_proposal, find_manifest, read_precision
from kafila_planner.facts import member_to_json
from kafila_proto import agent_pb2 as pb
from kafila_proto.pake import SESSION_ID_BYTES
from kafila_proto.rendezvous_pb2 import FromAgent, Leave, MemberState, ToAgent
from kafila_proto.session_code import SessionCodeError, parse_session_code

log = structlog.get_logger()

_ENTRY_REQUESTS = ("create", "join", "introduction")  # what is sent to come into a session
_ANSWER_S = 10.0  # how long the rendezvous may take to give a number


class Entry:
    """``membership`` is the session this agent is in or was in last; ``hosting`` is there if it is the host."""

    def __init__(self, machine: Machine):
        self.hosting: Hosting | None = None
        self._machine = machine
        self._kept: Kept | None = recall(machine.config.state_dir, machine.identity)
        self.membership = Membership.restored(machine, self._kept) if self._kept is not None else None
        self._introduction: JoinerIntroduction | None = None
        self._answer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._busy = asyncio.Lock()

    # Asked by kafila-ctl

    async def create(self, request: pb.CreateRequest) -> None:
        """Open a session with this agent as its host. Raises AgentError."""
        async with self._free():
            attachment = self._attachment()
            manifest, reference, draft = await asyncio.to_thread(
                describe_proposal, request, self._machine.config
            )
            terms = SessionTerms(
                reference,
                request.members,
                request.context_tokens,
                request.concurrency,
                request.objective or DEFAULT_OBJECTIVE,
                request.division,
                draft,
            )
            session_id = os.urandom(SESSION_ID_BYTES)
            self._forget()
            hosting = Hosting(self._machine, session_id, terms, attachment.rendezvous_fingerprint)
            self.hosting = hosting
            self.membership = Membership(
                self._machine,
                session_id=session_id,
                host_fingerprint=self._machine.identity.fingerprint,
                manifest=manifest,
            )
            self._answer = asyncio.get_running_loop().create_future()
            hosting.open()
            await self._await_answer(
                _ANSWER_S, "the rendezvous gave the session no number in time: try again"
            )

    async def join(self, code: str) -> None:
        """Be admitted to the session of ``code``. Raises AgentError."""
        async with self._free():
            attachment = self._attachment()
            try:
                parsed = parse_session_code(code)
            except SessionCodeError as error:
                raise AgentError(Fault.INVALID, str(error)) from error
            if self._introduction is None:
                identity = self._machine.identity
                self._introduction = JoinerIntroduction(
                    Party(identity.name, identity.certificate_der, attachment.rendezvous_fingerprint)
                )
            self._introduction.reset()
            self._forget()
            self._answer = asyncio.get_running_loop().create_future()
            self._obey(self._introduction.join(parsed, time.monotonic()))
            await self._await_answer(CALL_S + 1, "the host did not answer: try again in a moment")

    async def renew_code(self) -> None:
        """Give the session that this machine hosts a new code. Raises AgentError."""
        async with self._busy:
            hosting, membership = self.hosting, self.membership
            if hosting is None or membership is None or membership.state is State.LEFT:
                raise AgentError(Fault.NOT_FOUND, "this machine hosts no session: its host makes the code")
            if hosting.is_full or not membership.is_forming:
                raise AgentError(Fault.REFUSED, "everyone is in already: there is nobody to admit")
            self._answer = asyncio.get_running_loop().create_future()
            hosting.renew()
            try:
                await asyncio.wait_for(self._answer, _ANSWER_S)
            except TimeoutError:
                raise AgentError(
                    Fault.UNREACHABLE, "the rendezvous gave the code no number in time: try again"
                ) from None

    async def leave(self) -> None:
        """Leave the session. Raises AgentError if there is none."""
        if self.membership is None or self.membership.state is State.LEFT:
            raise AgentError(Fault.NOT_FOUND, "this machine is in no session")
        self.membership.leave()
        self._keep()
        await self._closed()

    async def probe(self, request: pb.ProbeRequest) -> pb.ProbeReply:
        """Measure this machine. Raises AgentError."""
        config = self._machine.config
        dtype = read_precision(request.dtype, request.quant)
        manifest = await asyncio.to_thread(find_manifest, request.model, config) if request.model else None
        reach = await measure_network(self._machine)
        facts = await measure_machine(self._machine, manifest, dtype, reach)
        notices = describe_network(reach, self._machine.link.attachment)
        return pb.ProbeReply(member_json=json.dumps(member_to_json(facts)), notices=notices)

    async def close(self) -> None:
        """Stop, to come back with the next start if the session has a plan."""
        self._is_closing = True
        if self.membership is not None:
            self.membership.go_away("its agent was stopped")
        await self._closed()

    def _keep(self) -> None:
        kept = self.membership.kept if self.membership is not None else None
        if kept == self._kept or self._is_closing:
            return
        self._kept = kept
        try:
            keep(self._machine.config.state_dir, kept)
        except OSError as error:  # it goes on without, and a restart does not bring it back
            log.warning("the session is not kept for a restart", file=FILE, reason=str(error))

    async def _closed(self) -> None:
        if self.hosting is not None:
            self.hosting.close()
        if self.membership is not None:
            await self.membership.closed()
            await self._machine.link.flush()

    # Said by the rendezvous

    def receive(self, message: ToAgent) -> None:
        """Whatever comes down the stream, in order."""
        kind = message.WhichOneof("message")
        if kind == "member" and message.member.progress.state == MemberState.LEFT:
            self._departed(message.member.member)
        if kind == "created" and self.hosting is not None:
            self._opened(message.created.number)
        elif kind == "introduction" and self.hosting is not None:
            if self._is_forming:
                self.hosting.introduce(message.introduction)
        elif kind == "introduction":
            self._introduce(message.introduction)
        elif kind == "reports" and self.hosting is not None:
            self._countersign(message)
        elif kind == "problem" and self._waiting() and message.problem.request in _ENTRY_REQUESTS:
            self._refused(message)
        elif kind == "problem" and self._waiting() and not self._has_charter:
            log.info("refused late", request=message.problem.request)  # said for the session before
        elif kind == "problem" and message.problem.request == "create" and self.hosting is not None:
            self.hosting.expire(message.problem.detail)
        elif self.membership is not None:
            self.membership.receive(message)
        self._keep()

    def resume(self) -> None:
        """The rendezvous knows nothing of this agent, or nothing any more: be back in the session, if there is one."""
        membership, attachment = self.membership, self._machine.link.attachment
        if membership is not None and membership.lifecycle.is_at_work:
            membership.hold("the rendezvous has lost this machine, which reports anew")
        if membership is None or membership.state is not State.HELD or attachment is None:
            return
        if self.hosting is None and membership.is_host:
            self.hosting = Hosting.restored(
                self._machine, membership.charter, membership.epoch, attachment.rendezvous_fingerprint
            )
        membership.resume()

    def lost(self, reason: str) -> None:
        """The stream to the rendezvous broke. A session at work goes on; from another this member is gone, or away.

        The rendezvous may not have noticed: then the next stream goes on, and begins with the word of it.
        """
        membership = self.membership
        if membership is not None and membership.lifecycle.is_at_work:
            return
        returns = membership is not None and membership.kept is not None
        if self._waiting() or (membership is not None and membership.state is not State.LEFT):
            leave = Leave(reason="lost its connection to the rendezvous", returns=returns)
            self._machine.post(FromAgent(leave=leave))
        if self._introduction is not None:
            self._introduction.reset()
        self._answered(AgentError(Fault.UNREACHABLE, reason))
        if self.hosting is not None:
            self.hosting.close()
        if membership is not None and returns:
            membership.hold(f"waiting for the rendezvous: {reason}")
            membership.resume()
        elif membership is not None:
            membership.end(f"lost the rendezvous: {reason}")
        self._keep()

    def _forget(self) -> None:
        """The session that this agent was in last, with what its host had still in mind."""
        if self.hosting is not None:
            self.hosting.close()
        self.hosting = self.membership = None

    @property
    def _is_forming(self) -> bool:
        """Once there is a plan nobody comes into the session or drops out of it."""
        return self.membership is not None and self.membership.is_forming

    def _opened(self, number: str) -> None:
        assert self.hosting is not None
        try:
            self.hosting.opened(number)
        except SessionCodeError as error:
            assert self.membership is not None
            self.membership.leave(f"the rendezvous gave the session no number: {error}")
            self._answered(AgentError(Fault.REFUSED, self.membership.reason))
        else:
            self._answered()

    @property
    def _has_charter(self) -> bool:
        return self.membership is not None and self.membership.charter.revision > 0

    def _departed(self, member: bytes) -> None:
        if self.hosting is not None and self._is_forming:
            self.hosting.depart(member)

    def _countersign(self, message: ToAgent) -> None:
        assert self.hosting is not None
        assert self.membership is not None
        if not self.membership.awaits_plan:
            log.warning("reports after the plan", epoch=message.reports.epoch)
            return
        try:
            self.hosting.countersign(message.reports)
        except StatementError as error:
            self.membership.leave(f"does not believe the rendezvous's plan: {error}")

    def _refused(self, message: ToAgent) -> None:
        problem = message.problem
        if problem.request == "join" and self._introduction is not None:
            self._obey(self._introduction.refuse(problem.code, problem.detail))
        else:
            if self.membership is not None and not self._has_charter:
                self._forget()  # it never came to be
            self._answered(AgentError(Fault.REFUSED, problem.detail))

    def _introduce(self, event) -> None:
        if self._introduction is None:
            return
        try:
            self._obey(self._introduction.handle(event, time.monotonic()))
        except IllegalEvent as error:
            log.warning("introduction out of turn", reason=str(error))

    def _obey(self, commands: list) -> None:
        for command in commands:
            match command:
                case Send(message):
                    self._machine.post(message)
                case Joined(session_id, _, host_fingerprint):
                    self.membership = Membership(
                        self._machine, session_id=session_id, host_fingerprint=host_fingerprint
                    )
                    self._answered()
                case Refused(reason):
                    self._answered(AgentError(Fault.NOT_FOUND, reason))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._introduction is not None and self._introduction.deadline is not None:
            delay_s = max(0.0, self._introduction.deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._introduce, Tick())

    # Waiting for an answer

    def _free(self) -> asyncio.Lock:
        if self._busy.locked() or (self.membership and self.membership.state is not State.LEFT):
            raise AgentError(
                Fault.REFUSED, "this machine is in a session already: `kafila-ctl session leave` first"
            )
        return self._busy

    def _waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _answered(self, error: AgentError | None = None) -> None:
        if self._answer is not None and not self._answer.done():
            if error is None:
                self._answer.set_result(None)
            else:
                self._answer.set_exception(error)

    async def _await_answer(self, timeout_s: float, late: str) -> None:
        """Until the rendezvous or the host answers. An answer that does not come leaves nothing half-open."""
        assert self._answer is not None
        try:
            await asyncio.wait_for(self._answer, timeout_s)
        except TimeoutError:
            self._machine.post(FromAgent(leave=Leave()))
            self._forget()
            raise AgentError(Fault.UNREACHABLE, late) from None

    def _attachment(self) -> Attachment:
        link = self._machine.link
        if link.attachment is None or link.state != "attached":
            raise AgentError(
                Fault.UNREACHABLE, link.problem or f"not attached to the rendezvous at {link.address} yet"
            )
        return link.attachment
