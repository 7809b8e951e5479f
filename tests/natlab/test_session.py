"""Real agents, each behind its NAT: a fleet spread over continents serves as planned; a member without UDP is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from kafila_planner.ring import Path
from kafila_proto import agent_pb2 as pb
from tests.agent.head.models import TINY_TEMPLATE, give_tokenizer
from tests.natlab.asking import ask
from tests.natlab.fleet import LabFleet
from tests.natlab.lab import Lab

# Round trips of 79 to 115 ms; lima and cusco stand on one LAN.
HOMES = {
    "oslo": ("ordinary", 79),
    "delhi": ("restrictive", 115),
    "nairobi": ("addrfilter", 98),
    "lima": ("ordinary", 91),
}
FLEET = [*HOMES, "cusco"]
THREE = ["oslo", "nairobi", "lima"]
# Five agents at work, on as few cores as there may be.
pytestmark = pytest.mark.timeout(300)
TOKENS = 30

READ = """
import sys, urllib.request
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1]).read().decode())
"""


@pytest.fixture(scope="module")
def lab():
    lab = Lab()
    for name, (kind, rtt_ms) in HOMES.items():
        lab.add(name, kind, rtt_ms=rtt_ms)
    lab.add_to_lan("cusco", "lima")
    with lab:
        yield lab


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    return give_tokenizer(checkpoint("llama"), directory, template=TINY_TEMPLATE)


@pytest.fixture(scope="module")
def fleet(lab, model, tmp_path_factory):
    options = ["--model-dir", str(model.parent), "--threads", "1", "--no-upnp"]
    with LabFleet(lab, tmp_path_factory.mktemp("f"), dict.fromkeys(FLEET, options)) as fleet:
        yield fleet


def test_an_intercontinental_fleet_serves_over_the_paths_that_were_planned(fleet, lab, model, show):
    status = fleet.session(FLEET, model, draft=str(model))
    session = status.session
    assert session.state == pb.SessionStatus.SERVING, session.reason
    plan, members = json.loads(session.plan_json), json.loads(session.fleet_json)["members"]
    facts = {member["name"]: member for member in members}
    assert facts["lima"]["site"] == facts["cusco"]["site"]
    assert len({member["site"] for member in members}) == len(HOMES)
    planned = {(edge["from"], edge["to"]): edge["path"] for edge in plan["edges"]}
    actual = {
        (member.name, edge.peer): (edge.path, edge.rtt_s)
        for member in session.members
        for edge in member.edges
    }
    show(
        "\n".join(
            f"{a:8} {b:8} planned {path:8} actual {actual[a, b][0]:8} {actual[a, b][1] * 1e3:6.1f} ms"
            for (a, b), path in planned.items()
        )
    )
    assert {ends: actual[ends][0] for ends in planned} == planned
    head = plan["head"]
    url = fleet.agent(head).GetStatus(pb.StatusRequest()).api_url
    # The model guesses for itself, and is nearly always right.
    body = {"model": session.model, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 24}
    plain, guessed = ask(
        lab, head, url, [body | {"speculation": way, "ignore_eos": True} for way in (False, True)]
    )
    assert len(plain.token_ids) == 24
    assert guessed.token_ids == plain.token_ids
    metrics = lab.run(
        head, [sys.executable, "-c", READ, fleet.agent(head).GetStatus(pb.StatusRequest()).metrics_url]
    )
    right = re.search(r'kafila_draft_tokens_accepted_total\{proposer="draft"\} (\S+)', metrics)
    assert right is not None
    assert float(right[1]) > 5
    show(f"tokens/s: {plain.tokens_per_s:.1f} plain, {guessed.tokens_per_s:.1f} with guesses")
    shown = _ctl(fleet, head, "session", "status")
    assert "The NAT " in shown
    assert shown.count(" are relayed: ") == len(
        {frozenset(ends) for ends, path in planned.items() if path == Path.RELAYED}
    )
    fleet.leave(FLEET)


def tokens_of(fleet: LabFleet, head: str) -> int:
    """How many the head has sampled so far."""
    return fleet.agent(head).GetStatus(pb.StatusRequest()).session.measured.tokens


@dataclass(frozen=True)
class Ring:
    """Three members who each have a part, and the first ``tokens`` that they answer in peace, one a round."""

    first: pb.Status
    head: str
    tokens: tuple[int, ...]

    def body(self, tokens: int, **options: object) -> dict:
        """A request for the first so many."""
        messages = [{"role": "user", "content": "ab"}]
        asked = {"model": self.first.session.model, "messages": messages, "max_tokens": tokens}
        return asked | {"ignore_eos": True} | options


@pytest.fixture(scope="class")
def ring(fleet, lab, model):
    first = fleet.serve(THREE, model, division="uniform")  # everyone has a part
    ring = Ring(first, json.loads(first.session.plan_json)["head"], ())
    for name in THREE:
        lab.delay(name, 4)  # for as long as nothing depends on it
    (peaceful,) = ask(lab, ring.head, first.api_url, [ring.body(64, speculation=False)])
    for name in THREE:
        lab.delay(name, HOMES[name][1])
    yield replace(ring, tokens=peaceful.token_ids)
    fleet.leave(THREE)


class TestThreeMembers:
    """One session, that nothing may end."""

    @pytest.fixture(autouse=True)
    def it_is_the_same_session_afterwards(self, fleet, ring):
        yield
        for name in THREE:
            session = fleet.agent(name).GetStatus(pb.StatusRequest()).session
            assert (session.state, session.epoch) == (pb.SessionStatus.SERVING, ring.first.session.epoch)

    def test_it_survives_what_networks_do(self, fleet, lab, ring):
        """The same answer as in peace, to the last token, and nobody does anything about it."""
        answered = tokens_of(fleet, ring.head)
        lab.lose("lima", 5.0)
        lab.shuffle("oslo", 0.2, 0.2)
        try:
            with ThreadPoolExecutor(1) as pool:
                troubled = pool.submit(ask, lab, ring.head, ring.first.api_url, [ring.body(TOKENS)])
                _await_tokens(fleet, ring.head, answered + 2)
                lab.cut("oslo", 2.0)
                lab.forget_mappings("nairobi")
                assert not troubled.done()
                assert troubled.result(120)[0].token_ids == ring.tokens[:TOKENS]
        finally:
            lab.lose("lima", 0.0)
            lab.shuffle("oslo", 0.0, 0.0)

    def test_answers_go_on_while_nobody_reaches_the_rendezvous_and_while_a_member_changes_its_address(
        self, fleet, lab, ring
    ):
        """Streams to the rendezvous break, and come back: no client, and no other member, hears of it."""
        for trouble, concerned, tokens in (
            # Longer than a silent stream is believed to live.
            (lambda: lab.cut("rv", 11.0), set(THREE), 64),
            (lambda: lab.move("nairobi"), {"nairobi"}, 24),
        ):
            before, answered = len(fleet.events("rv")), tokens_of(fleet, ring.head)
            body = ring.body(tokens, speculation=False)  # one token each time round the world
            with ThreadPoolExecutor(1) as pool:
                troubled = pool.submit(ask, lab, ring.head, ring.first.api_url, [body])
                _await_tokens(fleet, ring.head, answered + 2)
                assert not troubled.done()
                trouble()
                _await_again(fleet, concerned, before)
                assert troubled.result(120)[0].token_ids == ring.tokens[:tokens]


def _await_tokens(fleet: LabFleet, head: str, tokens: float) -> None:
    """Until the head has sampled so many: an answer is under way."""
    deadline = time.monotonic() + 60
    while tokens_of(fleet, head) < tokens:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _await_again(fleet: LabFleet, names: set[str], before: int) -> None:
    """Until the streams of all of these have gone on anew, by what the rendezvous has logged ``before`` and since."""
    deadline, back = time.monotonic() + 60, set[str]()
    while not names <= back:
        assert time.monotonic() < deadline, back
        time.sleep(0.2)
        events = [event for event in fleet.events("rv")[before:] if event["event"] == "attached"]
        back = {event["member"] for event in events if event["again"]}


def test_a_member_without_udp_is_refused_with_what_to_open(fleet, lab, model):
    lab.block_udp("oslo")
    session = fleet.session(["oslo", "delhi"], model).session
    assert session.state == pb.SessionStatus.CLOSED
    assert "no UDP passes between this machine and rv" in session.reason
    assert "7470" in session.reason
    assert "No UDP passes" in _ctl(fleet, "oslo", "probe")


def _ctl(fleet: LabFleet, name: str, *command: str) -> str:
    arguments = [
        sys.executable,
        "-m",
        "kafila_agent.ctl.main",
        "--state-dir",
        str(fleet.state_dir(name)),
        *command,
    ]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout
