"""How planning time grows with members and blocks: `python -m tests.bench.planner_growth`.

Random fleets, fixed seeds; the best of three runs, in milliseconds of processor time. `unequal` has
blocks of different sizes; `latency` and `mixed` are the joint objectives over equal blocks.
"""

from __future__ import annotations

import argparse
import functools
import random
from time import process_time

from kafila_planner.facts import Behaviour, Fleet, MemberFacts, ModelFacts
from kafila_planner.order import exact_cycle
from kafila_planner.planner import plan_ring
from tests.bench.rows import options_and_rows

MEMBERS = (2, 4, 8, 12, 16)
BLOCKS = (32, 64, 128)
COLUMNS = ("equal", "unequal", "latency", "mixed:0.5", "mixed:0.9")


def random_fleet(members: int, blocks: int, *, unequal: bool) -> Fleet:
    """Measured members with room for everything; bandwidths over a factor of ten, RTTs of 1 to 120 ms."""
    chance = random.Random(members * 1000 + blocks)
    sizes = tuple(10**8 * (chance.randint(3, 5) if unequal else 4) for _ in range(blocks))
    model = ModelFacts("bench", blocks, sizes, sizes, 10**9, 5 * 10**8, (4096,) * blocks)
    behaviours = list(Behaviour)
    return Fleet(
        model=model,
        context_tokens=4096,
        concurrency=4,
        anchor="m0",
        members=tuple(
            MemberFacts(
                name=f"m{index}",
                bandwidth_bytes_per_s=chance.uniform(5e10, 5e11),
                overhead_s=chance.uniform(1e-5, 1e-3),
                flops_per_s=1e13,
                memory_bytes=10**12,
                rendezvous_rtt_s=chance.uniform(0.001, 0.12),
                mapping=chance.choice(behaviours),
                filtering=chance.choice(behaviours),
            )
            for index in range(members)
        ),
    )


def milliseconds(fleet: Fleet, objective: str) -> float:
    """The best of three plans from nothing remembered."""
    times = []
    for _ in range(3):
        exact_cycle.cache_clear()
        start = process_time()
        plan_ring(fleet, objective=objective)
        times.append(process_time() - start)
    return min(times) * 1e3


def _row(members: int, blocks: int) -> dict:
    times = {
        column: milliseconds(
            random_fleet(members, blocks, unequal=column == "unequal"),
            "throughput" if column in ("equal", "unequal") else column,
        )
        for column in COLUMNS
    }
    told = "".join(f"  {column} {value:8.1f}" for column, value in times.items())
    return {"milliseconds": times, "row": f"{members:2} members, {blocks:3} blocks, ms:{told}"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS)
    options, rows = options_and_rows("planner_growth", parser)
    for members in options.members:
        for blocks in BLOCKS:
            rows.measure((members, blocks), functools.partial(_row, members, blocks))


if __name__ == "__main__":
    main()
