"""The rendezvous put together: gRPC on TCP, reflector and relay on UDP, metrics on HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import structlog

from kafila_proto.certificate import KeyedCertificate, load_or_make_certificate
from kafila_proto.metrics_server import MetricsServer
from kafila_proto.rendezvous_pb2_grpc import add_RendezvousServicer_to_server
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import DatagramServer, serve_datagrams
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.metrics import serve_metrics
from kafila_rendezvous.registry import Registry
from kafila_rendezvous.service import RendezvousService

CERTIFICATE_FILE = "rendezvous.pem"
MAX_MESSAGE_BYTES = 1 << 20
MAX_STREAMS = 4096  # whether or not they have said who they are

DEFAULT_HOST = "0.0.0.0"  # noqa: S104 (members come from everywhere)
DEFAULT_PORT = 7470
DEFAULT_METRICS_HOST = "127.0.0.1"
DEFAULT_METRICS_PORT = 9471

_TICK_S = 1.0
_GRACE_S = 2.0
_GRPC_OPTIONS = [
    ("grpc.so_reuseport", 0),  # or a second rendezvous on the same port would take half of the streams
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),  # an agent that vanished is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # a minute otherwise, where the kernel goes on acknowledging
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 8),  # an agent has one
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),  # a connection that carries no stream
]

log = structlog.get_logger()


class ConfigError(ValueError):
    """What a rendezvous was told cannot be meant."""


class PortInUse(OSError):
    """A port that the rendezvous was to serve cannot be had; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """Where a rendezvous serves and keeps its certificate. Port 0 picks a free one."""

    state_dir: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    more_hosts: tuple[str, ...] = ()  # further addresses, such as one of the other family
    second_hosts: tuple[str, ...] = ()  # of the reflector alone: for each a host of its family
    udp_port: int | None = None  # None: the number that gRPC has, or any if that was picked
    metrics_host: str = DEFAULT_METRICS_HOST
    metrics_port: int = DEFAULT_METRICS_PORT
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class RendezvousServer:
    """A rendezvous that serves; made by ``start_rendezvous``."""

    grpc_port: int
    udp_port: int
    metrics_port: int
    certificate: KeyedCertificate
    registry: Registry
    service: RendezvousService
    _closing: AsyncExitStack

    async def close(self) -> None:
        """Tell every agent, then stop serving."""
        await self._closing.aclose()


async def start_rendezvous(config: Config) -> RendezvousServer:
    """Serve as ``config`` says.

    Raises ConfigError, PortInUse, CertificateError or OSError, having left nothing behind.
    """
    certificate = load_or_make_certificate(config.state_dir / CERTIFICATE_FILE, "kafila-rendezvous")
    loop = asyncio.get_running_loop()
    registry, circuits = Registry(config.limits), Circuits()
    async with AsyncExitStack() as closing:
        server = grpc.aio.server(options=_GRPC_OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS)
        closing.push_async_callback(server.stop, _GRACE_S)
        grpc_port = _bind_grpc(server, config, certificate)
        datagrams = await _bind_datagrams(circuits, config, grpc_port)
        closing.callback(datagrams.close)
        metrics = _serve_metrics(config, registry, datagrams)
        closing.push_async_callback(asyncio.to_thread, metrics.close)
        service = RendezvousService(registry, circuits, certificate.fingerprint, datagrams.port, loop.time)
        add_RendezvousServicer_to_server(service, server)
        await server.start()
        closing.callback(asyncio.create_task(_tick(service)).cancel)
        closing.push_async_callback(service.close, "the rendezvous is stopping")
        log.info("serving", grpc_port=grpc_port, udp_port=datagrams.port, metrics_port=metrics.port)
        return RendezvousServer(
            grpc_port, datagrams.port, metrics.port, certificate, registry, service, closing.pop_all()
        )


async def _tick(service: RendezvousService) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        service.tick()


def _bind_grpc(server: grpc.aio.Server, config: Config, certificate: KeyedCertificate) -> int:
    credentials = grpc.ssl_server_credentials([(certificate.private_key_pem, certificate.certificate_pem)])
    port = config.port
    for host in (config.host, *config.more_hosts):
        try:
            port = server.add_secure_port(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}", credentials
            )
        except RuntimeError as error:
            raise PortInUse(
                f"cannot serve on TCP port {port} of {host}: another program may have it, or the"
                " address is not this machine's; choose another with --port or --host"
            ) from error
    return port


async def _bind_datagrams(circuits: Circuits, config: Config, grpc_port: int) -> DatagramServer:
    hosts, wanted = _literal_hosts(config), config.udp_port
    second_hosts = _second_hosts(hosts, config.second_hosts)
    if wanted is None:
        wanted = grpc_port if config.port else 0
    try:
        return await serve_datagrams(circuits, hosts, wanted, second_hosts)
    except OSError as error:
        raise PortInUse(
            f"cannot serve on UDP ports {wanted} and {wanted + 1} of {', '.join(hosts)} ({error});"
            " choose others with --udp-port"
        ) from error


def _literal_hosts(config: Config) -> list[str]:
    """The addresses to bind datagrams to; "::" is both families, as it is for gRPC. Raises ConfigError."""
    if config.host == "::" and not config.more_hosts:
        return ["::", DEFAULT_HOST]
    hosts = [_literal(host) for host in (config.host, *config.more_hosts)]
    versions = {ipaddress.ip_address(host).version for host in hosts}
    if len(versions) < len(hosts):
        raise ConfigError(f"--host may name one address of each family, not {' and '.join(hosts)}")
    return hosts


def _literal(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])


def _second_hosts(hosts: list[str], second_hosts: tuple[str, ...]) -> dict[str, str]:
    """Which address is whose second. Raises ConfigError where that makes no sense."""
    found: dict[str, str] = {}
    for second in map(_literal, second_hosts):
        version = ipaddress.ip_address(second).version
        first = next((h for h in hosts if ipaddress.ip_address(h).version == version), None)
        if first is None or first == second or first in found or ipaddress.ip_address(first).is_unspecified:
            raise ConfigError(
                f"--second-host {second} needs --host to name one other address of the same family, "
                f"not {' and '.join(hosts)}"
            )
        found[first] = second
    return found


def _serve_metrics(config: Config, registry: Registry, datagrams: DatagramServer) -> MetricsServer:
    try:
        return serve_metrics(registry, datagrams, config.metrics_host, config.metrics_port)
    except OSError as error:
        raise PortInUse(
            f"cannot serve metrics on TCP port {config.metrics_port} of {config.metrics_host} ({error});"
            " choose another with --metrics-port"
        ) from error
