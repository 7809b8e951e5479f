"""Every pair of places: what the planner expects of two members, each measured alone, is what happens between them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.natlab.lab import Lab
from tests.natlab.pairs import CLASSES, EI, Row, try_pairs
from tests.natlab.world import World

DISCOVERY_S, BLOCKED_S = 2.0, 5.0


def confusion(rows: Sequence[Row]) -> str:
    counts = Counter((row.predicted, row.actual) for row in rows)
    lines = ["predicted \\ actual    direct   relayed"]
    lines += [
        f"{path:18}{counts[path, 'direct']:10}{counts[path, 'relayed']:10}" for path in ("direct", "relayed")
    ]
    return "\n".join(lines)


def grid(rows: Sequence[Row]) -> str:
    names = {kind: short for kind, (short, _, _) in CLASSES.items()}
    cell = {(row.one[:-1], row.other[:-1]): row for row in rows}
    lines = ["dials \\ dialled " + "".join(f"{short:>12}" for short in names.values())]
    for one, short in names.items():
        rows_of_one = (cell[one, other] for other in names)
        cells = (f"{row.actual.removesuffix('ed')} {row.took_s:.1f}" for row in rows_of_one)
        lines.append(f"{one:12}{short:>4}" + "".join(f"{text:>12}" for text in cells))
    return "\n".join(lines)


async def test_all_ordered_pairs_of_classes(tmp_path, show):
    lab = Lab()
    for kind, (_, rtt_ms, _) in CLASSES.items():
        for copy in "12":
            lab.add(kind + copy, kind, rtt_ms=rtt_ms)
    first, second = ([kind + copy for kind in CLASSES] for copy in "12")
    rows: list[Row] = []
    with lab, World(lab, tmp_path) as world:
        await world.join([*first, *second])  # whoever is in the first half dials
        for name, member in world.members.items():
            assert (member.reach.mapping, member.reach.filtering) == CLASSES[name[:-1]][2], name
        # All of them at once: one that has to wait for the processor says nothing of the time that discovery takes.
        assert statistics.median(member.took_s for member in world.members.values()) < DISCOVERY_S
        for turn in range(0, len(second), 2):
            turned = (second[at:] + second[:at] for at in (turn, turn + 1))
            pairs = [pair for each in turned for pair in zip(first, each, strict=True)]
            rows += await try_pairs(world, pairs, turn + 1)
    show(f"{grid(rows)}\n\n{confusion(rows)}")
    assert len(rows) == len(CLASSES) ** 2
    assert [str(row) for row in rows if row.predicted != row.actual] == []


async def test_the_time_to_an_open_edge(tmp_path, show):
    """One pair after the other: what is measured is the network, not how many edges this machine can open at once."""
    lab = Lab()
    for name in ("permissive", "ordinary", "addrfilter", "restrictive"):
        lab.add(name, name, rtt_ms=CLASSES[name][1])
    lab.add("other", "ordinary", rtt_ms=79)
    pairs = [("permissive", "ordinary"), ("addrfilter", "ordinary"), ("ordinary", "other")]
    pairs += [("permissive", "restrictive"), ("addrfilter", "restrictive")]
    rows: list[Row] = []
    with lab, World(lab, tmp_path) as world:
        await world.join(["other", "permissive", "addrfilter", "ordinary", "restrictive"])
        for number, pair in enumerate(pairs, 1):
            rows += await try_pairs(world, [pair], number)
        expected = [("ordinary", "restrictive")]
        (relayed,) = await world.connect(expected, epoch=len(pairs) + 1, relay_at_once=True)
    show(
        "\n".join(f"{row}, {row.rtt_s * 1e3:.0f} ms round trip" for row in rows)
        + f"\nrelayed, as expected: {relayed.took_s:.2f} s"
    )
    assert {row.actual for row in rows} == {"direct"}
    assert statistics.median(row.took_s - 3 * row.rtt_s for row in rows) <= 0.5
    assert relayed.path == "relayed"
    assert relayed.took_s <= 3.0


def places() -> Lab:
    """Members in places that classes alone do not tell."""
    lab = Lab()
    for name, hairpins in (("cgn", False), ("hcgn", True)):
        lab.add(name, "ordinary", rtt_ms=30, hairpins=hairpins, hosts=[])
        for copy in "12":
            lab.add(f"{name}-home{copy}", "ordinary", behind=name)
    lab.add("front", "ordinary", rtt_ms=40, hosts=[])
    lab.add("double", "ordinary", behind="front")
    lab.add("hlan1", "ordinary", rtt_ms=40, hairpins=True)
    lab.add_to_lan("hlan2", "hlan1")
    for copy, rtt_ms in (("1", 50), ("2", 30)):
        lab.add(f"six{copy}", "restrictive", rtt_ms=rtt_ms, families=(6,))
        lab.add(f"dual{copy}", "restrictive", rtt_ms=rtt_ms, families=(4, 6))
        no_ipv6 = "meta nfproto ipv6 drop"
        lab.add(f"dead{copy}", "ordinary", rtt_ms=rtt_ms, families=(4, 6), extra_rule=no_ipv6)
    lab.add("ordinary", rtt_ms=40)
    lab.add("strict", "restrictive", rtt_ms=20)
    lab.add("open", "public", rtt_ms=20)
    lab.add("blocked", "blocked", rtt_ms=20)
    return lab


PLACES = [
    [
        *(
            ("cgn-home1", "cgn-home2"),
            ("hcgn-home1", "hcgn-home2"),
            ("double", "ordinary"),
            ("hlan1", "hlan2"),
        ),
        *(("six1", "six2"), ("dual1", "dual2"), ("dead1", "dead2"), ("strict", "open")),
    ],
    [
        *(("double", "strict"), ("six1", "open"), ("six2", "ordinary"), ("dual1", "dead1")),
        *(("cgn-home1", "hlan1"), ("hcgn-home1", "dead2")),
    ],
]


async def test_pairs_in_places_that_classes_do_not_tell(tmp_path, show):
    rows: list[Row] = []
    with places() as lab, World(lab, tmp_path) as world:
        await world.join([name for name in lab.addresses if name != "rv"])
        blocked = world.members["blocked"]
        assert not blocked.reach.udp
        assert blocked.took_s < BLOCKED_S
        for number, pairs in enumerate(PLACES, 1):
            rows += await try_pairs(world, pairs, number)
    show("\n".join(map(str, rows)) + f"\n\n{confusion(rows)}")
    assert [str(row) for row in rows if row.predicted != row.actual] == []


async def test_homes_behind_a_strict_carrier_that_hairpins_meet_if_one_of_them_is_open_inside(tmp_path, show):
    lab = Lab()
    lab.add("carrier", "restrictive", rtt_ms=30, hairpins=True, hosts=[])
    homes = {"open1": "permissive", "open2": "permissive", "half": "addrfilter"}
    homes |= {"shut1": "ordinary", "shut2": "ordinary"}
    for name, kind in homes.items():
        lab.add(name, kind, behind="carrier")
    lab.add("far", "ordinary", rtt_ms=20)
    turns = [
        [("open1", "open2"), ("shut1", "shut2"), ("half", "far")],
        [("open1", "shut1"), ("half", "shut2"), ("open2", "far")],
    ]
    rows: list[Row] = []
    with lab, World(lab, tmp_path) as world:
        await world.join([*homes, "far"])
        for number, pairs in enumerate(turns, 1):
            rows += await try_pairs(world, pairs, number)
    show("\n".join(map(str, rows)))
    assert [str(row) for row in rows if row.predicted != row.actual] == []
    assert [row.actual for row in rows] == ["direct", "relayed", "relayed", "direct", "direct", "relayed"]


@pytest.mark.parametrize("second_address", [True, False])
async def test_a_blocked_second_port_is_noticed(tmp_path, second_address):
    lab = Lab()
    lab.add("home", "ordinary", rtt_ms=20)
    with lab, World(lab, tmp_path, second_address=second_address) as world:
        lab.drop_incoming("rv", "udp dport 7471")
        await world.join(["home"])
        reach = world.members["home"].reach
    assert reach.second_port is False
    assert reach.mapping is (EI if second_address else None)
