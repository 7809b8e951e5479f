"""The agent's one long-lived, outbound stream to the rendezvous.

    DETACHED --attach--> ATTACHED --lost--> WAITING --attach again, later and later--> ATTACHED
    any of them --close--> CLOSED

The stream is TLS to a pinned certificate (pin.py), whatever names and authorities say; the agent proves
itself by signing the rendezvous's nonce together with that certificate's fingerprint, so that the proof is
worth nothing to anybody in between.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
import structlog

from kafila_agent.control.pin import (
    LinkError,
    Pins,
    Unreachable,
    fetch_certificate,
    parse_address,
    unreachable,
)
from kafila_agent.identity import Identity
from kafila_proto import PROTOCOL, VERSION
from kafila_proto.certificate import CertificateError, common_name, fingerprint
from kafila_proto.names import printable
from kafila_proto.rendezvous_pb2 import Challenge, FromAgent, Hello, MemberState, ToAgent
from kafila_proto.rendezvous_pb2_grpc import RendezvousStub
from kafila_proto.signed import Label

ATTACH_S = 5.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
MAX_MESSAGE_BYTES = 4 << 20
MAX_UPDATE_BYTES = 64 << 10  # kept for each member

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),  # keeps the NAT's mapping, and notices a rendezvous that vanished
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # a minute otherwise, where the kernel goes on acknowledging
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

log = structlog.get_logger()

_Call = grpc.aio.StreamStreamCall[FromAgent, ToAgent]


class LinkState(StrEnum):
    """Whether the stream is up."""

    DETACHED = "detached"
    ATTACHED = "attached"
    WAITING = "waiting"
    CLOSED = "closed"


class LinkRefused(LinkError):
    """The rendezvous answers and does not want this agent; ``code`` is that of its Problem."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class LinkLost(LinkError):
    """Nothing can be sent: the stream is down just now."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the rendezvous said of itself."""

    host: str
    udp_port: int
    rendezvous_fingerprint: bytes
    version: str


class RendezvousLink:
    """One stream, attached again whenever it is lost.

    ``on_message`` gets every ToAgent in order, ``on_lost`` the reason when the stream breaks (the session is
    then over: the rendezvous has told the others), ``on_attached`` each new attachment after that. Set them
    before ``attach``; all are called on the event loop. ``sleep`` and ``jitter`` are for tests.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        state_dir: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.address = parse_address(address)
        self.state = LinkState.DETACHED
        self.problem = ""  # why it is not attached
        self.attachment: Attachment | None = None
        self.on_message: Callable[[ToAgent], None] = lambda message: None
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.on_attached: Callable[[Attachment], None] = lambda attachment: None
        self._identity = identity
        self._pins = Pins(state_dir)
        self._sleep, self._jitter = sleep, jitter
        self._channel: grpc.aio.Channel | None = None
        self._call: _Call | None = None
        self._writing = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def attach(self) -> Attachment:
        """Attach once, within ATTACH_S, and stay attached from then on. Raises LinkError."""
        if self.state is not LinkState.DETACHED:
            raise LinkError(f"the link to {self.address} is {self.state.value} already")
        attachment = await self._attach_once()
        self._reading = asyncio.create_task(self._keep_attached())
        return attachment

    def keep_trying(self) -> None:
        """As ``attach``, in the background and for as long as it takes; ``on_attached`` tells of success."""
        if self._reading is None and self.state is LinkState.DETACHED:
            self.state = LinkState.WAITING
            self._reading = asyncio.create_task(self._keep_attached())

    async def send(self, message: FromAgent) -> None:
        """Say ``message`` to the rendezvous. Raises LinkLost while the stream is down."""
        call = self._call
        if self.state is not LinkState.ATTACHED or call is None:
            raise LinkLost(
                f"not attached to the rendezvous at {self.address}: {self.problem or self.state.value}"
            )
        try:
            async with self._writing:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise LinkLost(f"the stream to the rendezvous at {self.address} is down") from error

    async def close(self) -> None:
        """End the stream for good."""
        self.state = LinkState.CLOSED
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._drop()

    async def _keep_attached(self) -> None:
        while True:
            if self.state is LinkState.ATTACHED:
                self.problem = await self._read()
                self.state = LinkState.WAITING
                await self._drop()
                log.warning("lost the rendezvous", address=str(self.address), reason=self.problem)
                self.on_lost(self.problem)
            await self._attach_again()

    async def _attach_again(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            await self._sleep(delay_s * (0.5 + self._jitter() / 2))
            try:
                attachment = await self._attach_once()
            except LinkError as error:
                self.problem = str(error)
                log.warning("cannot attach", address=str(self.address), reason=self.problem)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            else:
                self.on_attached(attachment)
                return

    async def _read(self) -> str:
        """Deliver messages until the stream breaks; the reason it broke."""
        assert self._call is not None
        try:
            while isinstance(message := await self._call.read(), ToAgent):
                self._deliver(message)
        except grpc.aio.AioRpcError as error:
            return (
                f"the stream to the rendezvous at {self.address} broke ({printable(error.details() or '')})"
            )
        return f"the rendezvous at {self.address} ended the stream"

    def _deliver(self, message: ToAgent) -> None:
        if message.WhichOneof("message") == "problem":
            message.problem.detail = printable(message.problem.detail)
        elif message.WhichOneof("message") == "closed":
            message.closed.reason = printable(message.closed.reason)
        elif message.WhichOneof("message") == "member":
            if message.ByteSize() > MAX_UPDATE_BYTES:
                log.warning("a member's update is too large", size_bytes=message.ByteSize())
                return
            progress = message.member.progress
            progress.detail = printable(progress.detail)
            if progress.state not in MemberState.values():
                progress.state = MemberState.MEMBER_STATE_UNSPECIFIED
            for edge in progress.edges:
                edge.path = printable(edge.path)
        try:
            self.on_message(message)
        except Exception:  # a fault of the handler's, which must not cost the stream
            log.exception("message not handled", kind=message.WhichOneof("message"))

    async def _attach_once(self) -> Attachment:
        try:
            async with asyncio.timeout(ATTACH_S):
                attachment = await self._connect()
        except TimeoutError:
            await self._drop()
            raise unreachable(self.address, f"no answer in {ATTACH_S:.0f} seconds") from None
        except BaseException:
            await self._drop()
            raise
        self.attachment, self.state, self.problem = attachment, LinkState.ATTACHED, ""
        self._pins.keep(self.address, attachment.rendezvous_fingerprint)
        return attachment

    async def _connect(self) -> Attachment:
        certificate = await fetch_certificate(self.address)
        seen = fingerprint(certificate)
        self._pins.check(self.address, seen)
        self._channel = self._open_channel(certificate)
        self._call = RendezvousStub(self._channel).Attach()
        try:
            challenge = await self._hear("challenge")
            challenge.version = printable(challenge.version)
            await self._call.write(FromAgent(hello=self._answer(challenge, seen)))
            await self._hear("welcome")
        except grpc.aio.AioRpcError as error:
            raise unreachable(
                self.address, f"the stream broke ({printable(error.details() or '')})"
            ) from error
        return Attachment(self.address.host, challenge.udp_port, seen, challenge.version)

    def _open_channel(self, certificate: bytes) -> grpc.aio.Channel:
        try:
            name = common_name(certificate)
        except CertificateError as error:
            raise Unreachable(f"what answers at {self.address} is no kafila-rendezvous: {error}") from error
        credentials = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", name)]
        return grpc.aio.secure_channel(str(self.address), credentials, options)

    def _answer(self, challenge: Challenge, seen: bytes) -> Hello:
        if challenge.protocol != PROTOCOL:
            raise LinkRefused(
                "version",
                f"this agent is Kafila {VERSION} (protocol {PROTOCOL}), the rendezvous at {self.address}"
                f" {challenge.version} (protocol {challenge.protocol}): install the same version on both",
            )
        return Hello(
            protocol=PROTOCOL,
            version=VERSION,
            name=self._identity.name,
            certificate=self._identity.certificate_der,
            signature=self._identity.sign(Label.HELLO, challenge.nonce + seen),
        )

    async def _hear(self, expected: str) -> Any:
        """The rendezvous's next message, which must be ``expected``. Raises LinkRefused for a Problem."""
        assert self._call is not None
        message = await self._call.read()
        if not isinstance(message, ToAgent):
            raise unreachable(self.address, f"the stream ended where {expected} was to come")
        if message.WhichOneof("message") == "problem":
            raise LinkRefused(message.problem.code, printable(message.problem.detail))
        if message.WhichOneof("message") != expected:
            raise LinkRefused(
                "invalid", f"the rendezvous at {self.address} sent no {expected} when it should"
            )
        return getattr(message, expected)

    async def _drop(self) -> None:
        """Let go of stream and channel."""
        call, channel, self._call, self._channel = self._call, self._channel, None, None
        if call is not None:
            call.cancel()
        if channel is not None:
            await channel.close()
