"""The rendezvous's sockets, with real datagrams over loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kafila_proto import relay, stun
from kafila_proto.udp_socket import open_udp_socket
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import serve_datagrams
from kafila_rendezvous.limits import Allowance
from tests.ports import free_port


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request):
    return request.param


@pytest.fixture
async def server(host):
    server = await serve_datagrams(Circuits(), [host], 0)
    yield server
    server.close()


class Client:
    """A blocking-free UDP socket that asks and waits."""

    def __init__(self, host: str):
        self.udp = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.setblocking(False)
        self.udp.bind((host, 0))
        self.address = self.udp.getsockname()[:2]

    async def receive(self) -> tuple[bytes, int]:
        data, source = await asyncio.wait_for(asyncio.get_running_loop().sock_recvfrom(self.udp, 65535), 5)
        return data, source[1]

    async def until(self, holds) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def ask(self, data: bytes, host: str, port: int) -> tuple[bytes, int]:
        self.udp.sendto(data, (host, port))
        return await self.receive()


@pytest.fixture
def clients(host):
    clients = [Client(host) for _ in range(2)]
    yield clients
    for client in clients:
        client.udp.close()


async def bind(grant, client, host: str, port: int) -> relay.RelayKind:
    """Bind the client's address, with the token that proves it; what the last answer is."""
    token = relay.NO_TOKEN
    for counter in (1, 2):
        data = relay.encode_binding(relay.RelayKind.BIND, grant.circuit_id, counter, grant.key, token)
        answer = relay.parse_binding((await client.ask(data, host, port))[0])
        token = answer.token
    return answer.kind


async def test_both_ports_tell_the_same_address(server, clients, host):
    client = clients[0]
    for port in (server.port, server.port + 1):
        answer, answered_from = await client.ask(stun.encode_request()[0], host, port)
        assert stun.mapped_address(stun.parse_stun(answer)) == client.address
        assert answered_from == port
    assert server.reflected_datagrams == 2


async def test_an_answer_comes_from_the_other_port_when_asked_for(server, clients, host):
    request = stun.encode_request(stun.CHANGE_PORT)[0]
    assert (await clients[0].ask(request, host, server.port))[1] == server.port + 1
    assert (await clients[0].ask(request, host, server.port + 1))[1] == server.port


async def test_a_circuit_carries_datagrams_between_two_clients(server, clients, host):
    now = asyncio.get_running_loop().time()
    members = [b"a", b"b"]
    grants = [server.circuits.grant(b"s", 1, m, p, now) for m, p in zip(members, members[::-1], strict=True)]
    kinds = [
        await bind(grant, client, host, server.port) for grant, client in zip(grants, clients, strict=True)
    ]
    assert kinds == [relay.RelayKind.HALF_BOUND, relay.RelayKind.BOUND]
    datagrams = [relay.data_header(grants[0].circuit_id) + bytes([i]) * 1200 for i in range(40)]
    for datagram in datagrams:
        clients[0].udp.sendto(datagram, (host, server.port))
    assert [(await clients[1].receive())[0] for _ in datagrams] == datagrams
    clients[1].udp.sendto(datagrams[7], (host, server.port))
    assert (await clients[0].receive())[0] == datagrams[7]


async def test_strangers_get_no_answer(server, clients, host):
    for data in (b"", b"x", b"\xc0" * 1300, relay.data_header(b"unknown!") + b"x", bytes(20)):
        clients[0].udp.sendto(data, (host, server.port))
    answer, _ = await clients[0].ask(stun.encode_request()[0], host, server.port)
    assert stun.mapped_address(stun.parse_stun(answer)) == clients[0].address
    assert server.ignored_datagrams == 4
    assert server.circuits.dropped_datagrams == {"unknown circuit": 1}


async def test_both_families_share_a_port_and_a_circuit():
    server = await serve_datagrams(Circuits(), ["127.0.0.1", "::1"], 0)
    four, six = Client("127.0.0.1"), Client("::1")
    try:
        assert server.has_ipv6
        grants = [server.circuits.grant(b"s", 1, m, p, 0.0) for m, p in ((b"a", b"b"), (b"b", b"a"))]
        for client, host, grant in ((four, "127.0.0.1", grants[0]), (six, "::1", grants[1])):
            await bind(grant, client, host, server.port)
        datagram = relay.data_header(grants[0].circuit_id) + b"across"
        four.udp.sendto(datagram, ("127.0.0.1", server.port))
        assert await six.receive() == (datagram, server.port)
    finally:
        server.close()
        four.udp.close()
        six.udp.close()


async def test_a_taken_port_is_named_and_nothing_stays_bound():
    port = free_port(beside=1)
    with open_udp_socket("127.0.0.1", port + 1):
        with pytest.raises(OSError, match=f"port {port + 1}"):
            await serve_datagrams(Circuits(), ["127.0.0.1"], port)
        open_udp_socket("127.0.0.1", port).close()


async def test_a_second_address_answers_every_change():
    server = await serve_datagrams(Circuits(), ["127.0.0.1"], 0, {"127.0.0.1": "127.0.0.2"})
    client = Client("0.0.0.0")
    try:
        for change, host, port in (
            (0, "127.0.0.1", server.port),
            (stun.CHANGE_PORT, "127.0.0.1", server.port + 1),
            (stun.CHANGE_ADDRESS, "127.0.0.2", server.port),
            (stun.CHANGE_ADDRESS | stun.CHANGE_PORT, "127.0.0.2", server.port + 1),
        ):
            client.udp.sendto(stun.encode_request(change)[0], ("127.0.0.1", server.port))
            loop = asyncio.get_running_loop()
            data, source = await asyncio.wait_for(loop.sock_recvfrom(client.udp, 1000), 5)
            assert source == (host, port)
            assert stun.other_address(stun.parse_stun(data)) == ("127.0.0.2", server.port + 1)
    finally:
        server.close()
        client.udp.close()


async def test_whoever_asks_too_often_gets_no_answer(server, clients, host):
    server.allowance = Allowance(per_s=0.001, at_once=2.0)
    for _ in range(2):
        await clients[0].ask(stun.encode_request()[0], host, server.port)
    clients[0].udp.sendto(stun.encode_request()[0], (host, server.port))
    await clients[0].until(lambda: server.refused_datagrams == 1)
    assert server.reflected_datagrams == 2
