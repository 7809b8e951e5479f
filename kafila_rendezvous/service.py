"""The gRPC shell: authenticates each agent's stream, feeds the registry, carries its commands out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import grpc
import structlog

from kafila_proto import PROTOCOL, VERSION
from kafila_proto.association import ID_BYTES, AssociationError
from kafila_proto.certificate import fingerprint
from kafila_proto.names import InvalidName, check_name, printable, session_label
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
from kafila_rendezvous.outbox import Outbox
from kafila_rendezvous.outcome import (
    Command,
    Forsaken,
    GrantCircuit,
    PlanFleet,
    ReleaseCircuits,
    RequestRefused,
    Send,
    SessionOver,
)
from kafila_rendezvous.planning import Planning
from kafila_rendezvous.registry import Registry

NONCE_BYTES = 32
HELLO_S = 10.0

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
        self._outboxes: dict[bytes, Outbox] = {}
        self._planning = Planning(self._planned, self._plan_failed)

    async def Attach(self, request_iterator: object, context: _Stream) -> None:  # noqa: N802
        """One agent, from its Hello to the end of its stream."""
        source = source_of(context.peer())
        try:
            with self._registry.presence.greeting(source):
                hello = await self._challenge(context)
            agent = fingerprint(hello.certificate)
            outbox, stream, welcome = self._attach(agent, hello, source)
        except RequestRefused as refusal:
            self._registry.totals.refusals[refusal.code] += 1
            log.info("refused", source=source, code=refusal.code, detail=refusal.detail)
            problem = Problem(code=refusal.code, detail=refusal.detail, request="hello")
            await context.write(ToAgent(problem=problem))
            return
        log.info("attached", member=hello.name, source=source, again=welcome.goes_on)
        try:
            await context.write(ToAgent(welcome=welcome))
            await self._converse(agent, outbox, stream, context)
        finally:
            log.info("detached", member=hello.name)
            if outbox.is_present(stream):
                self._carry_out(self._registry.detach(agent, self._clock()))

    def _attach(self, agent: bytes, hello: Hello, source: str) -> tuple[Outbox, int, Welcome]:
        now = self._clock()
        self._carry_out(self._registry.attach(agent, hello.name, source, hello.association, now))
        outbox = self._outboxes.setdefault(agent, Outbox())
        try:
            return outbox, *outbox.begin(hello.heard)
        except AssociationError as error:
            self._carry_out(self._registry.forsake(agent, now))
            raise RequestRefused("invalid", str(error)) from error

    def tick(self) -> None:
        """Let time act on the registry."""
        self._carry_out(self._registry.tick(self._clock()))

    async def close(self, reason: str) -> None:
        """End every session and every stream, once each agent has been told."""
        self._carry_out(self._registry.close_all(reason))
        for outbox in self._outboxes.values():
            outbox.finish()
        self._planning.close()

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

    async def _converse(self, agent: bytes, outbox: Outbox, stream: int, context: _Stream) -> None:
        """Read and write until either side ends, or another stream takes the place of this one."""
        halves = [
            asyncio.create_task(self._read(agent, outbox, stream, context)),
            asyncio.create_task(_write(outbox, stream, context)),
        ]
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            for half in done:
                half.result()
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _read(self, agent: bytes, outbox: Outbox, stream: int, context: _Stream) -> None:
        while isinstance(message := await context.read(), FromAgent) and outbox.is_present(stream):
            try:
                is_to_act_on = outbox.hear(message)
            except AssociationError as error:
                self._give_up(agent, outbox, str(error))
                return
            if is_to_act_on:
                self._carry_out(self._registry.receive(agent, message, self._clock()))

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(to, message):
                    self._log(to, message)
                    self._send(to, message)
                case PlanFleet(session_id):
                    self._planning.begin(command, self._registry.sessions[session_id].source)
                case GrantCircuit():
                    self._grant(command)
                case ReleaseCircuits(session_id):
                    self._circuits.release_session(session_id)
                    log.info("session held", session=session_label(session_id))
                case Forsaken(agent):
                    self._outboxes.pop(agent).drop()
                case SessionOver(session_id, reason):
                    self._circuits.release_session(session_id)
                    self._planning.forget(session_id)
                    log.info("session over", session=session_label(session_id), reason=reason)

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
            return
        try:
            outbox.put(message)
        except AssociationError as error:  # once what is being said to others is said
            asyncio.get_running_loop().call_soon(self._give_up, to, outbox, str(error))

    def _give_up(self, agent: bytes, outbox: Outbox, reason: str) -> None:
        if self._outboxes.get(agent) is outbox:
            log.warning("an agent does not read what it is sent", agent=agent.hex()[:8], reason=reason)
            self._carry_out(self._registry.forsake(agent, self._clock()))

    def _planned(self, work: PlanFleet, fleet_json: str, plan_json: str) -> None:
        self._carry_out(self._registry.planned(work.session_id, work.epoch, fleet_json, plan_json))

    def _plan_failed(self, work: PlanFleet, reason: str) -> None:
        self._carry_out(self._registry.plan_failed(work.session_id, work.epoch, reason))

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
            f"this rendezvous is Kafila {VERSION} (protocol {PROTOCOL}), the agent {printable(hello.version)} (protocol"
            f" {hello.protocol}): install the same version on both",
        )
    if len(hello.association) != ID_BYTES:
        raise RequestRefused("invalid", f"an association's id is {ID_BYTES} bytes")
    try:
        check_name(hello.name)
        verify_signature(hello.certificate, Label.HELLO, nonce + own_fingerprint, hello.signature)
    except (InvalidName, SignatureError) as error:
        raise RequestRefused("invalid", str(error)) from error


async def _write(outbox: Outbox, stream: int, context: _Stream) -> None:
    while (message := await outbox.next(stream)) is not None:
        await context.write(message)
