"""Discovery against simulated NATs and the rendezvous's own reflector; the network loses, delays and repeats."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from kafila_agent.nat.discovery import BLOCKED_S, Discovered, Discovery, Local
from kafila_planner.facts import Behaviour
from kafila_proto import stun
from kafila_rendezvous.reflector import reflect

EI, AD, APD = Behaviour
R1, R2, OUTER = "203.0.113.1", "203.0.113.2", "198.51.100.7"
PORT = 7470
INNER = {local: ("192.168.1.10", 4000 + number) for number, local in enumerate(Local)}


@dataclass
class Nat:
    """One NAT, by RFC 4787's words."""

    mapping: Behaviour = EI
    filtering: Behaviour = APD
    hairpins: bool = False
    _outer: dict = field(default_factory=dict)
    _inner: dict = field(default_factory=dict)
    _spoken_to: set = field(default_factory=set)

    def _view(self, behaviour: Behaviour, host: str, port: int) -> tuple:
        return {EI: (), AD: (host,), APD: (host, port)}[behaviour]

    def out(self, inner, target):
        key = (inner, self._view(self.mapping, *target))
        outer = self._outer.setdefault(key, (OUTER, 20000 + len(self._outer)))
        self._inner[outer] = inner
        self._spoken_to.add((outer, self._view(self.filtering, *target)))
        return outer

    def into(self, source, outer):
        if source[0] == OUTER:
            return self._inner.get(outer) if self.hairpins else None
        lets = (outer, self._view(self.filtering, *source)) in self._spoken_to
        return self._inner.get(outer) if lets else None


class World:
    """``loses`` says of each datagram whether it is lost."""

    def __init__(
        self, nat: Nat | None, *, second_address=True, rtt_s=0.2, loses=lambda data: False, **options
    ):
        self.now = 50.0
        self.nat = nat
        self.hosts = (R1, R2) if second_address else (R1,)
        self.rtt_s = rtt_s
        self.loses = loses
        self.dead: set[tuple[str, int]] = set()  # where the reflector does not listen
        self.sent = 0
        self._flying: list = []
        self._order = itertools.count()
        own = ["192.168.1.10"] if nat else [OUTER]
        self.core = Discovery((R1, PORT), PORT + 1, own_hosts=own, now=self.now, **options)

    def run(self) -> Discovered:
        while not self.core.is_over:
            for out in self.core.datagrams_to_send(self.now):
                self.sent += 1
                self.fly(self.leave, out.data, INNER[out.local], out.target)
            when = min(
                [t for t in (self.core.get_timer(), self._flying[0][0] if self._flying else None) if t]
            )
            self.now = max(self.now, when)
            while self._flying and self._flying[0][0] <= self.now:
                _, _, arrive, arguments = heapq.heappop(self._flying)
                arrive(*arguments)
            self.core.handle_timer(self.now)
        return self.core.result()

    def fly(self, arrive, data, source, target, delay_s=None):
        if not self.loses(data):
            at = self.now + (self.rtt_s / 2 if delay_s is None else delay_s)
            heapq.heappush(self._flying, (at, next(self._order), arrive, (data, source, target)))

    def leave(self, data, inner, target):
        source = self.nat.out(inner, target) if self.nat else (OUTER, inner[1])
        if target[0] == OUTER:
            self.come(data, source, target)
        elif target[0] in self.hosts and target not in self.dead:
            places = {
                (stun.CHANGE_ADDRESS * (host != target[0])) | (stun.CHANGE_PORT * (port != target[1])): (
                    host,
                    port,
                )
                for host in self.hosts
                for port in (PORT, PORT + 1)
            }
            if (reflection := reflect(data, source, places)) is not None:
                self.fly(self.come, reflection.data, places[reflection.change], source)

    def come(self, data, source, outer):
        inner = self.nat.into(source, outer) if self.nat else ("", outer[1])
        for local, address in INNER.items():
            if inner is not None and inner[1] == address[1]:
                self.core.receive_datagram(local, data, source, self.now)


@pytest.mark.parametrize("hairpins", [False, True])
@pytest.mark.parametrize("filtering", list(Behaviour))
@pytest.mark.parametrize("mapping", list(Behaviour))
def test_every_behaviour_is_told_within_two_seconds_on_a_slow_line(mapping, filtering, hairpins):
    world = World(Nat(mapping, filtering, hairpins))
    found = world.run()
    assert (found.mapping, found.filtering, found.second_port) == (mapping, filtering, True)
    assert found.hairpin is found.hairpin_open is hairpins
    assert found.translated
    assert found.mapped == (OUTER, 20000)
    assert world.now - 50.0 < 2.0
    assert world.sent <= 27


@pytest.mark.parametrize("filtering", list(Behaviour))
@pytest.mark.parametrize("mapping", list(Behaviour))
def test_a_home_behind_a_carrier_that_hairpins_lets_in_what_its_own_filter_does(mapping, filtering):
    """The carrier's NAT is the one that is seen; behind it the home's own looks at what comes back."""
    world = World(Nat(mapping, APD, hairpins=True))
    home = Nat(EI, filtering)
    carrier_out, carrier_into = world.nat.out, world.nat.into

    def out(inner, target):
        return carrier_out(home.out(inner, target), target)

    def into(source, outer):
        at_home = carrier_into(source, outer)
        return None if at_home is None else home.into(source, at_home)

    home.into = lambda source, outer: (
        home._inner.get(outer) if (outer, home._view(home.filtering, *source)) in home._spoken_to else None
    )
    world.nat.out, world.nat.into = out, into
    found = world.run()
    assert found.mapping is mapping
    assert found.hairpin_open is (filtering is not APD)
    assert found.hairpin is (mapping is EI or filtering is not APD)


@pytest.mark.parametrize("filtering", list(Behaviour))
def test_one_address_tells_what_two_ports_can(filtering):
    found = World(Nat(EI, filtering), second_address=False).run()
    assert found.mapping is EI
    assert found.filtering is (APD if filtering is APD else AD)  # the stricter of what it may be


@pytest.mark.parametrize("mapping", [EI, AD])
def test_another_stun_server_is_a_second_address(mapping):
    world = World(Nat(mapping), second_address=False, others=[(R2, 3478)])
    plain = world.leave

    def leave(data, inner, target):
        if target == (R2, 3478):
            source = world.nat.out(inner, target)
            answer = stun.encode_response(stun.parse_stun(data), source)
            world.fly(world.come, answer, target, source)
        else:
            plain(data, inner, target)

    world.leave = leave
    assert world.run().mapping is mapping


def test_a_machine_without_nat_is_told_so():
    found = World(None).run()
    assert not found.translated
    assert (found.mapping, found.filtering, found.hairpin) == (EI, EI, None)


def test_a_blocked_second_port_is_told_from_a_restrictive_nat():
    world = World(Nat(EI, APD))
    world.dead = {(R1, PORT + 1), (R2, PORT + 1)}
    found = world.run()
    assert found.second_port is False
    assert found.mapping is EI  # by the second address
    assert found.filtering is None  # what does not come from there may be the rendezvous's firewall's doing
    alone = World(Nat(EI, APD), second_address=False)
    alone.dead = {(R1, PORT + 1)}
    assert (alone.run().mapping, alone.core.result().second_port) == (None, False)
    strict = World(Nat(APD, APD)).run()
    assert (strict.mapping, strict.second_port) == (APD, True)


def test_no_answer_at_all_is_told_within_five_seconds():
    world = World(Nat(), loses=lambda data: True)
    assert world.run() == Discovered(None)
    assert world.now - 50.0 == pytest.approx(BLOCKED_S)
    assert BLOCKED_S < 5


@pytest.mark.parametrize("down_s", [0.4, 1.3, 2.5])
def test_a_line_that_is_down_at_first_changes_nothing(down_s):
    def is_down(data):
        return world.now < 50.0 + down_s

    world = World(Nat(EI, AD), loses=is_down)
    found = world.run()
    assert (found.mapping, found.filtering) == (EI, AD)
    assert world.now - 50.0 < 5


def test_silence_means_nothing_where_most_is_lost():
    """Two of three plain answers lost: what does not come is unknown, not filtered."""
    fresh = itertools.count()

    def loses(data):
        return stun.parse_stun(data).message_class.name == "RESPONSE" and next(fresh) % 3 != 0

    found = World(Nat(EI, APD), loses=loses).run()
    assert found.filtering is None
    assert found.hairpin is None


@pytest.mark.parametrize("seed", range(40))
def test_loss_delay_and_repetition_never_make_it_wrong(seed):
    """With a tenth lost, some late and some twice, what is said is right, if anything is."""
    chance = random.Random(seed)
    mapping, filtering = chance.choice(list(Behaviour)), chance.choice(list(Behaviour))
    world = World(
        Nat(mapping, filtering, hairpins=chance.random() < 0.5), loses=lambda data: chance.random() < 0.1
    )
    plain = world.fly

    def fly(arrive, data, source, target):
        for _ in range(1 + (chance.random() < 0.2)):
            plain(arrive, data, source, target, delay_s=world.rtt_s / 2 * (1 + chance.random()))

    world.fly = fly
    found = world.run()
    order = [EI, AD, APD]
    assert found.mapping is None or found.mapping is mapping or (found.mapping is EI and mapping is AD)
    assert found.filtering is None or order.index(found.filtering) >= order.index(filtering)
    assert world.now - 50.0 < 3.5


def test_strangers_and_echoes_change_nothing():
    world = World(Nat(EI, APD))
    asked = world.core.datagrams_to_send(world.now)
    forged, _ = stun.encode_request()
    for data in (forged, b"", b"\x01\x01" + bytes(30), asked[0].data):
        world.core.receive_datagram(Local.MAIN, data, ("192.0.2.9", 1), world.now)
    assert not world.core.is_answered


def test_a_server_that_does_not_change_its_address_lets_nobody_in():
    """An answer that ought to come from elsewhere and comes from where it was asked proves nothing."""
    world = World(Nat(EI, APD), second_address=False)
    reflected = world.leave

    def leave(data, inner, target):
        request = stun.parse_stun(data)
        if stun.requested_change(request):
            source = world.nat.out(inner, target)
            world.fly(world.come, stun.encode_response(request, source), target, source)
        else:
            reflected(data, inner, target)

    world.leave = leave
    assert world.run().filtering is None
