"""What an agent is told at its start."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

CONTROL_SOCKET = "control.sock"
SERVICE_DIR = Path("/run/kafila")  # RuntimeDirectory= of the unit


def default_state_dir() -> Path:
    """Where an agent keeps its identity and its socket: systemd's directory, or the user's own."""
    if under_systemd := os.environ.get("STATE_DIRECTORY"):
        return Path(under_systemd.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "kafila"


def default_control_dir() -> Path:
    """Where ``kafila-ctl`` looks for an agent: the user's own one, or else the service of this machine."""
    own = default_state_dir()
    # Whoever is not of the service's group cannot look, and so does not use it: Path.exists would raise.
    has_service = os.path.exists(SERVICE_DIR / CONTROL_SOCKET)
    return SERVICE_DIR if has_service and not os.path.exists(own / CONTROL_SOCKET) else own


def default_model_dirs() -> tuple[Path, ...]:
    """Where models are looked for, beside the hub's cache: systemd's directory, or the user's own."""
    if under_systemd := os.environ.get("CACHE_DIRECTORY"):
        return (Path(under_systemd.split(":")[0]) / "models",)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return (Path(base) / "kafila" / "models",)


def url_here(host: str, port: int) -> str:
    """How this machine reaches what it serves at ``host``, which may be every address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True)
class AgentConfig:
    """Ports of 0 are chosen by the system. Bytes and seconds throughout."""

    name: str
    state_dir: Path
    rendezvous: str  # HOST:PORT, optionally #FINGERPRINT
    udp_host: str = "::"  # every interface, IPv4 too: the data plane is reached from other machines
    udp_port: int = 0
    api_host: str = "127.0.0.1"
    api_port: int = 0
    api_key: str | None = field(
        default=None, repr=False
    )  # required where api_host is not this machine's alone
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    threads: int = 0  # 0: one for each core this process may use
    memory_limit_bytes: int | None = None
    device: str = "cpu"
    relay_only: bool = False
    control_group: str | None = None  # whose members may use kafila-ctl; the user alone otherwise
    upnp: bool = True
    stun_servers: tuple[tuple[str, int], ...] = ()  # second vantage points, beside the rendezvous
    pace: Path | None = None  # the laboratory's: see pace.py
    model_dirs: tuple[Path, ...] = field(default_factory=default_model_dirs)

    @property
    def control_socket(self) -> Path:
        """Where ``kafila-ctl`` finds this agent: where systemd lets a group come, or beside the identity."""
        under_systemd = os.environ.get("RUNTIME_DIRECTORY")
        return Path(under_systemd.split(":")[0] if under_systemd else self.state_dir) / CONTROL_SOCKET

    @property
    def digest_cache(self) -> Path:
        """Where digests of weights are remembered, so that each file is hashed once."""
        return self.state_dir / "digests"
