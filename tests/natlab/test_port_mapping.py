"""A real UPnP router in the laboratory: the port is had, used, and given back."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kafila_agent.edge.candidate import CandidateKind
from kafila_agent.nat.port_mapping import PortMapping
from kafila_agent.nat.reachability import Reachability, measure_reachability
from kafila_planner.facts import Behaviour
from kafila_planner.nat import expected_path
from kafila_planner.ring import Path as EdgePath
from tests.natlab.lab import Lab
from tests.natlab.world import PORT, Member, World

pytestmark = pytest.mark.skipif(shutil.which("miniupnpd") is None, reason="needs the package miniupnpd")

# miniupnpd adds its rules to these chains; the laboratory's own NAT goes on beside them.
_CHAINS = """
table inet filter {
  chain forward { type filter hook forward priority 1; policy accept; jump miniupnpd; };
  chain miniupnpd { };
  chain prerouting { type nat hook prerouting priority -110; policy accept; jump prerouting_miniupnpd; };
  chain postrouting { type nat hook postrouting priority 90; policy accept; jump postrouting_miniupnpd; };
  chain prerouting_miniupnpd { };
  chain postrouting_miniupnpd { };
};
"""


def start_router(lab: Lab, site: str, directory: Path):
    config = directory / "miniupnpd.conf"
    config.write_text(
        "ext_ifname=wan\nlistening_ip=lan\nhttp_port=0\nenable_upnp=yes\n"
        "enable_natpmp=no\nsecure_mode=yes\nupnp_table_name=filter\nupnp_nat_table_name=filter\n"
        "uuid=00000000-0000-4000-8000-000000000001\n"
    )
    lab.run(f"{site}-nat", ["nft", "-f", "-"], _CHAINS)
    pid_file = directory / "miniupnpd.pid"
    return lab.popen(
        f"{site}-nat",
        ["miniupnpd", "-d", "-f", str(config), "-P", str(pid_file)],
        stderr=(directory / "log").open("wb"),
        stdout=(directory / "out").open("wb"),
    )


async def map_port(member: Member) -> tuple[PortMapping, asyncio.Task[None], Reachability]:
    mapping = PortMapping(member.endpoint.local_address[1])
    task = asyncio.create_task(mapping.keep())
    address = await mapping.first_address()
    return mapping, task, await measure_reachability(member.endpoint, "rv", PORT, mapped_port=address)


async def give_back(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_mapped_port_makes_a_strict_pair_direct_and_is_given_back(tmp_path):
    lab = Lab()
    lab.add("here", "restrictive", rtt_ms=20)
    lab.add("there", "restrictive", rtt_ms=30)
    with lab, World(lab, tmp_path) as world:
        start_router(lab, "here", tmp_path)
        await world.join(["here", "there"])
        here, there = world.members["here"], world.members["there"]
        assert expected_path(here.facts, there.facts) is EdgePath.RELAYED
        _, task, here.reach = await here.home.start(map_port(here))
        mapped = [c for c in here.reach.candidates if c.kind is CandidateKind.PORT_MAPPED]
        assert len(mapped) == 1, (tmp_path / "log").read_text()
        assert here.reach.filtering is Behaviour.ENDPOINT_INDEPENDENT
        assert expected_path(here.facts, there.facts) is EdgePath.DIRECT
        (outcome,) = await world.connect([("here", "there")], epoch=1)
        assert outcome.path == "direct"
        assert str(mapped[0].port) in _rules(lab)
        await here.home.start(give_back(task))
        assert str(mapped[0].port) not in _rules(lab)


def _rules(lab: Lab) -> str:
    return lab.run("here-nat", ["nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd"])
