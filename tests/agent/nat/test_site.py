"""Sites: who answers at a local address, with the time passed in."""

from __future__ import annotations

import ipaddress

import pytest

from kafila_agent.edge.candidate import Candidate, CandidateKind
from kafila_agent.nat.site import SiteChecks

SESSION = bytes(16)
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
HOME = [ipaddress.ip_network("192.168.1.0/24")]


class Lan:
    """Members by their address; datagrams arrive at once, unless ``silent``."""

    def __init__(self, **members: bytes):
        self.now = 10.0
        self.silent: set[str] = set()
        self.at = {host.replace("_", "."): member for host, member in members.items()}
        self.checks = {member: SiteChecks(SESSION, member, HOME) for member in self.at.values()}
        for checks in self.checks.values():
            checks.set_roster(self.at.values())

    def tell(self, host: str, *others: bytes) -> None:
        """Everyone else hears of a member's address."""
        for member, checks in self.checks.items():
            if member != self.at[host]:
                checks.add_candidates(self.at[host], [Candidate(CandidateKind.HOST, host, 5000)], self.now)

    def run(self, seconds: float) -> None:
        stop = self.now + seconds
        while True:
            moved = True
            while moved:
                moved = False
                for host, member in self.at.items():
                    for data, (target, _) in self.checks[member].datagrams_to_send(self.now):
                        moved = True
                        if target in self.at and target not in self.silent:
                            self.checks[self.at[target]].receive_datagram(data, (host, 5000), self.now)
            times = [t for checks in self.checks.values() if (t := checks.get_timer()) is not None]
            if not times or min(times) > stop:
                self.now = stop
                return
            self.now = min(times)


def hosts(*members: bytes) -> dict[str, bytes]:
    return {f"192_168_1_{n}": member for n, member in enumerate(members, 10)}


def test_members_of_one_lan_have_the_name_of_the_first():
    lan = Lan(**hosts(A, B, C))
    for host in lan.at:
        lan.tell(host)
    lan.run(0.0)
    assert all(checks.is_settled(lan.now) for checks in lan.checks.values())
    assert len({checks.site() for checks in lan.checks.values()}) == 1


def test_whoever_comes_first_waits_for_nobody_and_keeps_its_name():
    lan = Lan(**hosts(A, B))
    first = lan.checks[A]
    assert first.is_settled(lan.now)
    before = first.site()
    assert not lan.checks[B].is_settled(lan.now)
    lan.tell("192.168.1.10")
    lan.run(0.0)
    assert first.site() == before == lan.checks[B].site()


def test_a_member_that_does_not_know_its_addresses_yet_is_waited_for():
    lan = Lan(**hosts(A, B))
    lan.checks[B].add_candidates(A, [], lan.now)
    assert not lan.checks[B].is_settled(lan.now)
    lan.tell("192.168.1.10")
    lan.run(0.0)
    assert lan.checks[A].site() == lan.checks[B].site()


def test_an_address_that_does_not_answer_is_another_site():
    """Two homes with the same private network: what answers there, if anything, is not the member."""
    lan = Lan(**hosts(A, B))
    lan.silent.add("192.168.1.10")
    lan.tell("192.168.1.10")
    lan.run(0.5)
    assert not lan.checks[B].is_settled(lan.now)
    lan.run(1.0)
    assert lan.checks[B].is_settled(lan.now)
    assert lan.checks[A].site() != lan.checks[B].site()


@pytest.mark.parametrize("host", ["10.0.0.5", "198.51.100.4", "2001:db8::1"])
def test_addresses_beyond_our_links_are_left_alone(host):
    checks = SiteChecks(SESSION, B, HOME)
    checks.set_roster([A, B])
    checks.add_candidates(A, [Candidate(CandidateKind.HOST, host, 5000)], 0.0)
    assert checks.datagrams_to_send(0.0) == []
    assert checks.is_settled(0.0)


def test_only_members_of_this_session_are_answered():
    ours, theirs = SiteChecks(SESSION, A, HOME), SiteChecks(b"x" * 16, B, HOME)
    for checks in (ours, theirs):
        checks.set_roster([A, B])
    theirs.add_candidates(A, [Candidate(CandidateKind.HOST, "192.168.1.10", 5000)], 0.0)
    ((data, _),) = theirs.datagrams_to_send(0.0)
    ours.receive_datagram(data, ("192.168.1.11", 5000), 0.0)
    ours.receive_datagram(b"\x9bkc" + bytes(60), ("192.168.1.11", 5000), 0.0)
    assert ours.datagrams_to_send(0.0) == []


def test_our_own_check_sent_back_proves_nothing():
    lan = Lan(**hosts(A, B))
    lan.tell("192.168.1.10")
    ((data, _),) = lan.checks[B].datagrams_to_send(lan.now)
    lan.checks[B].receive_datagram(data, ("192.168.1.10", 5000), lan.now)
    assert lan.checks[B].datagrams_to_send(lan.now) == []
    assert not lan.checks[B].is_settled(lan.now)
