from __future__ import annotations

import ipaddress

import pytest

from kafila_agent.edge.candidate import (
    MAX_CANDIDATES,
    Candidate,
    CandidateKind,
    candidate_addresses,
    choose_hosts,
    encode_addresses,
    interface_hosts,
    is_usable,
    parse_addresses,
)
from kafila_proto.rendezvous_pb2 import Candidate as CandidateMessage


@pytest.mark.parametrize(
    ("host", "usable"),
    [
        ("192.168.1.5", True),
        ("100.64.3.4", True),
        ("198.18.0.1", True),
        ("192.0.2.2", True),
        ("8.8.8.8", True),
        ("fd00::2", True),
        ("2001:db8::1", True),
        ("169.254.1.1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_which_addresses_a_datagram_can_be_sent_to(host, usable):
    assert is_usable(host) is usable


def test_loopback_is_left_out_unless_asked_for_or_all_there_is():
    hosts = ["127.0.0.1", "192.168.1.5", "192.168.1.5", "fe80::1", "::1"]
    assert choose_hosts(hosts) == ["192.168.1.5"]
    assert choose_hosts(hosts, loopback=True) == ["127.0.0.1", "192.168.1.5", "::1"]
    assert choose_hosts(["127.0.0.1", "fe80::1"]) == ["127.0.0.1"]
    assert len(choose_hosts(f"10.0.0.{i}" for i in range(99))) == MAX_CANDIDATES


def test_this_machines_own_addresses_are_literal():
    hosts = interface_hosts()
    assert hosts
    for host in choose_hosts(hosts, loopback=True):
        ipaddress.ip_address(host)


def test_container_bridges_are_left_out(monkeypatch):
    import socket
    from types import SimpleNamespace

    import psutil

    names = ["eth0", "docker0", "br-0123456789ab", "veth12", "virbr0", "br0", "tailscale0", "down0"]
    addresses = {
        n: [SimpleNamespace(family=socket.AF_INET, address=f"10.0.0.{i}")] for i, n in enumerate(names)
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(
        psutil, "net_if_stats", lambda: {n: SimpleNamespace(isup=n != "down0") for n in names}
    )
    assert interface_hosts() == ["10.0.0.0", "10.0.0.5", "10.0.0.6"]


def test_a_peers_candidates_come_as_messages_or_dataclasses_and_nonsense_is_left_out():
    candidates = [
        Candidate(CandidateKind.HOST, "10.0.0.1", 7),
        CandidateMessage(kind=CandidateMessage.SERVER_REFLEXIVE, host="198.18.0.1", port=8),
        CandidateMessage(host="10.0.0.1", port=7),
        Candidate(CandidateKind.HOST, "10.0.0.1", 0),
        Candidate(CandidateKind.HOST, "10.0.0.1", 70000),
        Candidate(CandidateKind.HOST, "no address", 7),
    ]
    assert candidate_addresses(candidates) == [("10.0.0.1", 7), ("198.18.0.1", 8)]
    assert {k.name: k.value for k in CandidateKind} == {
        k: v for k, v in CandidateMessage.Kind.items() if not k.startswith("KIND_")
    }


def test_addresses_are_told_and_understood():
    addresses = [("192.168.1.7", 7000), ("2001:db8::7", 65535), ("127.0.0.1", 1)]
    assert parse_addresses(encode_addresses(addresses)) == addresses
    assert len(parse_addresses(encode_addresses([("10.0.0.1", 1)] * 100))) == MAX_CANDIDATES


def test_of_what_a_peer_tells_only_addresses_that_make_sense_are_taken():
    told = encode_addresses(
        [("0.0.0.0", 5), ("224.0.0.1", 5), ("fe80::1", 5), ("10.0.0.1", 0), ("10.0.0.1", 5)]
    )
    assert parse_addresses(told + b"torn") == [("10.0.0.1", 5)]
    assert parse_addresses(b"") == []
