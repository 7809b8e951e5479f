"""What a hop costs: from one stage's output to the next stage's input, on loopback, part by part.

    python -m tests.bench.hop [--members 2] [--hidden 4096] [--datagram 1452] [--compute-ms 0] ...

A ring of processes passes one frame round, each over its real edges and through a real stage loop, whose blocks do
nothing (or multiply matrices for a while). One machine has one clock, so each part can be timed; between machines
Kafila never does that. The parts:

    to the loop    the tensor's bytes, and from the stage's thread to the event loop
    to bytes       the frame encoded
    QUIC out       sealed and handed to the socket
    wake-up        until the receiver's loop reads the socket; below zero where it woke before the last datagram left,
                   as it does where each is sent when it is sealed
    QUIC in        opened and put together
    to the thread  until the next stage's thread has it
    to a tensor    the bytes as the stage's input

Beside it what no agent can do without: the library alone, in memory, and an idle thread that is woken three times.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import logging
import multiprocessing
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import structlog
import torch

from kafila_agent.edge.candidate import Candidate, CandidateKind
from kafila_agent.edge.connection import ConnectionState, EdgeConnection
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.fast_quic import IS_INSTALLED
from kafila_agent.edge.frame import Dtype, Frame, Kind, parse_frame
from kafila_agent.edge.session import EdgeSession
from kafila_agent.identity import load_identity
from kafila_agent.stage.executor import Admitted, StageExecutor, own_memory
from kafila_agent.stage.loop import StageLoop
from tests.bench.rows import options_and_rows

HOST = "127.0.0.1"
SESSION = bytes(16)
WARM_UP = 50
IDLE_S = 0.003
LIBRARIES = ["aioquic", *(["qh3"] if IS_INSTALLED else [])]
PARTS = ("to the loop", "to bytes", "QUIC out", "wake-up", "QUIC in", "to the thread", "to a tensor")


@dataclass
class Times:
    """Of each visit, in ns: frame read, in the thread, tensor made, tensor out, on the loop, encoded, sent."""

    read: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    on_loop: list[int] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


class PassingExecutor(StageExecutor):
    """A stage whose blocks only multiply matrices for ``compute_s``."""

    def __init__(self, hidden_size: int, compute_s: float, times: Times):
        self.stage = SimpleNamespace(  # type: ignore[assignment]
            hidden_size=hidden_size, dtype=torch.bfloat16, device=torch.device("cpu"), rows_together=1
        )
        self.wire_dtype = Dtype.BFLOAT16
        self.threads = 1
        self._compute_s = compute_s
        self._times = times
        self._matrix = torch.ones(64, 64)

    def admit(self, frame: Frame) -> Admitted:
        self._times.begun.append(time.monotonic_ns())
        hidden = self.hidden_states(frame)
        self._times.made.append(time.monotonic_ns())
        return Admitted(None, frame.position, hidden, own_memory(frame))  # type: ignore[arg-type]

    def run(self, admitted: Sequence[Admitted]) -> list[torch.Tensor]:
        stop = time.monotonic() + self._compute_s
        while time.monotonic() < stop:
            self._matrix @ self._matrix
        self._times.done.append(time.monotonic_ns())
        return [each.hidden for each in admitted]


@dataclass(frozen=True)
class Ring:
    """What is measured."""

    members: int
    hidden: int
    rows: int
    rounds: int
    datagram_bytes: tuple[int, ...]
    compute_s: float
    fast: bool


async def live(place: int, ring: Ring, directory: Path, pipe: Connection) -> None:
    """One member."""
    identity = load_identity(directory / str(place), f"m{place}")
    endpoint = EdgeEndpoint.open(identity, HOST, datagram_bytes=ring.datagram_bytes, fast_core=ring.fast)
    pipe.send((identity.fingerprint, endpoint.local_address[1]))
    everyone: list[tuple[bytes, int]] = await asyncio.to_thread(pipe.recv)
    endpoint.enter(EdgeSession(SESSION, 1, identity.name, {f: f"m{n}" for n, (f, _) in enumerate(everyone)}))

    async def connect(peer: int) -> Edge:
        fingerprint, port = everyone[peer % ring.members]
        return await endpoint.connect(fingerprint, [Candidate(CandidateKind.HOST, HOST, port)])

    upstream, downstream = await asyncio.gather(connect(place - 1), connect(place + 1))
    times = Times()
    over = asyncio.Event()
    visits = 0

    def send(frame: Frame) -> None:
        nonlocal visits
        times.on_loop.append(time.monotonic_ns())
        data = frame.encode()
        times.encoded.append(time.monotonic_ns())
        downstream.send(data)
        times.sent.append(time.monotonic_ns())
        visits += 1
        if visits == ring.rounds:
            over.set()

    def failed(frame: Frame, error: Exception) -> None:
        raise error

    loop = StageLoop(
        PassingExecutor(ring.hidden, ring.compute_s, times),
        epoch=1,
        is_head=False,
        is_last=False,
        send=send,
        on_error=failed,
    )
    read_at = 0
    receive = endpoint._receive

    def note_and_receive() -> None:
        nonlocal read_at
        read_at = time.monotonic_ns()
        receive()

    asyncio.get_running_loop().add_reader(endpoint._udp, note_and_receive)

    def take(data: memoryview) -> None:
        times.received.append(time.monotonic_ns())
        times.read.append(read_at)
        if visits < ring.rounds:
            frame = parse_frame(data)
            loop.submit(replace(frame, stage_times=()) if place == 0 else frame)  # as at the head

    upstream.on_frame = take
    pipe.send("ready")
    if await asyncio.to_thread(pipe.recv) == "begin":
        size = ring.rows * ring.hidden * Dtype.BFLOAT16.nbytes
        first = Frame(Kind.HIDDEN, 1, 1, 0, 0, ring.rows, Dtype.BFLOAT16, ring.hidden, payload=bytes(size))
        loop.submit(first)
        times.received.append(0)
        times.read.append(0)
    await over.wait()
    await asyncio.sleep(0.2)
    await loop.close()
    pipe.send(times)
    await asyncio.to_thread(pipe.recv)
    await endpoint.close()


def run_member(place: int, ring: Ring, directory: Path, pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    asyncio.run(live(place, ring, directory, pipe))


def measure(ring: Ring) -> list[tuple[float, ...]]:
    """The parts of every hop, in seconds."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        pipes, processes = [], []
        for place in range(ring.members):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_member, args=(place, ring, Path(name), theirs))
            process.start()
            pipes.append(ours)
            processes.append(process)
        everyone = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(everyone)
        assert [pipe.recv() for pipe in pipes] == ["ready"] * ring.members
        for place, pipe in reversed(list(enumerate(pipes))):
            pipe.send("begin" if place == 0 else "wait")
        times: list[Times] = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send("end")
        for process in processes:
            process.join()
    hops = []
    for place, here in enumerate(times):
        there = times[(place + 1) % ring.members]
        later = int(place == ring.members - 1)  # who is after the last began one visit before
        for n in range(WARM_UP, ring.rounds - 1):
            stamps = (
                *(here.done[n], here.on_loop[n], here.encoded[n], here.sent[n]),
                *(
                    there.read[n + later],
                    there.received[n + later],
                    there.begun[n + later],
                    there.made[n + later],
                ),
            )
            hops.append(tuple((b - a) / 1e9 for a, b in itertools.pairwise(stamps)))
    return hops


def library_alone_s(ring: Ring) -> tuple[float, float]:
    """Median seconds to seal one frame, and to open it: in this process, idle before each, with no socket or thread."""
    with tempfile.TemporaryDirectory() as directory:
        one, other = (load_identity(Path(directory) / name, name) for name in ("one", "other"))
    roster = {identity.fingerprint: identity.name for identity in (one, other)}
    ours, theirs = (EdgeSession(SESSION, 1, identity.name, roster) for identity in (one, other))
    size, now = ring.datagram_bytes[0], time.monotonic
    sender = EdgeConnection.dial(one, ours, other.fingerprint, size, now(), fast=ring.fast)
    first = _sent_by(sender)
    receiver = EdgeConnection.accept(other, theirs, one.fingerprint, first[0], now(), fast=ring.fast)
    for data in first:
        receiver.receive_datagram(data, now())

    def settle() -> None:
        time.sleep(IDLE_S)
        for end, peer in ((receiver, sender), (sender, receiver)):
            if (due := end.get_timer()) is not None and due <= now():
                end.handle_timer(now())
            for data in _sent_by(end):
                peer.receive_datagram(data, now())
            while end.next_event() is not None:
                pass

    while not sender.state is receiver.state is ConnectionState.OPEN:
        settle()
    payload = bytes(ring.rows * ring.hidden * Dtype.BFLOAT16.nbytes)
    frame = Frame(Kind.HIDDEN, 1, 1, 0, 0, ring.rows, Dtype.BFLOAT16, ring.hidden, payload=payload).encode()
    seals, opens = [], []
    for _ in range(ring.rounds // 2):
        settle()
        began = now()
        sender.send_frame(frame)
        datagrams = _sent_by(sender)
        sealed = now()
        for data in datagrams:
            receiver.receive_datagram(data, now())
        seals.append(sealed - began)
        opens.append(now() - sealed)
    return statistics.median(seals[WARM_UP:]), statistics.median(opens[WARM_UP:])


def _sent_by(end: EdgeConnection) -> list[bytes]:
    datagrams: list[bytes] = []
    end.send_datagrams(time.monotonic(), datagrams.append)
    return datagrams


def wake_up_s() -> float:
    """Median seconds until a thread that waits, and has for a while, goes on."""
    told: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    took: list[float] = []

    def wait() -> None:
        while (told_at := told.get()) is not None:
            took.append(time.monotonic() - told_at)

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(500):
        time.sleep(IDLE_S)
        told.put(time.monotonic())
    told.put(None)
    thread.join()
    return statistics.median(took)


def _row(name: str, ring: Ring) -> dict:
    """Medians and 99th percentiles; of the hop that is measured against its bar, of each part too."""
    hops = measure(ring)
    median, high = _spread([sum(hop) for hop in hops])
    told = [f"{name:55} median {median * 1e3:6.2f} ms, p99 {high * 1e3:6.2f} ms"]
    parts = {part: _spread([hop[number] for hop in hops]) for number, part in enumerate(PARTS)}
    if ring.hidden == 4096:
        told += [
            f"    {part:16}{one * 1e6:8.0f} µs   p99 {two * 1e6:8.0f} µs"
            for part, (one, two) in parts.items()
        ]
    if (ring.hidden, ring.members) == (4096, 2):
        # Four stages of an 8B model in 16 bits, each reading a quarter of 16 GB at 200 GB/s.
        stages_s = 16e9 / 200e9
        seal_s, open_s = library_alone_s(ring)
        least_s = seal_s + open_s + 3 * (wakes_s := wake_up_s())
        told.append(
            f"    {median / least_s:.2f} times what the library alone takes to seal ({seal_s * 1e6:.0f} µs) and open"
            f" ({open_s * 1e6:.0f} µs) it, and three wake-ups ({wakes_s * 1e6:.0f} µs each)"
        )
        told.append(
            f"    four such hops are {4 * median / (4 * median + stages_s):.1%} of a token that four machines of"
            f" 200 GB/s compute in {stages_s * 1e3:.0f} ms"
        )
    return {"median_s": median, "p99_s": high, "parts_s": parts, "row": "\n".join(told)}


def _spread(values: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[len(ordered) * 99 // 100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--hidden", type=int, nargs="*", default=[1024, 4096, 8192])
    parser.add_argument("--datagram", type=int, nargs="*", default=[1452, 8952])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--library", nargs="*", choices=LIBRARIES, default=LIBRARIES)
    options, rows = options_and_rows("hop", parser)

    def ring(members: int, hidden: int, datagram: int, library: str) -> Ring:
        sizes = (datagram,) if datagram == 1200 else (datagram, 1200)
        compute_s = options.compute_ms / 1e3
        return Ring(members, hidden, options.rows, options.rounds, sizes, compute_s, library == "qh3")

    for library, datagram in itertools.product(options.library, options.datagram):
        for hidden in options.hidden:
            for members in options.members if hidden == 4096 else options.members[:1]:
                name = f"{library}, {hidden * 2 * options.rows} bytes, {members} members, datagrams of {datagram}"
                do = functools.partial(_row, name, ring(members, hidden, datagram, library))
                rows.measure((name, options.rounds, options.compute_ms), do)


if __name__ == "__main__":
    main()
