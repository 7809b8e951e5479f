"""Members without machines: identities, and a world in which links talk and only the test moves the time."""

from __future__ import annotations

import datetime
import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kafila_agent.edge.demultiplex import Demultiplexer
from kafila_agent.edge.events import AddressesNeeded, CircuitNeeded, FrameReceived, RoundTrip
from kafila_agent.edge.link import Link
from kafila_agent.edge.paths import RELAY
from kafila_agent.edge.session import EdgeSession
from kafila_rendezvous.circuits import Circuits

SESSION_ID = bytes(range(16))
RENDEZVOUS = ("rendezvous", 0)


@dataclass(frozen=True)
class Member:
    """What an agent's identity offers."""

    name: str
    certificate_der: bytes
    fingerprint: bytes
    private_key: ec.EllipticCurvePrivateKey


def make_member(name: str) -> Member:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today)
        .not_valid_after(today + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    der = certificate.public_bytes(Encoding.DER)
    return Member(name, der, hashlib.sha256(der).digest(), key)


@pytest.fixture(scope="session")
def members() -> list[Member]:
    """Four members by rising fingerprint: of two, the one that comes first dials."""
    return sorted((make_member(f"member-{i}") for i in range(4)), key=lambda m: m.fingerprint)


@pytest.fixture
def session_of() -> Callable[..., EdgeSession]:
    def make(own: Member, *others: Member, epoch: int = 1) -> EdgeSession:
        roster = {m.fingerprint: m.name for m in (own, *others)}
        return EdgeSession(SESSION_ID, epoch, own.name, roster)

    return make


@dataclass
class End:
    """One link in the world, at an address that the test may change; ``near``: its other one, on a quicker network."""

    link: Link
    member: Member
    address: tuple[str, int]
    near: tuple[str, int] | None = None
    frames: list[bytes] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    demultiplexer: Demultiplexer = field(default_factory=Demultiplexer)

    def __post_init__(self):
        self.demultiplexer.add(self.link)


class World:
    """Two ends and a rendezvous; every datagram takes the same time, and ``lets`` says which arrive."""

    def __init__(self, ends: list[End], delay_s: float = 0.01):
        self.now = 1000.0
        self.ends = ends
        self.delay_s = delay_s
        self.near_delay_s = delay_s / 10
        self.circuits = Circuits()
        self.lets: Callable[[object, object, bytes], bool] = lambda source, target, data: True
        self.bytes_per_s: float | None = None  # of each sender's line, which queues for so long at most:
        self.queue_s = 0.1
        self._line_free_at: dict[object, float] = {}
        self.carried: list[tuple[object, object, int]] = []
        self._flying: list[tuple[float, int, bytes, object, object]] = []
        self._order = itertools.count()

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; True as soon as ``until`` holds."""
        stop = self.now + seconds
        while True:
            for end in self.ends:
                self._pump(end)
            if until():
                return True
            times = [end.link.get_timer() for end in self.ends]
            times = [max(t, self.now) for t in times if t is not None] + [f[0] for f in self._flying[:1]]
            when = min(times, default=stop)
            if when > stop:
                self.now = stop
                return until()
            self.now = when + 1e-6  # a clock never stands still, and the library's rounding counts on that
            while self._flying and self._flying[0][0] <= self.now:
                _, _, data, source, target = heapq.heappop(self._flying)
                self._arrive(data, source, target)
            for end in self.ends:
                timer = end.link.get_timer()
                if timer is not None and timer <= self.now:
                    end.link.handle_timer(self.now)

    def fly(self, data: bytes, source: object, target: object) -> None:
        self.carried.append((source, target, len(data)))
        if not self.lets(source, target, data):
            return
        leaves_at = self.now
        if self.bytes_per_s is not None:
            leaves_at = max(self.now, self._line_free_at.get(source, 0.0))
            if leaves_at - self.now > self.queue_s:
                return
            leaves_at += len(data) / self.bytes_per_s
            self._line_free_at[source] = leaves_at
        delay_s = self.near_delay_s if target in [end.near for end in self.ends] else self.delay_s
        heapq.heappush(self._flying, (leaves_at + delay_s, next(self._order), data, source, target))

    def _pump(self, end: End) -> None:
        while (event := end.link.next_event()) is not None:
            match event:
                case FrameReceived():
                    end.frames.append(bytes(event.frame))
                case _ if end.demultiplexer.take_event(end.link, event):
                    pass
                case CircuitNeeded():
                    end.events.append(event)
                    grant = self.circuits.grant(
                        SESSION_ID, 1, end.member.fingerprint, end.link.peer, self.now
                    )
                    end.demultiplexer.add_circuit(grant.circuit_id, end.link, RENDEZVOUS)
                    end.link.bind(grant.circuit_id, grant.key, self.now)
                case RoundTrip():
                    pass  # every few seconds
                case AddressesNeeded():
                    end.link.tell_addresses([a for a in (end.address, end.near) if a is not None])
                case _:
                    end.events.append(event)
        for data, address in end.link.datagrams_to_send(self.now):
            is_near = end.near is not None and address in [other.near for other in self.ends]
            self.fly(data, end.near if is_near else end.address, RENDEZVOUS if address is RELAY else address)

    def _arrive(self, data: bytes, source: object, target: object) -> None:
        if target == RENDEZVOUS:
            answer = self.circuits.receive_datagram(data, source, self.now)
            if answer is not None:
                self.fly(answer[0], RENDEZVOUS, answer[1])
            return
        for end in self.ends:
            if target in (end.address, end.near):
                self._deliver(end, data, source)

    def _deliver(self, end: End, data: bytes, source: object) -> None:
        end.demultiplexer.receive_datagram(data, source, self.now)
        self._pump(end)


@pytest.fixture
def world_of(members, session_of) -> Callable[..., World]:
    """Two links of the first two members; keyword arguments go to both. ``fast``: who has the quicker library."""

    def make(fast: tuple[bool, bool] = (False, False), **options) -> World:
        one, two = members[:2]
        links = (
            Link(own, session_of(own, peer), peer.fingerprint, fast_core=has_it, **options)
            for own, peer, has_it in ((one, two, fast[0]), (two, one, fast[1]))
        )
        addresses = (("10.0.0.1", 1), ("10.0.0.2", 2))
        ends = [End(*each) for each in zip(links, (one, two), addresses, strict=True)]
        return World(ends)

    return make
