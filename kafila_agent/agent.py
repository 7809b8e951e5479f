"""One agent: composes link, endpoint, sockets, API and metrics, and is in at most one session at a time."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import socket
from collections.abc import AsyncIterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import structlog

from kafila_agent.api.listening import ApiServerError, listen
from kafila_agent.checks import examine
from kafila_agent.config import AgentConfig, url_here
from kafila_agent.control.link import Attachment, RendezvousLink
from kafila_agent.control.local import AgentError, ControlSocket, Fault
from kafila_agent.control.pin import LinkError
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.stream import EdgeStream
from kafila_agent.gauges import StatusCollector
from kafila_agent.identity import Identity, load_identity
from kafila_agent.machine import Machine
from kafila_agent.metrics import AgentMetrics
from kafila_agent.nat.port_mapping import PortMapping
from kafila_agent.nat.vantage import Vantage
from kafila_agent.session.entry import Entry
from kafila_agent.status import build_status
from kafila_proto import VERSION
from kafila_proto import agent_pb2 as pb
from kafila_proto.certificate import CertificateError
from kafila_proto.metrics_server import MetricsServer
from kafila_proto.names import InvalidName
from kafila_proto.rendezvous_pb2 import ToAgent

if TYPE_CHECKING:
    from kafila_agent.api.server import ApiServer
    from kafila_agent.head.measure import Measured

log = structlog.get_logger()


class Agent:
    """Start it, and it serves ``kafila-ctl`` until closed."""

    def __init__(self, config: AgentConfig):
        self._config = config
        self._news = asyncio.Event()
        self._machine: Machine | None = None
        self._entry: Entry | None = None
        self._control: ControlSocket | None = None
        self._api: ApiServer | None = None
        self._api_socket: socket.socket | None = None  # until it serves
        self._metrics_server: MetricsServer | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._importing: asyncio.Task[ModuleType] | None = None

    @property
    def machine(self) -> Machine:
        """What sessions use of this machine; there from ``start`` on."""
        assert self._machine is not None
        return self._machine

    @property
    def entry(self) -> Entry:
        """The way into sessions, and the one this agent is in."""
        assert self._entry is not None
        return self._entry

    async def start(self) -> None:
        """Open everything. Raises AgentError naming the port, path or name that is at fault."""
        config = self._config
        try:
            config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            identity = load_identity(config.state_dir, config.name)
            link = RendezvousLink(config.rendezvous, identity, config.state_dir)
        except (InvalidName, CertificateError, LinkError) as error:
            raise AgentError(Fault.INVALID, str(error)) from error
        except OSError as error:
            raise AgentError(
                Fault.INVALID, f"cannot use the state directory {config.state_dir}: {error.strerror}"
            ) from error
        metrics = AgentMetrics(VERSION)
        endpoint = self._open_endpoint(identity, metrics)
        port_mapping = _port_mapping(config, endpoint)
        self._machine = Machine(
            config, identity, endpoint, link, metrics, port_mapping, self._changed, self._answer
        )
        self._entry = Entry(self._machine)
        link.on_message = self._receive
        link.on_lost = self._lost
        link.on_attached = self._attached
        vantage = Vantage(endpoint, lambda: _reflector(link))
        await self._open_local(metrics, vantage)
        # What a session needs is imported while nobody waits for it yet.
        self._importing = asyncio.create_task(
            asyncio.to_thread(importlib.import_module, "kafila_agent.imports")
        )
        self._tasks = [self._importing, asyncio.create_task(vantage.keep())]
        if port_mapping is not None:
            self._tasks.append(asyncio.create_task(port_mapping.keep()))
        await self._attach(link)
        await self._importing
        await self._open_api()
        if link.attachment is not None:
            self.entry.resume()

    def _open_endpoint(self, identity: Identity, metrics: AgentMetrics) -> EdgeEndpoint:
        host, port = self._config.udp_host, self._config.udp_port
        try:
            return EdgeEndpoint.open(
                identity, host, port, relay_only=self._config.relay_only, observer=metrics
            )
        except OSError as error:
            raise AgentError(
                Fault.REFUSED, f"cannot open UDP {host}:{port} ({error.strerror}): choose another --udp-port"
            ) from error

    async def _open_local(self, metrics: AgentMetrics, vantage: Vantage) -> None:
        config = self._config
        try:
            self._api_socket = listen(config.api_host, config.api_port)
        except ApiServerError as error:
            raise AgentError(Fault.REFUSED, str(error)) from error
        self._control = ControlSocket(config.control_socket, self, config.control_group)
        await self._control.start()
        edges, rtt_s = lambda: self.machine.endpoint.edges, lambda: vantage.rtt_s
        metrics.registry.register(StatusCollector(self.status, edges, self._measured, rtt_s))
        try:
            self._metrics_server = MetricsServer(metrics.registry, config.metrics_host, config.metrics_port)
        except OSError as error:
            raise AgentError(
                Fault.REFUSED,
                f"cannot serve metrics at {config.metrics_host}:{config.metrics_port} ({error.strerror}): "
                "choose another --metrics-port or --metrics-host",
            ) from error

    async def _open_api(self) -> None:
        from kafila_agent.pace import PaceError, read_pace
        from kafila_agent.probe.device import DeviceError, check_device
        from kafila_agent.service import open_api

        try:
            await asyncio.to_thread(check_device, self._config.device)
            if self._config.pace is not None:
                read_pace(self._config.pace)
        except (DeviceError, PaceError) as error:
            raise AgentError(Fault.INVALID, str(error)) from error
        assert self._api_socket is not None
        listening, self._api_socket = self._api_socket, None
        self._api = await open_api(self._config, listening, lambda: self.entry.membership, self.status)
        self._changed()

    async def _attach(self, link: RendezvousLink) -> None:
        try:
            await link.attach()
        except LinkError as error:
            # A member's machine may start before its network does: go on trying, and say so to whoever asks.
            log.warning("not attached", rendezvous=str(link.address), reason=str(error))
            link.problem = str(error)
            link.keep_trying()
        self._changed()

    async def drain(self, patience_s: float) -> None:
        """Let what is being answered come to its end, for at most ``patience_s``; ``close`` then breaks nothing off."""
        membership = self._entry.membership if self._entry is not None else None
        if membership is not None and membership.seat is not None:
            await membership.seat.drain(patience_s)

    async def close(self) -> None:
        """Be away from the session, or leave one without a plan, telling the others, and let everything go."""
        if self._entry is not None:
            await self._entry.close()
        if self._api_socket is not None:
            self._api_socket.close()
        if self._api is not None:
            await self._api.close()
        if self._control is not None:
            await self._control.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # the router's port is given back
        if self._machine is not None:
            await self._machine.link.close()
            await self._machine.endpoint.close()

    def _answer(self, member: str, stream: EdgeStream) -> None:
        if self._api is None:
            stream.break_off("the API is not open yet")
        else:
            self._api.answer(member, stream)

    # What the rendezvous says

    def _receive(self, message: ToAgent) -> None:
        self.entry.receive(message)
        self._changed()

    def _attached(self, attachment: Attachment) -> None:
        if (
            self._api is not None and not attachment.goes_on
        ):  # without an API ``start`` is not done, and resumes itself
            self.entry.resume()
        self._changed()

    def _lost(self, reason: str) -> None:
        self.entry.lost(reason)
        self._changed()

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _imported(self) -> None:
        """Two threads that import transformers at once find it half-made: who needs it waits for the first."""
        if self._importing is not None:
            await asyncio.shield(self._importing)

    # What kafila-ctl asks

    async def create_session(self, request: pb.CreateRequest) -> None:
        """See ControlSocket."""
        await self._imported()
        await self.entry.create(request)

    async def join_session(self, code: str) -> None:
        """See ControlSocket."""
        await self._imported()
        await self.entry.join(code)

    async def renew_code(self) -> None:
        """See ControlSocket."""
        await self.entry.renew_code()

    async def leave_session(self) -> None:
        """See ControlSocket."""
        await self.entry.leave()

    async def probe(self, request: pb.ProbeRequest) -> pb.ProbeReply:
        """See ControlSocket."""
        await self._imported()
        return await self.entry.probe(request)

    async def examine(self, model: str) -> pb.ExamineReply:
        """See ControlSocket."""
        await self._imported()
        membership = self.entry.membership
        return pb.ExamineReply(
            checks=await examine(self.machine, model or (membership.charter.model.name if membership else ""))
        )

    def status(self) -> pb.Status:
        """See ControlSocket."""
        return build_status(
            self.machine,
            self.entry,
            api_url=self._api.url if self._api else "",
            metrics_url=self._metrics_url(),
        )

    def _metrics_url(self) -> str:
        if self._metrics_server is None:
            return ""
        return f"{url_here(self._config.metrics_host, self._metrics_server.port)}/metrics"

    def _measured(self) -> Measured | None:
        membership = self.entry.membership
        engine = membership.seat.engine if membership and membership.seat else None
        return engine.measured() if engine else None

    async def watch(self) -> AsyncIterator[pb.Status]:
        """See ControlSocket."""
        while True:
            news = self._news
            yield self.status()
            await news.wait()


def _reflector(link: RendezvousLink) -> tuple[str, int] | None:
    return (link.attachment.host, link.attachment.udp_port) if link.attachment else None


def _port_mapping(config: AgentConfig, endpoint: EdgeEndpoint) -> PortMapping | None:
    """Where the router may be asked for a port: not for an agent that this machine alone can reach."""
    host, port = endpoint.local_address
    if not config.upnp or config.relay_only or ipaddress.ip_address(host).is_loopback:
        return None
    return PortMapping(port)
