"""The agent's one long-lived, outbound stream to the rendezvous.

    DETACHED --attach--> ATTACHED --lost--> WAITING --attach again, later and later--> ATTACHED
    any of them --close--> CLOSED

What is said on it belongs to an association, which the next stream goes on with if the rendezvous still has it: then a
broken stream was no more than a delay. The stream is TLS to a pinned certificate (pin.py), whatever names and
authorities say; the agent proves itself by signing the rendezvous's nonce together with that certificate's
fingerprint, so that the proof is worth nothing to anybody in between.
"""

from __future__ import annotations

import asyncio
import os
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
    RendezvousAddress,
    Unreachable,
    fetch_certificate,
    parse_address,
    unreachable,
)
from kafila_agent.control.route import has_address, source_address
from kafila_agent.control.showable import make_showable
from kafila_agent.identity import Identity
from kafila_proto import PROTOCOL, VERSION
from kafila_proto.association import ID_BYTES, Association, AssociationError
from kafila_proto.certificate import CertificateError, common_name, fingerprint
from kafila_proto.names import printable
from kafila_proto.rendezvous_pb2 import Challenge, FromAgent, Hello, ToAgent, Welcome
from kafila_proto.rendezvous_pb2_grpc import RendezvousStub
from kafila_proto.signed import Label

ATTACH_S = 5.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
PROMPT_DELAY_S = 2.0  # the longest while the rendezvous may still have the association: see its presence.py
PROMPT_S = 30.0
MAX_MESSAGE_BYTES = 4 << 20
_LOOK_S = 1.0  # how often it is looked whether the stream's own address is still there

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),  # keeps the NAT's mapping; a stream that is silent is dead within 10 s
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


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the rendezvous said of itself. ``goes_on``: with the association that the last stream broke off."""

    host: str
    udp_port: int
    rendezvous_fingerprint: bytes
    version: str
    goes_on: bool = False


class RendezvousLink:
    """One stream, attached again whenever it is lost.

    ``on_message`` gets every ToAgent once and in order, ``on_lost`` the reason when the stream breaks,
    ``on_attached`` each new attachment after that: unless it goes on, the rendezvous has told the others that this
    agent is gone or away. Set them before ``attach``; all are called on the event loop. ``sleep`` and ``jitter`` are
    for tests.
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
        self._peer = ""  # the rendezvous's literal address
        self._source: str | None = None  # from which it was reached there
        self._is_writing = False
        self._news = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._is_over = False  # the association: the next stream begins another one
        self._associate_anew()

    async def attach(self) -> Attachment:
        """Attach once, within ATTACH_S, and stay attached from then on. Raises LinkError."""
        if self.state is not LinkState.DETACHED:
            raise LinkError(f"the link to {self.address} is {self.state.value} already")
        attachment = await self._attach_once()
        self._keeping = asyncio.create_task(self._keep_attached())
        return attachment

    def keep_trying(self) -> None:
        """As ``attach``, in the background and for as long as it takes; ``on_attached`` tells of success."""
        if self._keeping is None and self.state is LinkState.DETACHED:
            self.state = LinkState.WAITING
            self._keeping = asyncio.create_task(self._keep_attached())

    def post(self, message: FromAgent) -> None:
        """Say ``message`` to the rendezvous behind what was said before, on this stream or the next that goes on."""
        try:
            self._association.say(message)
        except AssociationError as error:
            if not self._is_over:
                log.warning("the rendezvous does not read what it is sent", reason=str(error))
            self._is_over = True
        self._changed()

    async def flush(self) -> None:
        """Wait until all that was posted is sent, or has nobody to go to."""
        while self.state is LinkState.ATTACHED and (self._is_writing or not self._association.is_written):
            await self._news.wait()

    async def close(self) -> None:
        """End the stream for good."""
        self.state = LinkState.CLOSED
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._drop()

    def _associate_anew(self) -> None:
        """Whatever was said and not heard is lost with the old association."""
        self._association_id = os.urandom(ID_BYTES)
        self._association = Association(FromAgent)
        self._is_over = False

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _keep_attached(self) -> None:
        while True:
            if self.state is LinkState.ATTACHED:
                self.problem = await self._converse()
                self.state = LinkState.WAITING
                await self._drop()
                self._changed()
                log.warning("lost the rendezvous", address=str(self.address), reason=self.problem)
                self.on_lost(self.problem)
            await self._attach_again()

    async def _attach_again(self) -> None:
        delay_s, waited_s = FIRST_DELAY_S, 0.0
        while True:
            await self._sleep(delay_s * (0.5 + self._jitter() / 2))
            waited_s += delay_s
            try:
                attachment = await self._attach_once()
            except LinkError as error:
                self.problem = str(error)
                log.warning("cannot attach", address=str(self.address), reason=self.problem)
                is_prompt = self.attachment is not None and waited_s < PROMPT_S
                delay_s = min(2 * delay_s, PROMPT_DELAY_S if is_prompt else LONGEST_DELAY_S)
            else:
                self.on_attached(attachment)
                return

    async def _converse(self) -> str:
        """Read and write until the stream breaks; the reason it broke."""
        assert self._call is not None
        ends = [self._read(self._call), self._write(self._call), self._watch_address()]
        tasks = [asyncio.create_task(end) for end in ends]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next(task.result() for task in tasks if task in done)

    async def _read(self, call: _Call) -> str:
        try:
            while isinstance(message := await call.read(), ToAgent):
                is_to_act_on = self._association.hear(message)
                self._changed()
                if is_to_act_on:
                    self._deliver(message)
        except grpc.aio.AioRpcError as error:
            return (
                f"the stream to the rendezvous at {self.address} broke ({printable(error.details() or '')})"
            )
        except AssociationError as error:
            self._is_over = True
            return f"the rendezvous at {self.address} is not understood: {error}"
        return f"the rendezvous at {self.address} ended the stream"

    async def _write(self, call: _Call) -> str:
        try:
            while not self._is_over:
                if (message := self._association.next()) is None:
                    await self._news.wait()
                    continue
                self._is_writing = True
                await call.write(message)
                self._is_writing = False
                self._changed()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return f"the stream to the rendezvous at {self.address} is down"
        finally:
            self._is_writing = False
        return f"the rendezvous at {self.address} does not read what it is sent"

    async def _watch_address(self) -> str:
        """Until the stream's own address is gone and there is another way: nothing comes back to the one before."""
        while self._source is None or has_address(self._source) or source_address(self._peer) is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return f"this machine's address {self._source}, from which it reached {self.address}, is gone"

    def _deliver(self, message: ToAgent) -> None:
        if not make_showable(message):
            log.warning("a member's update is too large", size_bytes=message.ByteSize())
            return
        try:
            self.on_message(message)
        except Exception:  # a fault of the handler's, which must not cost the stream
            log.exception("message not handled", kind=message.WhichOneof("message"))

    async def _attach_once(self) -> Attachment:
        try:
            async with asyncio.timeout(ATTACH_S):
                attachment = await self._connect()
        except LinkRefused as refusal:
            self._is_over = refusal.code == "invalid"
            await self._drop()
            raise
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
        if self._is_over:
            self._associate_anew()
        certificate, self._peer = await fetch_certificate(self.address)
        self._source = source_address(self._peer)
        seen = fingerprint(certificate)
        self._pins.check(self.address, seen)
        self._channel = self._open_channel(certificate)
        self._call = RendezvousStub(self._channel).Attach()
        try:
            challenge = await self._hear("challenge")
            challenge.version = printable(challenge.version)
            await self._call.write(FromAgent(hello=self._answer(challenge, seen)))
            welcome = await self._hear("welcome")
        except grpc.aio.AioRpcError as error:
            raise unreachable(
                self.address, f"the stream broke ({printable(error.details() or '')})"
            ) from error
        self._go_on(welcome)
        return Attachment(self.address.host, challenge.udp_port, seen, challenge.version, welcome.goes_on)

    def _go_on(self, welcome: Welcome) -> None:
        if not welcome.goes_on:
            if unsent := self._association.kept:
                log.warning("not sent, or not known to be heard", messages=unsent)
            self._association = Association(FromAgent)
            return
        try:
            self._association.go_on(welcome.heard)
        except AssociationError as error:
            raise LinkRefused("invalid", f"the rendezvous at {self.address}: {error}") from error

    def _open_channel(self, certificate: bytes) -> grpc.aio.Channel:
        try:
            name = common_name(certificate)
        except CertificateError as error:
            raise Unreachable(f"what answers at {self.address} is no kafila-rendezvous: {error}") from error
        credentials = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", name)]
        reached = RendezvousAddress(self._peer, self.address.port)
        return grpc.aio.secure_channel(str(reached), credentials, options)

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
            association=self._association_id,
            heard=self._association.heard,
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
