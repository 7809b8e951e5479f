"""Two links, a rendezvous's relay and the network between them, in which only the test moves the time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafila_agent.edge.demultiplex import Demultiplexer
from kafila_agent.edge.events import AddressesNeeded, CircuitNeeded, FrameReceived, RoundTrip
from kafila_agent.edge.link import Link
from kafila_agent.edge.paths import RELAY
from kafila_rendezvous.circuits import Circuits

SESSION_ID = bytes(range(16))
RENDEZVOUS = ("rendezvous", 0)


@dataclass
class End:
    """One link in the world, at an address that the test may change; ``near``: its other one, on a quicker network."""

    link: Link
    member: Any
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
        # How late a datagram comes, and each copy of it; none of them: it is lost.
        self.fates: Callable[[object, object], list[float]] = lambda source, target: [0.0]
        self.grants: Callable[[], bool] = lambda: True  # whether the rendezvous answers
        self.bytes_per_s: float | None = None  # of each sender's line, which queues for so long at most:
        self.queue_s = 0.1
        self._line_free_at: dict[object, float] = {}
        self.asked = 0  # for a circuit
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
        for late_s in self.fates(source, target):
            due = leaves_at + delay_s + late_s
            heapq.heappush(self._flying, (due, next(self._order), data, source, target))

    def _pump(self, end: End) -> None:
        while (event := end.link.next_event()) is not None:
            match event:
                case FrameReceived():
                    end.frames.append(bytes(event.frame))
                case _ if end.demultiplexer.take_event(end.link, event):
                    pass
                case CircuitNeeded():
                    self._grant()
                case RoundTrip():
                    pass  # every few seconds
                case AddressesNeeded():
                    end.link.tell_addresses([a for a in (end.address, end.near) if a is not None])
                case _:
                    end.events.append(event)
        end.link.send_datagrams(self.now, lambda data, address: self._send(end, data, address))

    def _send(self, end: End, data: bytes, address: object) -> None:
        is_near = end.near is not None and address in [other.near for other in self.ends]
        self.fly(data, end.near if is_near else end.address, RENDEZVOUS if address is RELAY else address)

    def _grant(self) -> None:
        """Both ends get the circuit, whoever asked."""
        self.asked += 1
        for end in self.ends if self.grants() else []:
            grant = self.circuits.grant(SESSION_ID, 1, end.member.fingerprint, end.link.peer, self.now)
            end.demultiplexer.add_circuit(grant.circuit_id, end.link, RENDEZVOUS)
            end.link.bind(grant.circuit_id, grant.key, self.now)

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


def connect(world, one_knows=True, two_knows=True):
    """Both ends ask for the edge."""
    one, two = world.ends
    one.link.connect([two.address] if one_knows else [], world.now)
    two.link.connect([one.address] if two_knows else [], world.now)
    return one, two


def relay_alone(source, target, data):
    """Of ``lets``: no direct path."""
    return RENDEZVOUS in (source, target)


def are_open(*ends):
    """Of ``until``."""
    return lambda: all(end.link.connection for end in ends)


def echo(world, size=3000):
    """A frame goes each way."""
    one, two = world.ends
    for sender, receiver in ((one, two), (two, one)):
        receiver.frames.clear()
        sender.link.send_frame(bytes(size))
        assert world.run(3.0, lambda receiver=receiver: receiver.frames == [bytes(size)])
