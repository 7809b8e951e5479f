"""How many datagrams the relay forwards on one core, and what one costs: `python -m tests.bench.relay`.

One process is the rendezvous's UDP side, on a core of its own where there are two; this one floods a circuit with
datagrams of 1200 bytes. The figure is the relay's processor time: on a machine that does other things too, the number
that came through says little.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection

import structlog

from kafila_proto import relay
from kafila_proto.udp_socket import open_udp_socket
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import serve_datagrams
from tests.bench.rows import options_and_rows

HOST = "127.0.0.1"
PAYLOAD_BYTES = 1200
CIRCUITS = 16


def pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


async def serve(pipe: Connection) -> None:
    circuits = Circuits(bytes_per_s=1e12, burst_bytes=1e12)
    server = await serve_datagrams(circuits, [HOST], 0)
    ends = [(b"a", b"b"), (b"b", b"a")]
    grants = [
        [circuits.grant(b"s", e, *end, asyncio.get_running_loop().time()) for end in ends]
        for e in range(CIRCUITS)
    ]
    pipe.send((server.port, [[(g.circuit_id, g.key) for g in pair] for pair in grants]))
    while not pipe.poll():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pipe.recv()
    before = (time.process_time(), circuits.forwarded_datagrams)
    while not pipe.poll():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    pipe.send((time.process_time() - before[0], circuits.forwarded_datagrams - before[1]))
    server.close()


def run_server(pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    pin(0)
    asyncio.run(serve(pipe))


def bind(udp: socket.socket, port: int, circuit_id: bytes, key: bytes) -> None:
    """Bind, with the token that proves where we are."""
    token = relay.NO_TOKEN
    udp.setblocking(True)
    for counter in (1, 2):
        data = relay.encode_binding(relay.RelayKind.BIND, circuit_id, counter, key, token)
        udp.sendto(data, (HOST, port))
        answer = relay.parse_binding(udp.recv(100))
        assert answer is not None
        token = answer.token


def flood(port: int, sender: socket.socket, headers: list[bytes], seconds: float) -> None:
    sender.connect((HOST, port))
    sender.setblocking(True)
    datagrams = [header + bytes(PAYLOAD_BYTES) for header in headers]
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        for datagram in datagrams:
            sender.send(datagram)


def measure(seconds: float) -> tuple[float, int]:
    """Seconds of the relay's core, and the datagrams that it forwarded."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=run_server, args=(theirs,))
    server.start()
    port, grants = ours.recv()
    pin(1)
    sender, receiver = open_udp_socket(HOST, 0), open_udp_socket(HOST, 0)
    for pair in grants:
        for udp, (circuit_id, key) in zip((sender, receiver), pair, strict=True):
            bind(udp, port, circuit_id, key)
    ours.send("go")
    flood(port, sender, [relay.data_header(pair[0][0]) for pair in grants], seconds)
    ours.send("stop")
    spent_s, forwarded = ours.recv()
    server.join()
    sender.close()
    receiver.close()
    return spent_s, forwarded


def _row(seconds: float) -> dict:
    spent_s, forwarded = measure(seconds)
    told = (
        f"{forwarded} forwarded, {spent_s:.2f} s of the relay's core: {forwarded / spent_s:,.0f} datagrams/s"
    )
    return {"spent_s": spent_s, "forwarded": forwarded, "row": told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flood-seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options, rows = options_and_rows("relay", parser)
    for number in range(options.rounds):
        rows.measure(f"round {number + 1}", lambda: _row(options.flood_seconds))


if __name__ == "__main__":
    main()
