"""The agent's stream against a real rendezvous, against none, and against what is no rendezvous."""

from __future__ import annotations

import asyncio
import socket
import time

import grpc
import pytest

from kafila_agent.control.link import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    PROMPT_DELAY_S,
    PROMPT_S,
    LinkError,
    LinkRefused,
    LinkState,
    RendezvousLink,
)
from kafila_agent.control.pin import PinMismatch, Unreachable
from kafila_agent.control.route import has_address, source_address
from kafila_agent.identity import load_identity
from kafila_proto import VERSION
from kafila_proto import rendezvous_pb2 as pb
from tests.ports import free_port

PATIENCE_S = 10.0


@pytest.fixture
async def make_link(tmp_path):
    made = []

    def make(address: str, **options) -> RendezvousLink:
        identity = load_identity(tmp_path / "agent", "desk")
        link = RendezvousLink(address, identity, tmp_path / "agent", **options)
        made.append(link)
        return link

    yield make
    for link in made:
        await link.close()


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (it is the other side that changes)
            await asyncio.sleep(0.01)


async def test_attached_and_pinned(start, make_link, tmp_path):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    attachment = await link.attach()
    assert attachment.udp_port == server.udp_port
    assert attachment.rendezvous_fingerprint == server.certificate.fingerprint
    assert (attachment.host, attachment.version) == ("127.0.0.1", VERSION)
    assert link.state is LinkState.ATTACHED
    (pin,) = (tmp_path / "agent" / "pins").iterdir()
    assert pin.read_text().strip() == server.certificate.fingerprint.hex()
    (attached,) = server.registry.attached.values()
    assert (attached.name, attached.source) == ("desk", "127.0.0.1")


async def test_messages_come_in_order_and_answers_go_out(start, make_link):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    heard = []
    link.on_message = heard.append
    await link.attach()
    for number in range(20):
        link.post(pb.FromAgent(join=pb.JoinSession(number=str(number))))
    await until(lambda: len(heard) == 20)
    codes = [message.problem.code for message in heard]
    assert codes == ["not_found"] * 10 + ["limit"] * 10


async def test_another_certificate_at_the_same_address_is_refused(start, make_link, tmp_path):
    first = await start()
    link = make_link(f"127.0.0.1:{first.grpc_port}")
    await link.attach()
    await link.close()
    await first.close()
    second = await start(first.grpc_port, "other")
    link = make_link(f"127.0.0.1:{first.grpc_port}")
    with pytest.raises(PinMismatch) as mismatch:
        await link.attach()
    message = str(mismatch.value)
    assert first.certificate.fingerprint.hex() in message
    assert second.certificate.fingerprint.hex() in message
    (pin,) = (tmp_path / "agent" / "pins").iterdir()
    assert str(pin) in message
    assert second.registry.attached == {}
    pin.unlink()
    await link.attach()


async def test_a_fingerprint_in_the_address_is_checked_at_first_contact(start, make_link):
    server = await start()
    place = f"127.0.0.1:{server.grpc_port}"
    with pytest.raises(PinMismatch, match="00" * 32):
        await make_link(f"{place}#{'00' * 32}").attach()
    await make_link(f"{place}#{server.certificate.fingerprint.hex()}").attach()


async def test_nobody_there_is_said_at_once_with_what_to_check(make_link):
    port = free_port()
    started = time.monotonic()
    with pytest.raises(Unreachable) as unreachable:
        await make_link(f"127.0.0.1:{port}").attach()
    assert time.monotonic() - started < 5
    for part in (f"127.0.0.1:{port}", "refused", "kafila-rendezvous runs there", f"TCP port {port} is open"):
        assert part in str(unreachable.value)


async def test_a_name_that_means_nothing(make_link):
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid:7470"):
        await make_link("no-such-host.invalid").attach()


async def test_silence_is_given_up(make_link, monkeypatch):
    monkeypatch.setattr("kafila_agent.control.link.ATTACH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: no answer"):
            await make_link(f"127.0.0.1:{port}").attach()


async def test_what_speaks_no_tls_is_named(make_link):
    async def greet(reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n" * 10)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port} does not speak TLS"):
        await make_link(f"127.0.0.1:{port}").attach()
    server.close()


async def test_a_proxy_of_the_environment_is_not_asked(start, make_link, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    server = await start()
    await make_link(f"127.0.0.1:{server.grpc_port}").attach()


async def test_another_protocol_is_refused_naming_both(start, make_link, monkeypatch):
    server = await start()
    monkeypatch.setattr("kafila_agent.control.link.PROTOCOL", 3)
    with pytest.raises(LinkRefused, match=rf"Kafila {VERSION} \(protocol 3\).*{VERSION} \(protocol 2\)"):
        await make_link(f"127.0.0.1:{server.grpc_port}").attach()


async def test_lost_then_attached_again(start, make_link):
    server = await start()
    delays, lost, again = [], [], []
    rested = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        await rested.wait()

    link = make_link(f"127.0.0.1:{server.grpc_port}", sleep=sleep, jitter=lambda: 1.0)
    link.on_lost, link.on_attached = lost.append, again.append
    await link.attach()
    await server.close()
    await until(lambda: lost)
    assert f"127.0.0.1:{server.grpc_port}" in lost[0]
    assert link.state is LinkState.WAITING
    link.post(pb.FromAgent(leave=pb.Leave()))
    await link.flush()  # it has nobody to go to
    await start(server.grpc_port)
    rested.set()
    await until(lambda: again)
    assert link.state is LinkState.ATTACHED
    assert link.problem == ""
    assert delays == [FIRST_DELAY_S]
    assert not again[0].goes_on  # the other rendezvous knows nothing of it
    link.post(pb.FromAgent(leave=pb.Leave()))
    await link.flush()


async def test_it_waits_longer_each_time_and_says_why(make_link):
    delays = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) == 9:
            await asyncio.Event().wait()

    port = free_port()
    link = make_link(f"127.0.0.1:{port}", sleep=sleep, jitter=lambda: 0.0)
    link.keep_trying()
    await until(lambda: len(delays) == 9)
    assert delays == [min(FIRST_DELAY_S * 2**i, LONGEST_DELAY_S) / 2 for i in range(9)]
    assert f"127.0.0.1:{port}" in link.problem
    assert link.state is LinkState.WAITING


async def test_after_a_loss_it_tries_again_soon_and_later_and_later_only_then(start, make_link):
    server = await start()
    delays = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        if sum(delays) > 100:
            await asyncio.Event().wait()

    link = make_link(f"127.0.0.1:{server.grpc_port}", sleep=sleep, jitter=lambda: 1.0)
    await link.attach()
    await server.close()
    await until(lambda: sum(delays) > 100)
    prompt = [delay_s for delay_s in delays if delay_s <= PROMPT_DELAY_S]
    assert PROMPT_S <= sum(prompt) <= PROMPT_S + PROMPT_DELAY_S
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S


async def test_an_address_that_is_gone_is_noticed_at_once_and_another_stream_comes_from_the_new_one(
    start, make_link, monkeypatch
):
    """The old stream would be silent for seconds, and nothing would break it off."""
    has, ways_out = {"192.0.2.10"}, ["192.0.2.10"]
    monkeypatch.setattr("kafila_agent.control.link.has_address", lambda address: address in has)
    monkeypatch.setattr(
        "kafila_agent.control.link.source_address", lambda _: ways_out[0] if ways_out else None
    )
    monkeypatch.setattr("kafila_agent.control.link._LOOK_S", 0.01)
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    lost, again = [], []
    link.on_lost, link.on_attached = lost.append, again.append
    await link.attach()
    has.clear()
    ways_out.clear()
    await asyncio.sleep(0.05)  # no way out at all: perhaps it comes back
    has.add("192.0.2.10")
    ways_out.append("198.51.100.1")  # another way beside the old one, such as a cable
    await asyncio.sleep(0.05)
    assert (link.state, lost) == (LinkState.ATTACHED, [])
    has.remove("192.0.2.10")
    has.add("198.51.100.1")
    await until(lambda: again)
    assert ["address 192.0.2.10" in reason for reason in lost] == [True]
    await asyncio.sleep(0.05)
    assert link.state is LinkState.ATTACHED


def test_an_address_of_this_machine_and_the_one_that_packets_leave_from_are_known():
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert source_address("::1") in ("::1", None)  # None on a machine without IPv6
    assert source_address("255.255.255.255") is None  # may not be sent to
    assert has_address("127.0.0.1")
    assert not has_address("192.0.2.10")
    assert not has_address("2001:db8::99")


async def test_what_piles_up_while_nobody_hears_it_has_an_end(start, make_link):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    again = []
    link.on_attached = again.append
    await link.attach()
    large = pb.FromAgent(join=pb.JoinSession(number="1" * (64 << 10)))
    for _ in range(40):  # without yielding
        link.post(large)
    assert link._association.kept < 40
    await until(lambda: again)
    assert not again[0].goes_on


async def test_closed_is_closed(start, make_link):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    await link.attach()
    with pytest.raises(LinkError, match="attached already"):
        await link.attach()
    await link.close()
    await link.close()
    await until(lambda: not server.registry.attached)
    with pytest.raises(LinkError, match="closed already"):
        await link.attach()


async def test_what_others_say_of_themselves_is_fit_to_be_shown(start, make_link, monkeypatch):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    heard = []
    link.on_message = heard.append
    await link.attach()
    edge = pb.EdgeState(path="\x1b[2J")
    progress = pb.Progress(state=99, detail="\x1b]0;title\x07\n", edges=[edge])
    (agent,) = server.registry.attached
    server.service._send(agent, pb.ToAgent(member=pb.MemberUpdate(progress=progress)))
    await until(lambda: heard)
    shown = heard[0].member.progress
    assert (shown.state, shown.detail, shown.edges[0].path) == (0, " ]0;title  ", " [2J")


async def test_the_words_with_which_a_stream_ends_are_fit_to_be_shown(start, make_link, monkeypatch):
    server = await start()

    async def end(context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "\x1b[2Jgone\n")

    monkeypatch.setattr(server.service, "_challenge", end)
    with pytest.raises(Unreachable, match="gone") as broken:
        await make_link(f"127.0.0.1:{server.grpc_port}").attach()
    assert str(broken.value).isprintable()


async def test_an_update_beyond_reason_is_not_kept(start, make_link):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    heard = []
    link.on_message = heard.append
    await link.attach()
    (agent,) = server.registry.attached
    for edges in (10_000, 1):
        progress = pb.Progress(state=pb.PROBING, edges=[pb.EdgeState(peer=bytes(32))] * edges)
        server.service._send(agent, pb.ToAgent(member=pb.MemberUpdate(progress=progress)))
    await until(lambda: heard)
    assert [len(message.member.progress.edges) for message in heard] == [1]


async def test_a_handler_that_fails_costs_its_message_only(start, make_link):
    server = await start()
    link = make_link(f"127.0.0.1:{server.grpc_port}")
    heard = []

    def handle(message: pb.ToAgent) -> None:
        heard.append(message)
        if len(heard) == 1:
            raise RuntimeError("a fault in the agent")

    link.on_message = handle
    await link.attach()
    for _ in range(2):
        link.post(pb.FromAgent(join=pb.JoinSession(number="1")))
    await until(lambda: len(heard) == 2)
    assert link.state is LinkState.ATTACHED
