"""How fast an edge moves a prompt over a lossy line, by congestion control and datagram size (root, Linux).

    python -m tests.bench.congestion [--rtt-ms 100] [--loss 0 1] [--mib 1]

Real endpoints in the laboratory of tests/natlab. "probed" is what an edge does: the largest datagram that its path
carries. A line loses so many datagrams in each direction.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import statistics
import tempfile
import time
from pathlib import Path

import structlog

from kafila_agent.edge import congestion
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.paths import DATAGRAM_BYTES
from tests.bench.rows import options_and_rows
from tests.natlab.lab import Lab, why_not
from tests.natlab.world import World

SIZES = {"1200": (1200,), "1452": (1452, 1200), "probed": DATAGRAM_BYTES}
CONTROLS = ("reno", "cubic", congestion.NAME)


async def transfer_s(world: World, edges: tuple[Edge, Edge], size: int) -> float:
    """Seconds until a frame of ``size`` bytes is at the other end."""
    arrived = asyncio.get_running_loop().create_future()

    def take(frame: memoryview) -> None:
        arrived.get_loop().call_soon_threadsafe(arrived.set_result, len(frame))

    sender, receiver = (world.members[edge.peer] for edge in reversed(edges))
    await receiver.home.call(setattr, edges[1], "on_frame", take)
    began = time.monotonic()
    await sender.home.call(edges[0].send, bytes(size))
    assert await asyncio.wait_for(arrived, 120) == size
    return time.monotonic() - began


async def measure(
    control: str, sizes: tuple[int, ...], rtt_ms: float, loss_percent: float, size: int, repeats: int
) -> float:
    """The median of several transfers over one edge, the first left out."""
    lab = Lab()
    lab.add("here", "public", rtt_ms=rtt_ms, loss_percent=loss_percent)
    lab.add("there", "public")
    ours, congestion.NAME = congestion.NAME, control
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            lab,
            World(lab, Path(name), datagram_bytes=sizes) as world,
        ):
            await world.join(["here", "there"])
            (outcome,) = await world.connect([("here", "there")], epoch=1)
            times = [await transfer_s(world, outcome.edges, size) for _ in range(repeats + 1)]
    finally:
        congestion.NAME = ours
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--mib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=2)
    options, rows = options_and_rows("congestion", parser)
    if reason := why_not():
        print(f"left out: {reason}")
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for loss in options.loss:
        for control in CONTROLS:
            key = (f"{options.mib:g} MiB", f"{options.rtt_ms:g} ms", f"{loss:g} % lost", control)
            rows.measure(key, functools.partial(_row, key, loss, control, options))


def _row(key: tuple[str, ...], loss: float, control: str, options: argparse.Namespace) -> dict:
    size = int(options.mib * (1 << 20))
    took_s = {
        name: asyncio.run(measure(control, sizes, options.rtt_ms, loss, size, options.repeats))
        for name, sizes in SIZES.items()
    }
    told = "".join(f"  {name} {size * 8 / each_s / 1e6:6.2f}" for name, each_s in took_s.items())
    return {"took_s": took_s, "row": f"{', '.join(key)}: Mbit/s by datagram{told}"}


if __name__ == "__main__":
    main()
