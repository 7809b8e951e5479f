"""The gRPC shell: authenticates each agent's stream, feeds the registry, carries its commands out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import grpc
import structlog

from kafila_proto import PROTOCOL, VERSION
from kafila_proto.certificate import fingerprint
from kafila_proto.fleet import plan_fleet
from kafila_proto.names import InvalidName, check_name
from kafila_proto.rendezvous_pb2 import (
    Challenge,
    CircuitGrant,
    FromAgent,
    Hello,
    Problem,
    ToAgent,
    Welcome,
)
from kafila_proto.rendezvous_pb2_grpc import RendezvousServicer
from kafila_proto.signed import Label, SignatureError, verify_signature
from kafila_rendezvous.circuits import CircuitError, Circuits
from kafila_rendezvous.limits import source_of
from kafila_rendezvous.outcome import Command, GrantCircuit, PlanFleet, RequestRefused, Send, SessionOver
from kafila_rendezvous.registry import Registry

NONCE_BYTES = 32
HELLO_S = 10.0
OUTBOX_MESSAGES = 4096  # an agent that lets more pile up is not reading

log = structlog.get_logger()

_Stream = grpc.aio.ServicerContext[FromAgent, ToAgent]


class RendezvousService(RendezvousServicer):
    """One rendezvous. ``own_fingerprint`` is that of its TLS certificate, ``clock`` monotonic seconds."""

    def __init__(
        self,
        registry: Registry,
        circuits: Circuits,
        own_fingerprint: bytes,
        udp_port: int,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._circuits = circuits
        self._own_fingerprint = own_fingerprint
        self._udp_port = udp_port
        self._clock = clock
        self._outboxes: dict[bytes, asyncio.Queue[ToAgent | None]] = {}
        self._planning: set[asyncio.Task[None]] = set()

    async def Attach(self, request_iterator: object, context: _Stream) -> None:  # noqa: N802
        """One agent, from its Hello to the end of its stream."""
        source = source_of(context.peer())
        try:
            hello = await self._challenge(context)
            agent = fingerprint(hello.certificate)
            self._registry.attach(agent, hello.name, source)
        except RequestRefused as refusal:
            self._registry.totals.refusals[refusal.code] += 1
            log.info("refused", source=source, code=refusal.code, detail=refusal.detail)
            problem = Problem(code=refusal.code, detail=refusal.detail, request="hello")
            await context.write(ToAgent(problem=problem))
            return
        log.info("attached", member=hello.name, source=source)
        outbox = self._outboxes[agent] = asyncio.Queue(OUTBOX_MESSAGES)
        outbox.put_nowait(ToAgent(welcome=Welcome()))
        try:
            await self._converse(agent, outbox, context)
        finally:
            del self._outboxes[agent]
            log.info("detached", member=hello.name)
            self._carry_out(self._registry.detach(agent, self._clock()))

    def tick(self) -> None:
        """Let time act on the registry."""
        self._carry_out(self._registry.tick(self._clock()))

    async def close(self, reason: str) -> None:
        """End every session and every stream, once each agent has been told."""
        self._carry_out(self._registry.close_all(reason))
        for outbox in self._outboxes.values():
            outbox.put_nowait(None)
        for task in self._planning:
            task.cancel()

    async def _challenge(self, context: _Stream) -> Hello:
        nonce = secrets.token_bytes(NONCE_BYTES)
        challenge = Challenge(protocol=PROTOCOL, version=VERSION, nonce=nonce, udp_port=self._udp_port)
        await context.write(ToAgent(challenge=challenge))
        try:
            answer = await asyncio.wait_for(context.read(), HELLO_S)
        except TimeoutError:
            raise RequestRefused("invalid", f"no Hello within {HELLO_S:.0f} seconds") from None
        if not isinstance(answer, FromAgent) or answer.WhichOneof("message") != "hello":
            raise RequestRefused("invalid", "the first message must be Hello")
        check_hello(answer.hello, nonce, self._own_fingerprint)
        return answer.hello

    async def _converse(self, agent: bytes, outbox: asyncio.Queue[ToAgent | None], context: _Stream) -> None:
        """Read and write until either side ends."""
        halves = [
            asyncio.create_task(self._read(agent, context)),
            asyncio.create_task(_write(outbox, context)),
        ]
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            for half in done:
                half.result()
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _read(self, agent: bytes, context: _Stream) -> None:
        while isinstance(message := await context.read(), FromAgent):
            self._carry_out(self._registry.receive(agent, message, self._clock()))

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(to, message):
                    self._log(to, message)
                    self._send(to, message)
                case PlanFleet():
                    task = asyncio.create_task(self._plan(command))
                    self._planning.add(task)
                    task.add_done_callback(self._planning.discard)
                case GrantCircuit():
                    self._grant(command)
                case SessionOver(session_id, reason):
                    self._circuits.release_session(session_id)
                    log.info("session over", session=session_id.hex()[:8], reason=reason)

    def _log(self, to: bytes, message: ToAgent) -> None:
        """What an operator may want to know; never a number, the public half of a code."""
        peer = self._registry.attached.get(to)
        name = peer.name if peer else None
        if message.WhichOneof("message") == "created":
            log.info("session admits", host=name)
        elif message.WhichOneof("message") == "problem":
            log.info("refused", member=name, code=message.problem.code, request=message.problem.request)

    def _send(self, to: bytes, message: ToAgent) -> None:
        outbox = self._outboxes.get(to)
        if outbox is None:
            return  # its stream ended; the registry hears of it as soon as its handler is done
        if outbox.qsize() >= OUTBOX_MESSAGES - 1:  # the last place is for the end
            log.warning("an agent does not read what it is sent", agent=to.hex()[:8])
            while not outbox.empty():
                outbox.get_nowait()
            outbox.put_nowait(None)
            return
        outbox.put_nowait(message)

    async def _plan(self, work: PlanFleet) -> None:
        """Plan in a thread: a second's arithmetic must not hold up every relayed frame."""
        try:
            fleet_json, plan_json = await asyncio.to_thread(plan_fleet, work.charter, work.reports)
        except ValueError as error:
            self._carry_out(self._registry.plan_failed(work.session_id, work.epoch, str(error)))
        except Exception:  # a session must not wait for ever for a planner that broke
            log.exception("the planner failed", session=work.session_id.hex()[:8])
            self._carry_out(
                self._registry.plan_failed(work.session_id, work.epoch, "the planner failed: see its log")
            )
        else:
            self._carry_out(self._registry.planned(work.session_id, work.epoch, fleet_json, plan_json))

    def _grant(self, wanted: GrantCircuit) -> None:
        """Both ends learn the circuit, so that whoever has not asked yet need not."""
        try:
            for member, peer in ((wanted.member, wanted.peer), (wanted.peer, wanted.member)):
                grant = self._circuits.grant(wanted.session_id, wanted.epoch, member, peer, self._clock())
                message = CircuitGrant(
                    epoch=wanted.epoch, peer=peer, circuit_id=grant.circuit_id, key=grant.key
                )
                self._send(member, ToAgent(circuit=message))
        except CircuitError as error:
            problem = Problem(code="limit", detail=str(error), request="circuit")
            self._send(wanted.member, ToAgent(problem=problem))


def check_hello(hello: Hello, nonce: bytes, own_fingerprint: bytes) -> None:
    """Raise RequestRefused unless ``hello`` answers this rendezvous's ``nonce``, in its protocol."""
    if hello.protocol != PROTOCOL:
        raise RequestRefused(
            "version",
            f"this rendezvous is Kafila {VERSION} (protocol {PROTOCOL}), the agent {hello.version} (protocol"
            f" {hello.protocol}): install the same version on both",
        )
    try:
        check_name(hello.name)
        verify_signature(hello.certificate, Label.HELLO, nonce + own_fingerprint, hello.signature)
    except (InvalidName, SignatureError) as error:
        raise RequestRefused("invalid", str(error)) from error


async def _write(outbox: asyncio.Queue[ToAgent | None], context: _Stream) -> None:
    while (message := await outbox.get()) is not None:
        await context.write(message)
