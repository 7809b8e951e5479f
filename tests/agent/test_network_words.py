"""What `session status` says of the network, and what the two programs are told of it on their command lines."""

from __future__ import annotations

import pytest
import typer

from kafila_agent.main import parse_address
from kafila_agent.view.sentences import network_lines
from kafila_planner.facts import Behaviour, MemberFacts, member_to_json
from kafila_rendezvous.server import Config, ConfigError, start_rendezvous

EI, AD, APD = Behaviour
PLAN = {"edges": [{"from": "a", "to": "b", "path": "relayed"}, {"from": "b", "to": "a", "path": "relayed"}]}


def fleet(*mappings: Behaviour) -> dict:
    members = (
        MemberFacts(name, mapping=m, filtering=APD, nat=name) for name, m in zip("ab", mappings, strict=True)
    )
    return {"members": [member_to_json(member) for member in members]}


def test_a_relayed_edge_says_why_and_what_would_make_it_direct():
    nat, edge = network_lines(PLAN, {}, fleet(EI, APD), "a")
    assert nat.startswith("The NAT shows every destination the same address")
    assert edge.startswith("a and b are relayed: ")
    assert edge.endswith("To make it direct, turn on UPnP on the router of b or a, or get IPv6 for both.")


def test_a_direct_edge_needs_no_words():
    paths = {("a", "b"): ("direct", 0.1), ("b", "a"): ("direct", 0.1)}
    assert len(network_lines(PLAN, paths, fleet(EI, APD), "a")) == 1


def test_an_edge_that_ought_to_be_direct_is_told_as_such():
    paths = {("a", "b"): ("relayed", 0.1), ("b", "a"): ("relayed", 0.1)}
    _, line = network_lines(PLAN, paths, fleet(EI, EI), "a")
    assert line.startswith("a and b are relayed although both map")
    assert "firewall" in line


@pytest.mark.parametrize(
    ("text", "address"),
    [("stun.example.org:3478", ("stun.example.org", 3478)), ("[2001:db8::1]:3478", ("2001:db8::1", 3478))],
)
def test_stun_servers_are_host_and_port(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["stun.example.org", "stun.example.org:x", ":3478", "a:0", "a:70000"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(typer.BadParameter, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "second"),
    [("0.0.0.0", "127.0.0.2"), ("::", "127.0.0.2"), ("127.0.0.1", "::1"), ("127.0.0.1",) * 2],
)
async def test_a_second_address_must_be_another_of_one_family(tmp_path, host, second):
    with pytest.raises(ConfigError, match="--second-host"):
        await start_rendezvous(
            Config(state_dir=tmp_path, host=host, second_hosts=(second,), port=0, metrics_port=0)
        )
