"""Every ordered pair of NAT classes, with both kinds of ordinary: predicted, actual, and how long the edge took."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from itertools import product
from pathlib import Path as FilePath
from typing import Any

from kafila_planner.nat import expected_path
from kafila_planner.ring import Path
from tests.natlab.lab import Lab
from tests.natlab.pairs import try_pairs
from tests.natlab.world import World

# The paper's three classes; its ordinary ones filter by address or by address and port, which decides their edges.
KINDS = ("permissive", "addrfilter", "ordinary", "restrictive")
_RTTS_MS = {"permissive": 79, "addrfilter": 91, "ordinary": 104, "restrictive": 115}


def run_pairs(directory: FilePath) -> list[dict[str, Any]]:
    """One pair after the other, so that what is measured is the network and not this machine."""
    lab = Lab()
    for kind, copy in product(KINDS, "12"):
        lab.add(kind + copy, kind, rtt_ms=_RTTS_MS[kind])
    with lab, World(lab, directory) as world:
        return asyncio.run(_try_all(world))


async def _try_all(world: World) -> list[dict[str, Any]]:
    first, second = ([kind + copy for kind in KINDS] for copy in "12")
    await world.join([*first, *second])
    rows = []
    for epoch, pair in enumerate(product(first, second), 1):
        facts = [world.members[name].facts for name in pair]
        relayed = expected_path(*facts) is Path.RELAYED  # then a member does not wait for direct ways first
        rows += await try_pairs(world, [pair], epoch, relay_at_once=relayed)
    return [asdict(row) | {"one": row.one[:-1], "other": row.other[:-1]} for row in rows]
