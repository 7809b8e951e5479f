"""What answers of both families come to, and the words for it."""

from __future__ import annotations

import asyncio

from kafila_agent.control.link import Attachment
from kafila_agent.edge.candidate import Candidate, CandidateKind
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.nat.discovery import Discovered
from kafila_agent.nat.reachability import Reachability, conclude, measure_reachability, opaque
from kafila_agent.nat.words import describe_network, no_udp
from kafila_planner.facts import Behaviour
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import serve_datagrams

EI, AD, APD = Behaviour
HOST = Candidate(CandidateKind.HOST, "192.168.1.5", 4000)
OUTER = ("198.51.100.7", 20000)
BEHIND = Discovered(OUTER, True, EI, APD, False, True)
SIX = Discovered(("2001:db8::5", 4000), False, EI, APD, None, True)
THERE = Attachment("rv.example.org", 7470, b"", "")


def test_a_member_behind_a_nat_is_reached_at_its_outer_address_too():
    reach = conclude([HOST], 0.05, [BEHIND], None)
    assert reach.candidates == (HOST, Candidate(CandidateKind.SERVER_REFLEXIVE, *OUTER))
    assert (reach.mapping, reach.filtering, reach.hairpin) == (EI, APD, False)
    assert reach.nat == opaque(OUTER[0]) != OUTER[0]
    assert (reach.udp, reach.ipv4, reach.ipv6) == (True, True, False)


def test_both_families_count_each_for_itself():
    own = Candidate(CandidateKind.HOST, "2001:db8::5", 4000)
    reach = conclude([HOST, own], 0.05, [SIX, BEHIND], None)
    assert (reach.ipv4, reach.ipv6, reach.mapping) == (True, True, EI)
    alone = conclude([own], 0.05, [SIX, Discovered(None)], None)
    assert (alone.ipv4, alone.ipv6, alone.mapping, alone.nat) == (False, True, None, None)
    assert alone.candidates == (own,)
    translated = Discovered(("2001:db8::99", 5), True, EI, APD, None, True)
    assert not conclude([own], 0.05, [translated], None).ipv6


def test_a_port_of_the_outermost_router_lets_everyone_in():
    mapped = (OUTER[0], 4000)
    reach = conclude([HOST], 0.05, [BEHIND], mapped)
    assert Candidate(CandidateKind.PORT_MAPPED, *mapped) in reach.candidates
    assert reach.filtering is EI


def test_a_port_of_a_router_behind_another_is_worth_nothing():
    reach = conclude([HOST], 0.05, [BEHIND], ("100.64.3.9", 4000))
    assert reach.filtering is APD
    assert CandidateKind.PORT_MAPPED not in {c.kind for c in reach.candidates}


def test_without_any_answer_udp_does_not_pass():
    reach = conclude([HOST], None, [Discovered(None), Discovered(None)], None)
    assert not reach.udp
    (sentence,) = describe_network(reach, THERE)
    assert sentence == f"{no_udp(THERE)[0].upper()}{no_udp(THERE)[1:]}."
    assert "rv.example.org ports 7470 and 7471" in sentence


def test_a_second_port_that_does_not_answer_is_named():
    blocked = Reachability((HOST,), 0.05, mapping=None, filtering=None, nat="x", second_port=False)
    assert any(
        "UDP port 7471 of rv.example.org does not answer" in s for s in describe_network(blocked, THERE)
    )
    assert len(describe_network(conclude([HOST], 0.05, [BEHIND], None), THERE)) == 1
    assert "not attached" in describe_network(blocked, None)[0]


async def test_on_one_machine_it_takes_no_time(members):
    server = await serve_datagrams(Circuits(), ["127.0.0.1"], 0)
    endpoint = EdgeEndpoint.open(members[0], "127.0.0.1")
    try:
        reach = await measure_reachability(endpoint, "127.0.0.1", server.port)
    finally:
        await endpoint.close()
        server.close()
    assert reach.candidates == (Candidate(CandidateKind.HOST, *endpoint_address(reach)),)
    assert (reach.udp, reach.mapping, reach.filtering, reach.nat, reach.second_port) == (
        True,
        EI,
        AD,
        None,
        True,
    )
    assert reach.rendezvous_rtt_s is not None


async def test_two_that_measure_at_once_both_hear_the_answers(members):
    server = await serve_datagrams(Circuits(), ["127.0.0.1"], 0)
    endpoint = EdgeEndpoint.open(members[0], "127.0.0.1")
    try:
        first = asyncio.create_task(measure_reachability(endpoint, "127.0.0.1", server.port))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        both = await asyncio.gather(first, measure_reachability(endpoint, "127.0.0.1", server.port))
        assert endpoint.stun_listeners == []
    finally:
        await endpoint.close()
        server.close()
    assert [(reach.udp, reach.mapping, reach.filtering, reach.second_port) for reach in both] == [
        (True, EI, AD, True)
    ] * 2


def endpoint_address(reach: Reachability) -> tuple[str, int]:
    return reach.candidates[0].host, reach.candidates[0].port
