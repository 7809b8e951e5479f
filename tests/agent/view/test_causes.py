"""Which machine holds a session back, and why."""

from __future__ import annotations

import pytest

from kafila_agent.view.causes import causes
from kafila_proto import agent_pb2 as pb
from tests.agent.view.sessions import NAMES, PLAN, serving_session, session


@pytest.fixture
def serving() -> pb.SessionStatus:
    return serving_session()


def test_nothing_holds_back_what_runs_as_planned(serving):
    assert causes(serving) == []


def test_a_slow_stage_is_named_with_its_figures(serving):
    serving.members[1].measured_stage_s = 0.05
    ((finding, step),) = causes(serving)
    assert finding == "laptop takes 50 ms for its blocks, predicted 20 ms"
    assert "laptop" in step


def test_a_relayed_edge_that_should_be_direct_and_a_slow_line(serving):
    edge = serving.members[2].edges[0]
    edge.path, edge.rtt_s = "relayed", 0.3
    serving.measured.network_share = 0.8
    relayed, slow = causes(serving)
    assert f"tower and {edge.peer} are relayed although a direct path was predicted" in relayed[0]
    assert slow[0].startswith("80% of a token's time is network")
    assert f"between tower and {edge.peer} (relayed, 300 ms)" in slow[0]


def test_who_is_awaited_and_with_which_code():
    forming = session("FORMING", code="482913-otter-lamp")
    forming.members.add(name="desk", state="WAITING")
    forming.members.add(name="laptop", state="PROBING")
    awaited, measuring = causes(forming)
    assert awaited == ("1 of 3 members are not in yet", "they join with 482913-otter-lamp")
    assert measuring[0] == "laptop still measures itself"


def test_an_edge_that_does_not_come_up():
    connecting = session("CONNECTING")
    for name in NAMES:
        member = connecting.members.add(name=name)
        for edge in PLAN["edges"]:
            if edge["from"] == name != "laptop":
                member.edges.add(peer=edge["to"], path="direct")
    ((finding, step),) = causes(connecting)
    assert finding.startswith("no edge from laptop to ")
    assert "doctor" in step


def test_who_loads_slowest_and_why_it_is_over():
    loading = session("LOADING")
    loading.members.add(name="desk", loaded_bytes=90, total_bytes=100)
    loading.members.add(name="laptop", loaded_bytes=20, total_bytes=100)
    loading.members.add(name="tower", loaded_bytes=5, total_bytes=5)
    ((finding, _),) = causes(loading)
    assert finding.startswith("laptop has read 20%")
    closed = session("CLOSED", reason="laptop left the session")
    assert causes(closed)[0][0] == "the session is over: laptop left the session"
    assert causes(pb.SessionStatus()) == []
