"""Who stands on one LAN: found over the edges' own sockets, before anything is planned."""

from __future__ import annotations

import asyncio

from kafila_agent.edge.link import DIRECT_S
from kafila_agent.nat.neighbourhood import Neighbourhood
from kafila_planner.nat import expected_path
from kafila_planner.ring import Path
from tests.natlab.lab import Lab
from tests.natlab.world import SESSION, Member, World


async def find_sites(world: World) -> dict[str, str]:
    members = list(world.members.values())
    roster = [member.identity.fingerprint for member in members]

    def open_door(own: Member) -> Neighbourhood:
        neighbourhood = Neighbourhood(own.endpoint, SESSION, own.identity.fingerprint)
        neighbourhood.set_roster(roster)
        return neighbourhood

    def tell(neighbourhood: Neighbourhood, other: Member) -> None:
        neighbourhood.add_candidates(other.identity.fingerprint, other.reach.candidates)

    doors = {member.name: await member.home.call(open_door, member) for member in members}
    for own in members:
        for other in members:
            if other is not own:
                await own.home.call(tell, doors[own.name], other)
    sites = await asyncio.gather(*(m.home.start(doors[m.name].find_site()) for m in members))
    for member in members:
        await member.home.call(doors[member.name].close)
    return dict(zip(doors, sites, strict=True))


async def test_members_of_one_lan_are_one_site_and_direct_whatever_their_nat(tmp_path):
    lab = Lab()
    lab.add("lan1", "restrictive", rtt_ms=60)
    lab.add_to_lan("lan2", "lan1")
    lab.add("cgn", "ordinary", rtt_ms=30, hosts=[])
    lab.add("home1", "ordinary", behind="cgn")
    lab.add("home2", "ordinary", behind="cgn")
    with lab, World(lab, tmp_path) as world:
        await world.join(["lan1", "lan2", "home1", "home2"])
        sites = await find_sites(world)
        assert sites["lan1"] == sites["lan2"]
        assert len(set(sites.values())) == 3
        one, other = (world.members[name] for name in ("lan1", "lan2"))
        assert expected_path(one.facts, other.facts) is Path.RELAYED
        for member in world.members.values():
            member.site = sites[member.name]
        assert expected_path(one.facts, other.facts) is Path.DIRECT
        (outcome,) = await world.connect([("lan1", "lan2")], epoch=1)
    assert outcome.path == "direct"
    assert outcome.took_s < DIRECT_S  # no relay was asked for first
