"""Endpoints over real sockets on loopback, with the rendezvous's own datagram server between them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random

import pytest

from kafila_agent.edge.candidate import Candidate, CandidateKind
from kafila_agent.edge.check import CheckKind
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.errors import EdgeError
from kafila_proto import relay, stun
from kafila_proto.udp_socket import open_udp_socket
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import serve_datagrams

HOST = "127.0.0.1"


class Lab:
    """A rendezvous, and endpoints that have entered one session."""

    def __init__(self, rendezvous, session_of):
        self.rendezvous = rendezvous
        self.relay_address = (HOST, rendezvous.port)
        self.endpoints: list[EdgeEndpoint] = []
        self.endpoint_of: dict[bytes, EdgeEndpoint] = {}
        self._session_of = session_of

    def enter(self, members, **options) -> list[EdgeEndpoint]:
        for member in members:
            endpoint = EdgeEndpoint.open(member, HOST, **options)
            endpoint.enter(self._session_of(member, *(m for m in members if m is not member)))
            self.endpoints.append(endpoint)
            self.endpoint_of[member.fingerprint] = endpoint
        return self.endpoints

    def request_circuit(self, member):
        def request(peer: bytes) -> None:
            now = asyncio.get_running_loop().time()
            for own, other in ((member.fingerprint, peer), (peer, member.fingerprint)):
                grant = self.rendezvous.circuits.grant(b"session", 1, own, other, now)
                self.endpoint_of[own].take_circuit(other, grant)

        return request

    async def connect(self, endpoint, member, peer_endpoint, peer):
        return await endpoint.connect(
            peer.fingerprint,
            await peer_endpoint.candidates(),
            self.request_circuit(member),
            self.relay_address,
        )


@pytest.fixture
async def lab(session_of):
    rendezvous = await serve_datagrams(Circuits(), [HOST], 0)
    lab = Lab(rendezvous, session_of)
    yield lab
    for endpoint in lab.endpoints:
        await endpoint.close()
    rendezvous.close()


async def both(lab, members, **options):
    """The edge between two members, as each of them has it."""
    one, two = members[:2]
    first, second = lab.enter([one, two], **options)
    return await asyncio.gather(lab.connect(first, one, second, two), lab.connect(second, two, first, one))


async def receive(edge, count: int, within_s: float = 20.0) -> list[bytes]:
    """The next ``count`` frames of ``edge``."""
    frames: list[bytes] = []
    enough = asyncio.Event()

    def take(frame) -> None:
        frames.append(bytes(frame))
        if len(frames) == count:
            enough.set()

    edge.on_frame = take
    await asyncio.wait_for(enough.wait(), within_s)
    return frames


async def until(holds) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def closed(edge, within_s: float = 5.0) -> str:
    """Why ``edge`` was lost."""
    reason = asyncio.get_running_loop().create_future()
    edge.on_closed = reason.set_result
    return await asyncio.wait_for(reason, within_s)


@pytest.mark.parametrize(
    "options", [{}, {"fast_core": False}, {"relay_only": True}, {"datagram_bytes": (1452, 1200)}]
)
async def test_a_thousand_frames_arrive_whole_and_in_order(lab, members, options):
    ours, theirs = await both(lab, members, **options)
    assert ours.path == theirs.path == ("relayed" if options.get("relay_only") else "direct")
    assert (ours.peer, theirs.peer) == (members[1].name, members[0].name)
    sizes = random.Random(5)
    frames = [os.urandom(int(sizes.paretovariate(0.6)) % 3000) for _ in range(1000)]
    frames[500] = os.urandom(2 << 20)
    frames[0] = b""
    for frame in frames:
        ours.send(frame)
        theirs.send(frame)
    assert await asyncio.gather(receive(theirs, 1000), receive(ours, 1000)) == [frames, frames]
    assert ours.frames_sent == theirs.frames_received == 1000
    assert ours.bytes_sent == theirs.bytes_received == sum(map(len, frames))


async def test_three_members_make_a_ring(lab, members):
    ring = members[:3]
    endpoints = lab.enter(ring)
    edges = {}

    async def open_edge(i: int, j: int) -> None:
        edges[i, j] = await lab.connect(endpoints[i], ring[i], endpoints[j], ring[j])

    await asyncio.gather(*(open_edge(i, (i + step) % 3) for i in range(3) for step in (1, 2)))
    for i in (1, 2):
        edges[i, i - 1].on_frame = edges[i, (i + 1) % 3].send
    edges[0, 1].send(b"round")
    assert await receive(edges[0, 2], 1) == [b"round"]


async def test_every_call_for_a_pair_gives_the_same_edge(lab, members):
    one, two = members[:2]
    first, second = lab.enter([one, two])
    edges = await asyncio.gather(
        *(lab.connect(first, one, second, two) for _ in range(2)),
        *(lab.connect(second, two, first, one) for _ in range(2)),
    )
    assert edges[0] is edges[1]
    assert edges[2] is edges[3]
    assert await lab.connect(first, one, second, two) is edges[0]
    assert first.edges == [edges[0]]


async def test_frames_that_come_before_anyone_takes_them_wait(lab, members):
    ours, theirs = await both(lab, members)
    for i in range(3):
        ours.send(bytes([i]))
    await until(lambda: theirs.frames_received == 3)
    assert await receive(theirs, 3) == [b"\0", b"\1", b"\2"]


async def test_an_edge_measures_its_round_trip(lab, members):
    ours, theirs = await both(lab, members)
    await until(lambda: ours.rtt_s is not None and theirs.rtt_s is not None)
    assert 0 < ours.rtt_s < 1


async def test_leaving_tells_the_peer_at_once_and_only_the_peer(lab, members):
    ours, theirs = await both(lab, members)
    ours.on_closed = pytest.fail
    lab.endpoints[0].leave("going home")
    assert await closed(theirs, 1.0) == "going home"
    with pytest.raises(EdgeError, match="going home"):
        ours.send(b"")
    with pytest.raises(EdgeError, match="going home"):
        theirs.send(b"")


async def test_a_new_epoch_closes_what_was_before_and_connects_anew(lab, members, session_of):
    _, theirs = await both(lab, members)
    one, two = members[:2]
    lab.endpoints[0].enter(session_of(one, two, epoch=2))
    assert await closed(theirs, 1.0) == "a new plan is in force"
    lab.endpoints[1].enter(session_of(two, one, epoch=2))
    ours, theirs = await asyncio.gather(
        lab.connect(lab.endpoints[0], one, lab.endpoints[1], two),
        lab.connect(lab.endpoints[1], two, lab.endpoints[0], one),
    )
    ours.send(b"epoch 2")
    assert await receive(theirs, 1) == [b"epoch 2"]


async def test_a_member_of_a_stale_epoch_gets_no_answer(lab, members, session_of):
    one, two = members[:2]
    first, second = lab.enter([one, two])
    second.enter(session_of(two, one, epoch=2))
    seeking = asyncio.create_task(first.connect(two.fingerprint, await second.candidates()))
    await until(lambda: second.ignored_datagrams >= 2)
    first.leave("enough")
    with pytest.raises(EdgeError, match="enough"):
        await seeking
    assert second.edges == []


async def liar_and_honest(lab, claimed, victim, liar, session_of):
    """``liar`` knows the session's id and the roster, as a lying rendezvous would, and says it is ``claimed``."""
    stranger = dataclasses.replace(liar, fingerprint=claimed.fingerprint, name=claimed.name)
    for member, other in ((stranger, victim), (victim, claimed)):
        endpoint = EdgeEndpoint.open(member, HOST)
        endpoint.enter(session_of(member, other))
        lab.endpoints.append(endpoint)
    return lab.endpoints


async def test_a_stranger_who_dials_is_refused(lab, members, session_of):
    one, two, stranger = members[:3]
    liar, honest = await liar_and_honest(lab, one, two, stranger, session_of)
    with pytest.raises(EdgeError, match="not this member's"):
        await liar.connect(two.fingerprint, await honest.candidates())
    assert honest.edges == []


async def test_a_stranger_who_is_dialled_is_left(lab, members, session_of):
    one, two, stranger = members[:3]
    liar, honest = await liar_and_honest(lab, two, one, stranger, session_of)
    with pytest.raises(EdgeError, match="another machine answers"):
        await honest.connect(two.fingerprint, await liar.candidates())
    assert liar.edges == []


async def test_nobody_outside_the_roster_is_asked_for(lab, members):
    first, _ = lab.enter(members[:2])
    with pytest.raises(EdgeError, match="roster"):
        await first.connect(members[3].fingerprint, [])


async def test_garbage_is_ignored_and_the_edge_goes_on(lab, members):
    ours, theirs = await both(lab, members)
    endpoint = lab.endpoints[1]
    noise = random.Random(7)
    heads = [
        b"",
        b"\x9bkc",
        b"\x9bkr",
        b"\x9bkr\x04",
        b"\0\1\0\0\x21\x12\xa4\x42",
        b"\xc3\0\0\0\1\x08",
        b"\x40",
    ]
    key = lab.endpoints[0]._neighbours[members[1].fingerprint].link.key
    check = key.encode(CheckKind.REQUEST, b"8 bytes!", from_dialer=True, size=1200)
    with open_udp_socket(HOST, 0) as stranger:
        for i in range(300):
            head = heads[i % len(heads)]
            stranger.sendto(head + noise.randbytes(noise.randrange(1400)), endpoint.local_address)
        stranger.sendto(check[:-1], endpoint.local_address)
        stranger.sendto(b"", endpoint.local_address)
        stranger.sendto(relay.data_header(b"unknown!") + check, endpoint.local_address)
    ours.send(b"still here")
    assert await receive(theirs, 1) == [b"still here"]
    assert endpoint.ignored_datagrams > 250


async def test_an_edge_follows_its_end_to_another_port(lab, members):
    """What a NAT does that forgets a mapping: the same agent is suddenly seen from another port."""
    ours, theirs = await both(lab, members)
    endpoint, loop = lab.endpoints[0], asyncio.get_running_loop()
    loop.remove_reader(endpoint._udp)
    endpoint._udp.close()
    endpoint._udp = open_udp_socket(HOST, 0)
    loop.add_reader(endpoint._udp, endpoint._receive)
    ours.send(b"from elsewhere")
    assert await receive(theirs, 1) == [b"from elsewhere"]
    theirs.send(b"found you")
    assert await receive(ours, 1) == [b"found you"]
    assert not ours.closed


async def test_an_endpoint_that_vanishes_is_missed(lab, members, monkeypatch):
    monkeypatch.setattr("kafila_agent.edge.quic.IDLE_TIMEOUT_S", 0.5)
    _, theirs = await both(lab, members)
    endpoint = lab.endpoints[0]
    asyncio.get_running_loop().remove_reader(endpoint._udp)
    endpoint._send = lambda data, address: None
    assert "no answer" in await closed(theirs)


async def test_where_no_path_is_and_no_rendezvous_the_reason_says_so(lab, members, monkeypatch):
    monkeypatch.setattr("kafila_agent.edge.link.CONNECT_S", 0.3)
    one, two = members[:2]
    first, _ = lab.enter([one, two], direct_s=0.1)
    with pytest.raises(EdgeError, match=f"no edge to {two.name}: no path .* no rendezvous to relay"):
        await first.connect(two.fingerprint, [])


async def test_what_the_rendezvous_says_when_it_grants_no_circuit_is_told(lab, members, monkeypatch):
    monkeypatch.setattr("kafila_agent.edge.link.CONNECT_S", 0.3)
    one, two = members[:2]
    first, _ = lab.enter([one, two], relay_only=True)

    def refuse(peer: bytes) -> None:
        first.refuse_circuits("this rendezvous is full")

    with pytest.raises(EdgeError, match="this rendezvous is full"):
        await first.connect(two.fingerprint, [], refuse, lab.relay_address)


async def test_candidates_are_the_sockets_own_and_where_it_is_seen_from(lab, members):
    (endpoint,) = lab.enter(members[:1])
    port = endpoint.local_address[1]
    assert await endpoint.candidates(lab.relay_address) == [Candidate(CandidateKind.HOST, HOST, port)]


async def test_a_socket_for_every_interface_offers_them_all_and_both_families_connect(
    lab, members, session_of
):
    one, two = members[:2]
    for member, other in ((one, two), (two, one)):
        endpoint = EdgeEndpoint.open(member)
        endpoint.enter(session_of(member, other))
        lab.endpoints.append(endpoint)
    first, second = lab.endpoints
    candidates = await first.candidates(lab.relay_address)
    assert HOST in {candidate.host for candidate in candidates}  # the rendezvous is on this machine
    for host in (HOST, "::1"):
        first.enter(session_of(one, two))
        second.enter(session_of(two, one))
        address = [Candidate(CandidateKind.HOST, host, second.local_address[1])]
        ours, theirs = await asyncio.gather(
            first.connect(two.fingerprint, address), second.connect(one.fingerprint, [])
        )
        ours.send(host.encode())
        assert await receive(theirs, 1) == [host.encode()]


async def test_the_round_trip_to_the_reflector_is_measured_or_unknown(lab, members):
    (endpoint,) = lab.enter(members[:1])
    assert 0 < await endpoint.measure_rtt_s(lab.relay_address) < 0.5
    assert await endpoint.reflect(lab.relay_address) == endpoint.local_address
    with open_udp_socket(HOST, 0) as silent:
        assert await endpoint._reflections.reflect(silent.getsockname(), (0.01,)) is None
    forged = stun.encode_request()[0]
    endpoint._reflections.receive_datagram(forged, lab.relay_address)
